// Cached facts can be recalled: a first turn states facts, and a second turn computes only the
// question about them. The bundled model can only recall, so its answers show what the cache kept.
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/json_tree_for_test.h"
#include "chat/chat_template.h"
#include "engine_scenario.h"
#include "source_paths.h"
#include "text/tokenizer.h"

namespace kvasir {
namespace {

std::vector<TokenId> Chat(const Engine& engine, const nlohmann::json& messages, bool asks) {
  ChatRenderOptions options;
  options.add_generation_prompt = asks;
  options.bos_token = engine.tokenizer()->bos_text();
  options.eos_token = engine.tokenizer()->eos_text();
  JsonTree tree;
  const auto rendered = engine.chat_template()->Render(TreeOf(messages, &tree), {}, {}, options);
  if (!rendered) {
    ADD_FAILURE() << rendered.error().message;
    return {};
  }
  EncodeOptions encode;
  encode.add_special = false;
  encode.literal = rendered->literal;
  encode.written = *rendered->written;
  return *engine.tokenizer()->Encode(rendered->text, encode);
}

TEST(Recall, FactsOfTheFirstTurnComeFromTheCache) {
  const auto engine = LoadEngine(DemoOptions());
  std::ifstream file(KVASIR_SOURCE_DIR "/models/kvasir-demo/eval.jsonl");
  uint32_t asked = 0, right = 0;
  uint64_t reused = 0, computed = 0;
  for (std::string line; std::getline(file, line) && asked < 30;) {
    const auto probe = nlohmann::json::parse(line, nullptr, false);
    if (probe["kind"] != "recall" || probe["tokens"].get<int>() > 512) continue;
    const nlohmann::json& messages = probe["messages"];
    ++asked;
    // First turn: everything but the question.
    nlohmann::json told = messages;
    told.erase(told.size() - 1);
    Ask(*engine, Greedy(Chat(*engine, told, false), 0));
    const Answer answer = Ask(*engine, Greedy(Chat(*engine, messages, true), 48));
    reused += answer.receipt.cached_tokens();
    computed += answer.receipt.computed;
    if (answer.choices[0].text.find(probe["expect"].get<std::string>()) != std::string::npos) {
      ++right;
    }
  }
  std::printf("recalled %u of %u; %llu tokens reused, %llu computed\n", right, asked,
              static_cast<unsigned long long>(reused), static_cast<unsigned long long>(computed));
  ASSERT_EQ(asked, 30u);
  EXPECT_GE(right, 26u) << "the model's card says 96%";
  EXPECT_GT(reused, computed * 4) << "the second turn computes the question only";
}

TEST(Recall, WhatWasErasedIsComputedAgainAndSaysTheSame) {
  const auto engine = LoadEngine(DemoOptions());
  const auto prompt = Chat(
      *engine,
      {{{"role", "user"}, {"content", "The secret word is bralemin. What is the secret word?"}}},
      true);
  const Answer before = Ask(*engine, Greedy(prompt, 40));
  EXPECT_NE(before.choices[0].text.find("bralemin"), std::string::npos) << before.choices[0].text;
  engine->Erase("default");
  const Answer after = Ask(*engine, Greedy(prompt, 40));
  EXPECT_EQ(after.receipt.computed, prompt.size());
  EXPECT_EQ(after.choices[0].tokens, before.choices[0].tokens);
}

}  // namespace
}  // namespace kvasir
