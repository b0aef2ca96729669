#include "api/anthropic_request.h"

#include <memory>
#include <utility>

#include "api/anthropic_messages.h"
#include "api/anthropic_writer.h"
#include "base/result.h"

namespace kvasir {

Result<GenerationCall> ParseMessagesRequest(std::string_view body, const ModelView& model,
                                            std::string* chat) {
  KV_ASSIGN(AnthropicChat translated, TranslateMessages(body, model, ReadFor::kAnswer));
  KV_ASSIGN(OpenAiCall call, ReadTranslated(translated.chat, model));
  call.spec.id_prefix = "msg_";
  call.spec.call_prefix = "toolu_";
  GenerateRequest& request = call.requests.front();
  request.reports_progress = call.spec.stream;  // message_start has the figures of the prompt
  AnthropicForm form{.max_tokens = request.max_tokens};
  if (!request.keeps.empty()) {
    form.marked_tokens = request.keeps.back().tokens;
    form.for_an_hour = request.keeps.back().ttl_s == 3600;
  }
  *chat = TextOf(translated.chat.fields);
  return GenerationCall{.requests = std::move(call.requests),
                        .spec = std::move(call.spec),
                        .writer = std::make_unique<AnthropicWriter>(form),
                        .slot = call.asked.slot,
                        .unseen = std::move(call.unseen),
                        .head = std::move(call.head)};
}

Result<size_t> CountMessagesTokens(std::string_view body, const ModelView& model) {
  KV_ASSIGN(AnthropicChat translated, TranslateMessages(body, model, ReadFor::kCount));
  return CountTranslated(translated.chat, model);
}

}  // namespace kvasir
