// Sessions of a model whose tokens are bytes: a text reads as its prompt's ids.
#pragma once

#include <gtest/gtest.h>

#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "api/session_forget.h"
#include "api/session_prompt.h"
#include "server/fake_engine_for_test.h"

namespace kvasir {

// The template writes each message as "CONTENT;", and a prompt is the texts of its messages.
class ByteSessionTest : public testing::Test {
 protected:
  ByteSessionTest() {
    model_.names = {"m"};
    model_.tokenizer = tokenizer_.get();
    model_.chat_template = chat_template_.get();
    model_.vocab_size = 258;
    model_.ctx_size = 1 << 22;
  }

  static std::vector<TokenId> Ids(std::string_view text) {
    std::vector<TokenId> ids;
    for (const char byte : text) ids.push_back(static_cast<TokenId>(static_cast<uint8_t>(byte)));
    return ids;
  }
  static std::string Text(std::span<const TokenId> ids) {
    std::string text;
    for (const TokenId id : ids) text += static_cast<char>(id);
    return text;
  }

  static SessionMessage Said(std::string role, std::string content) {
    SessionMessage message;
    message.role = std::move(role);
    message.content = std::move(content);
    return message;
  }
  // Makes a session of messages: their roles and contents.
  SessionState Session(std::initializer_list<std::pair<const char*, std::string>> said) {
    SessionSetup setup;
    setup.max_context = UINT32_MAX;
    SessionState empty;
    empty.setup = *store_.Keep(std::move(setup));
    std::vector<SessionMessage> messages;
    for (const auto& [role, content] : said) messages.push_back(Said(role, content));
    return *Append(store_, empty, std::move(messages));
  }
  // Notes that the session has read its prompt and then `more`.
  void Read(SessionState* state, PathSpace space = {}, std::string_view more = "") {
    const auto prompt = PromptOf(*state, model_);
    ASSERT_TRUE(prompt) << prompt.error().text();
    std::vector<TokenId> ids = prompt->chat.ids;
    const std::vector<TokenId> then = Ids(more);
    ids.insert(ids.end(), then.begin(), then.end());
    state->paths = *AddPath(store_, state->paths, std::move(ids), BeginsOf(*state, prompt->chat),
                            std::move(space));
  }

  const std::unique_ptr<const Tokenizer> tokenizer_ =
      *Tokenizer::Parse(TinyTokenizerJson(), kTinyTokenizerConfig);
  const std::unique_ptr<const ChatTemplate> chat_template_ =
      *ChatTemplate::Parse("{% for m in messages %}{{ m.content }};{% endfor %}");
  ModelView model_;
  SessionStore store_{SessionLimits()};
};

}  // namespace kvasir
