// Errors as HTTP clients see them: one table from Code, field and Cause to status, one JSON shape
// (OpenAI's).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "http/http_message.h"
#include "kvasir/status.h"

namespace kvasir {

// Answers with an error. An error about a part of a request that is not a field of its body names
// that part as its field
// ("body", "head", "method", "host": all in errors.cc), which decides the status together with the
// code. Every other field is one of the body, and the answer's `param`.
int HttpStatus(const Error& error);
Refusal RefusalOf(const Error& error);

// {"message", "type", "param", "code"} as text: the value of `error`.
std::string ErrorObject(const Error& error);
// {"error": {...}}, with Retry-After and WWW-Authenticate where the status needs them.
HttpResponse ErrorResponse(const Error& error);

// Says that the key of a request was removed from the file of --keys while it was answered.
Error KeyRevoked();

// Returns an error of Engine::Submit, about the request's fields. `prompt_field` is what the
// request calls its prompt.
Error SubmitError(Error error, const std::string& prompt_field);

}  // namespace kvasir
