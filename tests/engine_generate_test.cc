// The engine end to end: what it generates, refuses and tells.
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/random.h"
#include "engine_scenario.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace kvasir {
namespace {

nlohmann::json ReadJson(const std::string& path) {
  return nlohmann::json::parse(std::ifstream(path), nullptr, false);
}

GenerateRequest Greedy(std::vector<TokenId> prompt, uint32_t max_tokens) {
  GenerateRequest request;
  request.prompt = std::move(prompt);
  request.max_tokens = max_tokens;
  request.sampling.temperature = 0;
  return request;
}

std::vector<TokenId> SomeIds(uint32_t count, uint32_t vocab, uint64_t seed = 7) {
  std::vector<TokenId> ids;
  for (uint32_t i = 0; i < count; ++i) {
    ids.push_back(static_cast<TokenId>(DrawBits(seed, 0, i) % vocab));
  }
  return ids;
}

TEST(Generate, SaysWhatTheGoldensSay) {
  const auto engine = LoadEngine(DemoOptions());
  const auto golden = ReadJson(KVASIR_SOURCE_DIR "/models/kvasir-demo/golden.json");
  ASSERT_FALSE(golden["prompts"].empty());
  for (const auto& prompt : golden["prompts"]) {
    const auto expected = prompt["greedy"].get<std::vector<TokenId>>();
    GenerateRequest request =
        Greedy(prompt["ids"].get<std::vector<TokenId>>(), static_cast<uint32_t>(expected.size()));
    request.ignore_eos = true;
    const Answer answer = Ask(*engine, request);
    EXPECT_EQ(answer.choices[0].tokens, expected) << prompt["name"];
    EXPECT_EQ(answer.choices[0].finish_reason, FinishReason::kLength);
    EXPECT_EQ(answer.completion_tokens, expected.size());
    request.ignore_eos = false;
    request.max_tokens = 64;
    const Answer stopped = Ask(*engine, request);
    EXPECT_TRUE(stopped.choices[0].text.starts_with(prompt["answer"].get<std::string>()))
        << prompt["name"] << ": " << stopped.choices[0].text;
    EXPECT_EQ(stopped.choices[0].finish_reason, FinishReason::kStop);
    EXPECT_EQ(stopped.receipt.computed, 0u) << "the Cursor answers an identical prompt";
  }
}

}  // namespace
}  // namespace kvasir
