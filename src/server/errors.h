// Errors as HTTP clients see them: one table from Code to status, one JSON shape (OpenAI's).
#pragma once

#include <cstdint>
#include <string>
#include <tl/expected.hpp>
#include <utility>
#include <vector>

#include "base/result.h"
#include "kvasir/status.h"
#include "server/parts.h"

namespace kvasir {

struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";
  std::string body;
  std::vector<std::pair<std::string, std::string>> headers;
  Parts rest;               // the rest of the body, where it may be long
  uint64_t rest_bytes = 0;  // memory that `rest` holds until its end
};

struct ApiError {
  Code code = Code::kInvalidArgument;
  std::string message;
  std::string param;  // the request's field; "": no field
  int status = 0;     // 0: HttpStatus(code)
  std::string name;   // OpenAI's `code`; "": the name of the code
};

template <typename T>
using ApiResult = tl::expected<T, ApiError>;

int HttpStatus(Code code);

// {"message", "type", "param", "code"} as text: the value of `error`.
std::string ErrorObject(const ApiError& error);
// {"error": {...}}, with Retry-After and WWW-Authenticate where the status needs them.
HttpResponse ErrorResponse(const ApiError& error);

tl::unexpected<ApiError> Invalid(std::string param, std::string message);
ApiError ToApiError(const Error& error, std::string param = "");
// The API error for an error of Engine::Submit. `prompt_param`: the request's name for its prompt.
ApiError SubmitError(const Error& error, const std::string& prompt_param);

}  // namespace kvasir
