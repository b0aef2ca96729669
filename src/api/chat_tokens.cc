#include "api/chat_tokens.h"

#include <utility>

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

Result<std::vector<TokenId>> ChatTokens(JsonFields& fields, JsonTree* tree,
                                        const ModelView& model) {
  if (!model.tokenizer) return tl::unexpected(NoTextError("messages", model));
  KV_ASSIGN(const RenderedChat chat, RenderMessages(fields, tree, model));
  KV_ASSIGN(SpannedPrompt spanned, EncodeSpans(fields, chat, model));
  return std::move(spanned.prompt.ids);
}

Result<size_t> CountChatTokens(JsonFields& fields, JsonTree* tree, const ModelView& model) {
  KV_TRY(ReadModel(fields, model));
  KV_ASSIGN(const std::vector<TokenId> ids, ChatTokens(fields, tree, model));
  return ids.size();
}

}  // namespace kvasir
