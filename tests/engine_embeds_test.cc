// Embeddings: the same bits from the cache as without it, in a batch as alone, however the prompt
// is divided into steps, and after preemptions; and what an embedding is made of.
#include <cmath>

#include "base/random.h"
#include "engine_scenario.h"
#include "tensor/same_bits_for_test.h"

namespace kvasir {
namespace {

struct Embedded {
  std::vector<float> embedding;
  Receipt receipt;
  std::optional<Error> error;
  std::promise<void> done;
};

GenerateRequest Embedding(std::vector<TokenId> prompt, Pooling pooling) {
  GenerateRequest request = Greedy(std::move(prompt), 0);
  request.embeds = pooling;
  if (pooling == Pooling::kMean) request.reuse = Reuse::kNothing;
  return request;
}

void Submit(Engine& engine, GenerateRequest request, Embedded* to) {
  ASSERT_TRUE(engine.Submit(std::move(request), [to](const Event& event) {
    if (!event.last) return;
    to->embedding = event.embedding;
    to->receipt = event.receipt;
    to->error = event.error;
    to->done.set_value();
  }));
}

Embedded EmbedNow(Engine& engine, GenerateRequest request) {
  Embedded embedded;
  Submit(engine, std::move(request), &embedded);
  embedded.done.get_future().wait();
  EXPECT_FALSE(embedded.error);
  EXPECT_EQ(embedded.embedding.size(), engine.card().hidden_size);
  return embedded;
}

std::vector<TokenId> RandomIds(Random& random, size_t count, uint32_t vocab_size) {
  std::vector<TokenId> ids(count);
  for (TokenId& id : ids) id = static_cast<TokenId>(random.Below(vocab_size));
  return ids;
}

TEST(Embeds, LastIsTheSameFromTheCacheAndChunked) {
  for (const char* format : {"f32", "f16", "int8", "int4"}) {
    EngineOptions options = TinyOptions();
    options.kv_format = format;
    const auto engine = LoadEngine(options);
    Random random(7);
    const auto prompt = RandomIds(random, 50, engine->card().vocab_size);
    GenerateRequest alone = Embedding(prompt, Pooling::kLast);
    alone.reuse = Reuse::kNothing;
    const Embedded want = EmbedNow(*engine, alone);
    EXPECT_EQ(want.receipt.computed, 50u);
    Ask(*engine, Greedy({prompt.begin(), prompt.begin() + 37}, 1));
    const Embedded from_prefix = EmbedNow(*engine, Embedding(prompt, Pooling::kLast));
    EXPECT_GE(from_prefix.receipt.cached_tokens(), 32u);
    const Embedded again = EmbedNow(*engine, Embedding(prompt, Pooling::kLast));
    EXPECT_EQ(again.receipt.computed, 0u) << "the same prompt costs nothing";
    GenerateRequest last_row = Embedding(prompt, Pooling::kLast);
    last_row.reuse = Reuse::kBlocks;
    const Embedded without_cursor = EmbedNow(*engine, last_row);
    EXPECT_GE(without_cursor.receipt.computed, 1u);
    for (const uint32_t chunk : {1u, 7u, 16u}) {
      alone.chunk_tokens = chunk;
      EXPECT_TRUE(SameBits(EmbedNow(*engine, alone).embedding, want.embedding)) << chunk;
    }
    EXPECT_TRUE(SameBits(from_prefix.embedding, want.embedding));
    EXPECT_TRUE(SameBits(again.embedding, want.embedding));
    EXPECT_TRUE(SameBits(without_cursor.embedding, want.embedding));
  }
}

TEST(Embeds, MeanIsThatOfThePrefixesLastRows) {
  const auto engine = LoadEngine(TinyOptions());
  Random random(8);
  const auto prompt = RandomIds(random, 40, engine->card().vocab_size);
  std::vector<double> sums(engine->card().hidden_size);
  for (size_t length = 1; length <= prompt.size(); ++length) {
    const Embedded row = EmbedNow(
        *engine, Embedding({prompt.begin(), prompt.begin() + static_cast<ptrdiff_t>(length)},
                           Pooling::kLast));
    for (size_t i = 0; i < sums.size(); ++i) sums[i] += double{row.embedding[i]};
  }
  std::vector<float> want(sums.size());
  for (size_t i = 0; i < sums.size(); ++i) {
    want[i] = static_cast<float>(sums[i] / static_cast<double>(prompt.size()));
  }
  for (const uint32_t chunk : {1u, 3u, 100u}) {
    GenerateRequest request = Embedding(prompt, Pooling::kMean);
    request.chunk_tokens = chunk;
    const Embedded mean = EmbedNow(*engine, request);
    EXPECT_EQ(mean.receipt.computed, prompt.size()) << "all rows are computed";
    EXPECT_TRUE(SameBits(mean.embedding, want)) << chunk;
  }
}

// Beside answers on a pool that is too small for all, with priorities that preempt.
TEST(Embeds, ABatchGivesTheBitsOfEachAlone) {
  EngineOptions options = TinyOptions();
  options.parallel = 4;
  options.ctx_size = 256;
  options.step_tokens = 32;
  options.kv_memory_bytes = 64 << 10;
  for (;; options.kv_memory_bytes = options.kv_memory_bytes * 5 / 4) {
    const auto plan = Engine::PlanMemory(options);
    if (plan && plan->sequences >= 2) break;
    ASSERT_LT(options.kv_memory_bytes, uint64_t{1} << 30);
  }
  const auto engine = LoadEngine(options);
  EngineOptions alone_options = TinyOptions();
  alone_options.ctx_size = 256;
  const auto alone = LoadEngine(alone_options);
  Random random(9);
  std::vector<std::vector<TokenId>> prompts;
  std::vector<std::unique_ptr<Embedded>> embedded;
  std::vector<std::unique_ptr<Pending>> answers;
  const auto shared = RandomIds(random, 33, engine->card().vocab_size);
  for (int i = 0; i < 60; ++i) {
    std::vector<TokenId> prompt = shared;
    prompt.resize(random.Below(2) * shared.size());
    const auto more = RandomIds(random, 1 + random.Below(150), engine->card().vocab_size);
    prompt.insert(prompt.end(), more.begin(), more.end());
    GenerateRequest request = Embedding(prompt, i % 2 == 0 ? Pooling::kLast : Pooling::kMean);
    request.priority = static_cast<int32_t>(random.Below(5));
    prompts.push_back(prompt);
    Submit(*engine, std::move(request), embedded.emplace_back(new Embedded).get());
    if (i % 3 != 0) continue;
    GenerateRequest talk = Greedy(RandomIds(random, 20, engine->card().vocab_size), 100);
    talk.priority = static_cast<int32_t>(random.Below(5));
    talk.ignore_eos = true;
    answers.push_back(std::make_unique<Pending>(*engine, std::move(talk)));
  }
  for (size_t i = 0; i < embedded.size(); ++i) {
    embedded[i]->done.get_future().wait();
    ASSERT_FALSE(embedded[i]->error);
    const Embedded want =
        EmbedNow(*alone, Embedding(prompts[i], i % 2 == 0 ? Pooling::kLast : Pooling::kMean));
    EXPECT_TRUE(SameBits(embedded[i]->embedding, want.embedding)) << i;
  }
  for (const auto& answer : answers) EXPECT_FALSE(answer->Wait().error);
}

TEST(Embeds, WhatHasNoEmbeddingIsRefusedByItsField) {
  const auto engine = LoadEngine(TinyOptions());
  const auto field_of = [&](const auto& change) {
    GenerateRequest request = Embedding({1, 2, 3}, Pooling::kLast);
    change(request);
    const auto refused = Pending(*engine, std::move(request)).refused();
    return refused ? refused->field.value_or("") : "taken";
  };
  EXPECT_EQ(field_of([](GenerateRequest& r) { r.max_tokens = 1; }), "max_tokens");
  EXPECT_EQ(field_of([](GenerateRequest& r) { r.n = 2; }), "n");
  EXPECT_EQ(field_of([](GenerateRequest& r) { r.embeds = Pooling::kMean; }), "embeds");
  EXPECT_EQ(field_of([](GenerateRequest& r) { r.prompt.clear(); }), "prompt");
  EXPECT_EQ(field_of([](GenerateRequest& r) { r.retention = {.policy = Retention::kWindow}; }),
            "cache.retention");
  EXPECT_EQ(field_of([](GenerateRequest& r) {
              r.spans.emplace().spans.push_back({1, 2});
            }),
            "cache.spans");
}

}  // namespace
}  // namespace kvasir
