#include "api/raw_prompts.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "api/llama_request.h"
#include "api/openai_request.h"
#include "server/fake_engine_for_test.h"

namespace kvasir {
namespace {

using nlohmann::json;
using ParsePrompt = decltype(&ParseCompletionRequest);

const json kInexact = {{"retention", {{"policy", "window"}, {"exact_tokens", 9}}}};
constexpr size_t kAtOnce = 40'000;  // tokens, less than a text may have

struct ParsedPrompt {
  std::vector<TokenId> ids;
  std::string error;
};

// Reads a prompt in which each byte is a token.
ParsedPrompt ParsedBy(ParsePrompt parse, json body, const json& cache) {
  static const auto tokenizer = *Tokenizer::Parse(TinyTokenizerJson(), kTinyTokenizerConfig);
  static const auto chat_template = *ChatTemplate::Parse(kTinyTemplate);
  ModelView model;
  model.names = {"m"};
  model.tokenizer = tokenizer.get();
  model.chat_template = chat_template.get();
  model.vocab_size = 258;
  model.ctx_size = 64;
  model.drops_tokens = true;
  model.max_decoded_bytes = 1 << 20;
  if (!cache.is_null()) body["cache"] = cache;
  const auto call = parse(body.dump(), model);
  if (!call) return {{}, call.error().text()};
  return {call->requests.front().prompt, ""};
}

std::string TextOf(size_t tokens) {
  std::string text;
  while (text.size() < tokens) text += "a word ";
  return text.substr(0, tokens);
}

TEST(RawPrompts, TextsThatNeedNotBeExactPassTheContext) {
  const json text = {{"prompt", TextOf(2 * kAtOnce)}};
  const json chat = {{"messages", {{{"role", "user"}, {"content", TextOf(2 * kAtOnce)}}}}};
  for (const ParsePrompt parse : {&ParseCompletionRequest, &ParseLlamaRequest, &ParseChatRequest}) {
    const bool is_chat = parse == &ParseChatRequest;
    const json& body = is_chat ? chat : text;
    EXPECT_GE(ParsedBy(parse, body, kInexact).ids.size(), 2 * kAtOnce);
    EXPECT_EQ(ParsedBy(parse, body, json()).error,
              std::string(is_chat ? "messages" : "prompt") +
                  ": has more than 65792 tokens, which exceeds the available context size of 64, "
                  "the model's largest; shorten it");
  }
}

TEST(RawPrompts, APromptThatIsTooLongIsToldWhatWouldTakeIt) {
  const json text = {{"prompt", TextOf(100)}};
  const std::string refusal =
      "prompt: has 100 tokens, which with 1 to generate exceeds the available context size of 64, "
      "the model's largest; shorten it";
  EXPECT_EQ(ParsedBy(&ParseCompletionRequest, text, json()).error,
            refusal +
                "; with cache.retention and its exact_tokens it may be longer "
                "(docs/retention.md)");
  EXPECT_EQ(ParsedBy(&ParseCompletionRequest, text, {{"retention", "full"}}).error, refusal);
  EXPECT_EQ(ParsedBy(&ParseCompletionRequest, text, {{"retention", "window"}}).error,
            refusal + ", or give cache.retention.exact_tokens less than the prompt has");
  EXPECT_EQ(ParsedBy(&ParseCompletionRequest, text, kInexact).error, "");
}

TEST(RawPrompts, AListOfTextsAndIdsIsReadToItsEndOrRefused) {
  const json part = TextOf(kAtOnce);
  json list = {part, 7, part, 5};
  const ParsedPrompt read = ParsedBy(&ParseCompletionRequest, {{"prompt", list}}, kInexact);
  EXPECT_EQ(read.ids.size(), 2 * kAtOnce + 2) << read.error;
  EXPECT_EQ(read.ids.back(), 5);
  EXPECT_EQ(ParsedBy(&ParseCompletionRequest, {{"prompt", list}}, json()).error,
            "prompt: has more than 65792 tokens, which exceeds the available context size of 64, "
            "the model's largest; shorten it");
  while (list.size() < kMaxRetainedTokens / kAtOnce + 6) list.push_back(part);
  EXPECT_EQ(ParsedBy(&ParseCompletionRequest, {{"prompt", list}}, kInexact).error,
            "prompt: has more than 1048576 tokens, which exceeds the available context size of 64, "
            "the model's largest; shorten it");
}

}  // namespace
}  // namespace kvasir
