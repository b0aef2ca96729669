#include "api/chat_tokens.h"

#include "api/chat_prompt.h"
#include "api/chat_spans.h"
#include "api/openai_request.h"
#include "base/result.h"
#include "http/json_body.h"

namespace kvasir {

Result<size_t> CountChatTokens(std::string_view body, const ModelView& model) {
  KV_ASSIGN(JsonBody parsed, ParseBody(body, kChatIds));
  JsonFields fields(parsed.fields);
  return CountChatTokens(fields, &parsed.tree, model);
}

Result<size_t> CountChatTokens(JsonFields& fields, JsonTree* tree, const ModelView& model) {
  if (!model.tokenizer) return tl::unexpected(NoTextError("messages", model));
  KV_ASSIGN(const RenderedChat chat, RenderMessages(fields, tree, model));
  KV_ASSIGN(const SpannedPrompt spanned, EncodeSpans(fields, chat, model));
  return spanned.prompt.ids.size();
}

}  // namespace kvasir
