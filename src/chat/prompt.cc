#include "chat/prompt.h"

#include "base/result.h"
#include "chat/chat_template.h"
#include "text/tokenizer.h"

namespace kvasir {
namespace {

constexpr const char* kIdsOfRun = "ids with 'kvasir run --ids'";

}  // namespace

Result<const Tokenizer*> TokenizerOf(const Engine& engine, std::string_view instead) {
  if (const Tokenizer* tokenizer = engine.tokenizer()) return tokenizer;
  return FailField(Code::kUnsupported, "model", "{}: {}, or give {}", engine.card().path,
                   engine.card().no_text.value_or(""), instead);
}

Result<std::vector<TokenId>> EncodePrompt(const Engine& engine, std::string_view text) {
  KV_ASSIGN(const Tokenizer* tokenizer, TokenizerOf(engine, kIdsOfRun));
  return tokenizer->Encode(text);
}

Result<EncodedChat> EncodeChat(const Engine& engine, const std::vector<ChatMessage>& messages,
                               int64_t now_unix_s, const ChatTemplate* own,
                               const JsonValue& variables) {
  KV_ASSIGN(const Tokenizer* tokenizer, TokenizerOf(engine, kIdsOfRun));
  const ChatTemplate* chat_template = own != nullptr ? own : engine.chat_template();
  if (chat_template == nullptr) {
    return Fail(Code::kUnsupported,
                "{} has no chat template; give one with --chat-template-file, or use 'kvasir run "
                "--prompt' instead",
                engine.card().path);
  }
  JsonTree tree;
  std::vector<JsonValue> list;
  for (const ChatMessage& message : messages) {
    list.push_back(tree.Object(
        {{"role", tree.String(message.role)}, {"content", tree.String(message.content)}}));
  }
  const ChatRenderOptions options{.bos_token = tokenizer->bos_text(),
                                  .eos_token = tokenizer->eos_text(),
                                  .now_unix_s = now_unix_s};
  KV_ASSIGN(const RenderedChat chat,
            chat_template->Render(tree.Array(list), {}, variables, options));
  // The template writes BOS itself.
  KV_ASSIGN(std::vector<TokenId> ids, tokenizer->Encode(chat.text, {.add_special = false,
                                                                    .literal = chat.literal,
                                                                    .written = *chat.written}));
  return EncodedChat{std::move(ids), chat.clock_in_prompt};
}

}  // namespace kvasir
