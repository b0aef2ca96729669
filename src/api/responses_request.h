// Converts request bodies of OpenAI's /v1/responses to GenerateRequests.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "api/generation_call.h"
#include "api/model_view.h"
#include "api/stored_response.h"
#include "kvasir/status.h"

namespace kvasir {

struct ResponsesCall {
  GenerationCall call;
  std::string chat;                            // the chat completion that it means, for AskedChat
  std::optional<UnansweredResponse> to_store;  // absent: it is not to be stored
};
// Reads a request. Errors name the fields of the body. kNotFound, of `previous_response_id`: the
// caller has no such response. `find`: empty where none are stored.
Result<ResponsesCall> ParseResponsesRequest(std::string_view body, const ModelView& model,
                                            const FindResponse& find = {});
// Counts the tokens that its prompt has. O(text).
Result<size_t> CountResponsesTokens(std::string_view body, const ModelView& model,
                                    const FindResponse& find = {});

}  // namespace kvasir
