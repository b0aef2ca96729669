// Adapters on one cache: what was computed with one is never used with another, whatever requests,
// scales, reloads and erases come between.
#include "engine_adapters.h"

namespace kvasir {
namespace {

TEST(EngineAdapters, APromptIsReadAgainWithOtherAdaptersAndTheReceiptSaysWhy) {
  const auto engine = LoadEngine(WithAdapters());
  const uint64_t a = LoadSeed(*engine, "a", 1).id, b = LoadSeed(*engine, "b", 2).id;
  const auto prompt = AdapterPrompt(100, 5);
  const AdaptedRow base = ComputeRow(*engine, prompt, Choices{});
  ASSERT_TRUE(base.receipt.miss);
  EXPECT_EQ(base.receipt.miss->reason, MissReason::kCold);
  for (const Choices& list :
       {Choices{{a, 1}}, Choices{{b, 1}}, Choices{{a, 0.5}}, Choices{{a, 1}, {b, 1}}}) {
    const AdaptedRow first = ComputeRow(*engine, prompt, list);
    ASSERT_TRUE(first.receipt.miss);
    EXPECT_EQ(first.receipt.miss->reason, MissReason::kAdapterChanged);
    EXPECT_EQ(first.receipt.cached_tokens(), 0u);
    EXPECT_EQ(first.receipt.adapters.size(), list.size());
    EXPECT_FALSE(first == base) << "adapters change the logits";
    EXPECT_TRUE(first == ComputeRow(*engine, prompt, list, Reuse::kNothing));
  }
  const AdaptedRow again = ComputeRow(*engine, prompt, Choices{{a, 1}});
  EXPECT_EQ(again.receipt.cached_tokens(), 99u);
  EXPECT_TRUE(again == ComputeRow(*engine, prompt, Choices{{a, 1}}, Reuse::kNothing));
  EXPECT_TRUE(base == ComputeRow(*engine, prompt, Choices{{a, 0}})) << "scale 0 acts";
  EXPECT_EQ(ComputeRow(*engine, prompt, Choices{{a, 0}}).receipt.cached_tokens(), 99u);
  engine->CheckInvariants();
}

TEST(EngineAdapters, AnEngineWithRoomForAdaptersComputesTheBitsOfOneWithout) {
  const auto with = LoadEngine(WithAdapters()), without = LoadEngine(TinyOptions());
  LoadSeed(*with, "a", 1);
  const auto prompt = AdapterPrompt(60, 9);
  EXPECT_TRUE(ComputeRow(*with, prompt, Choices{}) == ComputeRow(*without, prompt, Choices{}));
  EXPECT_EQ(with->card().content, without->card().content);
  EXPECT_GT(with->plan().adapter_bytes, 0u);
  EXPECT_EQ(without->plan().adapter_bytes, 0u);
}

TEST(EngineAdapters, ARequestUnderWayKeepsAnAdapterThatIsUnloaded) {
  const auto engine = LoadEngine(WithAdapters());
  const uint64_t a = LoadSeed(*engine, "a", 1).id;
  const auto ask = [&] {
    GenerateRequest request = Greedy(AdapterPrompt(40, 3), 120);
    request.ignore_eos = true;
    request.adapters = Choices{{a, 1}};
    return request;
  };
  const std::vector<TokenId> want = Pending(*engine, ask()).Wait().choices[0].tokens;
  Pending pending(*engine, ask());
  ASSERT_TRUE(engine->UnloadAdapter("a"));
  EXPECT_EQ(pending.Wait().choices[0].tokens, want);
  const Pending late(*engine, ask());
  ASSERT_TRUE(late.refused());
  EXPECT_EQ(late.refused()->field, "lora");
}

TEST(EngineAdapters, AForgetTakesWhatWasReadWithTheAdaptersThatItNames) {
  const auto engine = LoadEngine(WithAdapters());
  const uint64_t a = LoadSeed(*engine, "a", 1).id;
  const auto prompt = AdapterPrompt(64, 7);
  const std::string digest = ComputeRow(*engine, prompt, Choices{{a, 1}}).receipt.adapter_digest;
  EXPECT_EQ(digest.size(), 64u);
  ComputeRow(*engine, prompt, Choices{});
  ASSERT_TRUE(engine->UnloadAdapter("a")) << "a forget covers what is not loaded";
  const auto forget = [&](const std::string& adapters) {
    std::promise<Erasure> done;
    engine->Forget({.owner = "default",
                    .cache_salt = {},
                    .ids = prompt,
                    .first = 0,
                    .last = 63,
                    .adapters = adapters,
                    .kept = {}},
                   [&](const Erasure& erasure) { done.set_value(erasure); });
    return done.get_future().get().blocks;
  };
  EXPECT_GT(forget(digest), 0u);
  EXPECT_EQ(forget(digest), 0u);
  EXPECT_EQ(ComputeRow(*engine, prompt, Choices{}).receipt.cached_tokens(), 63u);
  const uint64_t again = LoadSeed(*engine, "again", 1).id;
  EXPECT_EQ(ComputeRow(*engine, prompt, Choices{{again, 1}}).receipt.cached_tokens(), 0u);
  EXPECT_EQ(ComputeRow(*engine, prompt, Choices{{again, 1}}).receipt.cached_tokens(), 63u);
  engine->Erase("default");
  EXPECT_EQ(ComputeRow(*engine, prompt, Choices{{again, 1}}).receipt.cached_tokens(), 0u);
}

TEST(EngineAdapters, ScalesOfAnOwnerTakeItsOwnNamespacesAlone) {
  EngineOptions options = WithAdapters(1);  // room for two lists of an owner
  options.max_tenants = 2;
  const auto engine = LoadEngine(options);
  const uint64_t a = LoadSeed(*engine, "a", 1).id;
  const auto prompt = AdapterPrompt(48, 2);
  const auto of_other = [&] {
    GenerateRequest request = Greedy(prompt, 1);
    request.tenant = "other";
    request.adapters = Choices{};
    return Pending(*engine, std::move(request)).Wait().receipt.cached_tokens();
  };
  of_other();
  for (int i = 1; i <= 12; ++i) {
    const Choices list{{a, i * 0.25}};
    EXPECT_EQ(ComputeRow(*engine, prompt, list).receipt.cached_tokens(), 0u) << i;
    EXPECT_EQ(ComputeRow(*engine, prompt, list).receipt.cached_tokens(), 47u) << i;
  }
  EXPECT_EQ(of_other(), 48u);
  EXPECT_EQ(ComputeRow(*engine, prompt, Choices{{a, 0.25}}).receipt.cached_tokens(), 0u)
      << "the one that was opened longest ago gave way";
  engine->CheckInvariants();
}

TEST(EngineAdapters, NoHitIsForeignInRandomHistories) {
  const AdapterHistory counts = RunAdapterHistory(20251127, 1200);
  EXPECT_EQ(counts.foreign, 0u);
  EXPECT_GT(counts.hits, 200u);
  EXPECT_GT(counts.adapted, 500u);
}

}  // namespace
}  // namespace kvasir
