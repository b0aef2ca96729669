// Adapters on one cache: what was computed with one is never used with another, whatever requests,
// scales, reloads and erases come between.
#include <algorithm>
#include <cstring>
#include <map>

#include "base/random.h"
#include "engine_scenario.h"

namespace kvasir {
namespace {

EngineOptions WithAdapters(uint32_t max_loaded = 3) {
  EngineOptions options = TinyOptions();
  options.adapters.loads_later = true;
  options.adapters.max_loaded = max_loaded;
  return options;
}

AdapterCard LoadSeed(Engine& engine, const std::string& name, uint64_t seed,
                     Engine::AdapterNames names = Engine::AdapterNames::kMustBeNew) {
  const auto card = engine.LoadAdapter({.path = "", .name = name, .scale = 0, .seed = seed}, names);
  EXPECT_TRUE(card) << (card ? "" : card.error().text());
  return card ? *card : AdapterCard();
}

std::vector<TokenId> AdapterPrompt(uint32_t tokens, uint64_t seed) {
  std::vector<TokenId> ids;
  for (uint32_t i = 0; i < tokens; ++i) {
    ids.push_back(static_cast<TokenId>(DrawBits(seed, 1, i) % 131));
  }
  return ids;
}

// The bits of the last row of a prompt's logits, and the receipt.
struct AdaptedRow {
  std::vector<float> logits;
  Receipt receipt;
  bool operator==(const AdaptedRow& other) const {
    return logits.size() == other.logits.size() &&
           std::memcmp(logits.data(), other.logits.data(), logits.size() * sizeof(float)) == 0;
  }
};

AdaptedRow ComputeRow(Engine& engine, const std::vector<TokenId>& prompt,
                      std::optional<std::vector<AdapterChoice>> adapters,
                      Reuse reuse = Reuse::kBlocks, std::optional<std::string> salt = {}) {
  AdaptedRow row;
  GenerateRequest request = Greedy(prompt, 1);
  request.adapters = std::move(adapters);
  request.reuse = reuse;
  request.cache_salt = std::move(salt);
  request.logits_from = static_cast<uint32_t>(prompt.size()) - 1;
  request.on_logits = [&row](uint32_t, uint32_t, std::span<const float> logits) {
    row.logits.assign(logits.begin(), logits.end());
  };
  Pending pending(engine, std::move(request));
  row.receipt = pending.Wait().receipt;
  return row;
}

using Choices = std::vector<AdapterChoice>;

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
  EXPECT_TRUE(base == ComputeRow(*engine, prompt, Choices{{a, 0}})) << "scale 0 is no adapter";
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

// Random requests, scales, salts, reloads under the same names, forgets and erases: each row of
// logits has the bits that the same numbers give without a cache.
TEST(EngineAdapters, NoHitIsForeignInRandomHistories) {
  const auto engine = LoadEngine(WithAdapters(3));
  const auto reference = LoadEngine(WithAdapters(3));
  Random random(20251127);
  std::map<std::string, uint64_t> seeds;  // by name
  const char* const kNames[] = {"x", "y"};
  const double kScales[] = {1, 0.5, -1};
  std::map<std::string, AdaptedRow> known;
  uint64_t hits = 0, adapted = 0;
  for (const char* name : kNames) {
    seeds[name] = 1;
    for (Engine* each : {engine.get(), reference.get()}) LoadSeed(*each, name, 1);
  }
  for (int step = 0; step < 1200; ++step) {
    const uint64_t action = random.Below(40);
    if (action == 0) {
      const std::string name = kNames[random.Below(2)];
      seeds[name] = 1 + random.Below(4);
      for (Engine* each : {engine.get(), reference.get()}) {
        LoadSeed(*each, name, seeds[name], Engine::AdapterNames::kMayReplace);
      }
      continue;
    }
    if (action == 1) {
      engine->Erase("default");
      continue;
    }
    const auto prompt =
        AdapterPrompt(17 + 16 * static_cast<uint32_t>(random.Below(3)), random.Below(3));
    Choices list;
    std::string key = std::to_string(prompt.size()) + ":" + std::to_string(prompt[3]);
    for (uint64_t id = 0; id < 2; ++id) {
      if (random.Below(2) == 0) continue;
      list.push_back({id, kScales[random.Below(3)]});
      key += "|" + std::to_string(seeds[kNames[id]]) + "*" + std::to_string(list.back().scale);
    }
    if (!known.contains(key)) known[key] = ComputeRow(*reference, prompt, list, Reuse::kNothing);
    const bool is_salted = random.Below(4) == 0;
    const AdaptedRow row =
        ComputeRow(*engine, prompt, list, Reuse::kBlocks,
                   is_salted ? std::optional<std::string>("salt") : std::nullopt);
    ASSERT_TRUE(row == known[key]) << "step " << step << ", " << key;
    hits += row.receipt.cached_tokens() > 0;
    adapted += !list.empty();
  }
  EXPECT_GT(hits, 200u);
  EXPECT_GT(adapted, 500u);
  engine->CheckInvariants();
}

}  // namespace
}  // namespace kvasir
