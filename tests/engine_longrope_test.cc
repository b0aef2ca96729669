// Sequences that grow past the length at which RoPE longrope changes its factors: their KV is that
// of a prompt of their length, whichever request computed it.
#include <algorithm>
#include <map>

#include "engine_scenario.h"
#include "source_paths.h"
#include "tensor/same_bits_for_test.h"

namespace kvasir {
namespace {

constexpr uint32_t kOriginal = 32;  // of tests/data/tiny-longrope, whose context is 256

EngineOptions LongRopeOptions() {
  EngineOptions options = DemoOptions();
  options.model = KVASIR_SOURCE_DIR "/tests/data/tiny-longrope";
  return options;
}

std::vector<TokenId> Tokens(uint32_t count) {
  std::vector<TokenId> tokens(count);
  for (uint32_t i = 0; i < count; ++i) tokens[i] = static_cast<TokenId>((i * 7 + 3) % 61);
  return tokens;
}

GenerateRequest EndlessAfter(std::vector<TokenId> prompt, uint32_t max_tokens) {
  GenerateRequest request = Greedy(std::move(prompt), max_tokens);
  request.ignore_eos = true;
  return request;
}

using RopeRows = std::map<std::pair<uint32_t, uint32_t>, std::vector<float>>;  // choice, position

Answer AskForRows(Engine& engine, GenerateRequest request, RopeRows& rows) {
  request.on_logits = [&rows](uint32_t choice, uint32_t position, std::span<const float> row) {
    const bool first =
        rows.emplace(std::pair(choice, position), std::vector(row.begin(), row.end())).second;
    EXPECT_TRUE(first) << "row " << position << " of choice " << choice << " came twice";
  };
  return Ask(engine, std::move(request));
}

// Returns the last row of a prompt that is computed alone.
std::vector<float> LastRow(Engine& engine, const std::vector<TokenId>& prompt) {
  RopeRows rows;
  GenerateRequest request = EndlessAfter(prompt, 0);
  request.reuse = Reuse::kNothing;
  AskForRows(engine, std::move(request), rows);
  return rows.at({0, static_cast<uint32_t>(prompt.size()) - 1});
}

std::vector<TokenId> Joined(std::vector<TokenId> tokens, const std::vector<TokenId>& more) {
  tokens.insert(tokens.end(), more.begin(), more.end());
  return tokens;
}

TEST(LongRope, EachTokenOfAnAnswerHasTheRowOfAPromptOfItsLength) {
  for (const uint32_t chunk : {0u, 1u, 5u}) {
    for (const uint32_t size : {25u, kOriginal, kOriginal + 1}) {
      const auto engine = LoadEngine(LongRopeOptions());
      GenerateRequest request = EndlessAfter(Tokens(size), 20);
      if (chunk > 0) request.chunk_tokens = chunk;
      request.n = 3;
      request.sampling.temperature = 1;
      request.sampling.seed = 5;
      request.logprobs = 2;
      RopeRows rows;
      const Answer answer = AskForRows(*engine, request, rows);
      ASSERT_FALSE(answer.error) << answer.error->message;
      EXPECT_NE(answer.choices[0].tokens, answer.choices[1].tokens);
      EXPECT_EQ(answer.receipt.recomputed > 0, size <= kOriginal);
      for (uint32_t choice = 0; choice < 3; ++choice) {
        ASSERT_EQ(answer.choices[choice].tokens.size(), 20u);
        for (const GeneratedToken& token : answer.choices[choice].pieces) {
          EXPECT_EQ(token.top.size(), 2u);
        }
        std::vector<TokenId> tokens = Joined(request.prompt, answer.choices[choice].tokens);
        for (uint32_t position = size + 18; position >= size; --position) {
          tokens.resize(position + 1);
          EXPECT_TRUE(SameBits(rows.at({choice, position}), LastRow(*engine, tokens)))
              << "prompt of " << size << ", choice " << choice << ", row " << position;
        }
      }
      engine->CheckInvariants();
      const EngineStats stats = engine->Stats();
      EXPECT_EQ(stats.recomputed_tokens, answer.receipt.recomputed);
      uint64_t prompts = size;  // and those that LastRow asked for
      for (uint32_t position = size; position < size + 19; ++position)
        prompts += 3 * (position + 1);
      EXPECT_EQ(stats.prompt_tokens, prompts);
    }
  }
}

TEST(LongRope, AConversationThatCrossesSaysWhyAndIsReusedFromThenOn) {
  const auto engine = LoadEngine(LongRopeOptions());
  const std::vector<TokenId> first = Tokens(20);
  const Answer one = Ask(*engine, EndlessAfter(first, 8));  // 28 tokens: short
  EXPECT_EQ(one.receipt.recomputed, 0u);
  const std::vector<TokenId> second = Joined(Joined(first, one.choices[0].tokens), Tokens(12));
  const Answer two = Ask(*engine, EndlessAfter(second, 8));
  EXPECT_EQ(two.receipt.cached_tokens(), 0u);
  ASSERT_TRUE(two.receipt.miss);
  EXPECT_EQ(two.receipt.miss->reason, MissReason::kRopeChanged);
  EXPECT_EQ(two.receipt.miss->at_token, 0u);
  const std::vector<TokenId> third = Joined(Joined(second, two.choices[0].tokens), Tokens(5));
  const Answer three = Ask(*engine, EndlessAfter(third, 8));
  EXPECT_EQ(three.receipt.cached_tokens(), second.size() + 7);  // all that was computed
  // Back below the length: the short KV is still there, and a prefix of the long one is not used.
  const Answer again = Ask(*engine, EndlessAfter(Joined(first, {1, 2}), 2));
  EXPECT_EQ(again.receipt.cached_tokens(), first.size());
  std::vector<TokenId> other = second;
  other.resize(kOriginal);
  other[0] = 60;  // only the long KV has this beginning
  Ask(*engine, EndlessAfter(Joined(other, Tokens(8)), 2));
  const Answer below = Ask(*engine, EndlessAfter(other, 1));
  EXPECT_EQ(below.receipt.cached_tokens(), 0u);
  ASSERT_TRUE(below.receipt.miss);
  EXPECT_EQ(below.receipt.miss->reason, MissReason::kRopeChanged);
  EXPECT_EQ(engine->Stats().misses[static_cast<size_t>(MissReason::kRopeChanged)], 2u);
}

TEST(LongRope, AnotherTenantsPromptIsNoReason) {
  const auto engine = LoadEngine(LongRopeOptions());
  Ask(*engine, EndlessAfter(Tokens(30), 1));
  GenerateRequest request = EndlessAfter(Tokens(40), 1);
  request.tenant = "another";
  const Receipt receipt = Ask(*engine, request).receipt;
  ASSERT_TRUE(receipt.miss);
  EXPECT_EQ(receipt.miss->reason, MissReason::kCold);
}

TEST(LongRope, EraseForgetsShortAndLong) {
  const auto engine = LoadEngine(LongRopeOptions());
  Ask(*engine, EndlessAfter(Tokens(20), 1));
  Ask(*engine, EndlessAfter(Tokens(60), 1));
  engine->Erase(GenerateRequest().tenant);
  for (const uint32_t size : {20u, 60u}) {
    const Receipt receipt = Ask(*engine, EndlessAfter(Tokens(size), 1)).receipt;
    EXPECT_EQ(receipt.cached_tokens(), 0u);
    ASSERT_TRUE(receipt.miss);
    EXPECT_EQ(receipt.miss->reason, size == 20 ? MissReason::kCold : MissReason::kRopeChanged);
  }
}

TEST(LongRope, AForgetCoversShortAndLong) {
  const auto engine = LoadEngine(LongRopeOptions());
  Ask(*engine, EndlessAfter(Tokens(20), 1));
  Ask(*engine, EndlessAfter(Tokens(60), 1));
  std::promise<void> told;
  engine->Forget({.owner = GenerateRequest().tenant,
                  .cache_salt = {},
                  .ids = Tokens(60),
                  .first = 3,
                  .last = 10,
                  .kept = {}},
                 [&](const Erasure&) { told.set_value(); });
  told.get_future().wait();
  for (const uint32_t size : {20u, 60u}) {
    EXPECT_EQ(Ask(*engine, EndlessAfter(Tokens(size), 1)).receipt.cached_tokens(), 0u);
  }
}

TEST(LongRope, AnAnswerCrossesInAPoolThatHoldsItOnce) {
  EngineOptions options = LongRopeOptions();
  options.kv_format = "f32";
  for (options.kv_memory_bytes = 4096;; options.kv_memory_bytes += 4096) {
    const Result<MemoryPlan> plan = Engine::PlanMemory(options);
    if (plan && plan->num_blocks >= 4) break;
  }
  const auto small = LoadEngine(options);
  ASSERT_EQ(small->plan().num_blocks, 4u);
  for (const uint32_t size : {20u, 33u}) {
    const Answer answer = Ask(*small, EndlessAfter(Tokens(size), 30));
    EXPECT_EQ(answer.choices[0].tokens.size(), 30u);
    EXPECT_EQ(answer.receipt.recomputed > 0, size == 20);
  }
  small->CheckInvariants();
}

TEST(LongRope, ShortAndLongSequencesShareSteps) {
  const auto engine = LoadEngine(LongRopeOptions());
  std::vector<std::unique_ptr<Pending>> together;
  std::vector<Answer> alone;
  for (const uint32_t size : {5u, 30u, 31u, 32u, 60u, 10u}) {
    GenerateRequest request = EndlessAfter(Tokens(size), 24);
    request.reuse = Reuse::kNothing;
    alone.push_back(Ask(*engine, request));
    request.reuse = Reuse::kAll;
    together.push_back(std::make_unique<Pending>(*engine, request));
  }
  for (size_t i = 0; i < together.size(); ++i) {
    EXPECT_EQ(together[i]->Wait().choices[0].tokens, alone[i].choices[0].tokens);
  }
}

}  // namespace
}  // namespace kvasir
