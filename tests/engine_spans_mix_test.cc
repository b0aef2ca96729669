// Spans beside what else decides the bits of KV, and what must not: adapters, targets, the disk,
// erasures, preemptions, clients that leave.
#include <functional>
#include <future>
#include <utility>

#include "engine_adapters.h"
#include "simd/target.h"
#include "span_documents.h"

namespace kvasir {
namespace {

// What was computed of a span with one adapter is not read with another, or at another scale.
TEST(SpansMix, AdaptersHaveSeparateSpans) {
  const auto engine = LoadEngine(WithAdapters());
  const uint64_t a = LoadSeed(*engine, "a", 1).id, b = LoadSeed(*engine, "b", 2).id;
  const Documents documents{.order = {0, 1, 2}, .seam = 8, .span_head = 1};
  Documents turned = documents;
  turned.order = {2, 0, 1};
  const std::vector<Choices> all = {{}, {{a, 1}}, {{a, 0.5}}, {{b, 1}}, {{a, 1}, {b, 1}}};
  const auto ask = [&](const Documents& of, const Choices& adapters, Reuse reuse, LogitRows& rows) {
    GenerateRequest request = of.Ask(12);
    request.adapters = adapters;
    request.reuse = reuse;
    return AskWithRows(*engine, std::move(request), rows).receipt;
  };
  std::vector<LogitRows> want(all.size());
  for (size_t i = 0; i < all.size(); ++i) {
    ask(turned, all[i], Reuse::kNothing, want[i]);
    for (size_t j = 0; j < i; ++j) EXPECT_NE(want[i].rbegin()->second, want[j].rbegin()->second);
  }
  for (const char* time : {"first", "second"}) {
    for (size_t i = 0; i < all.size(); ++i) {
      LogitRows others, rows;
      const Receipt before = ask(documents, all[i], Reuse::kBlocks, others);
      // (Later the oldest namespace may have made room for another one.)
      if (time == std::string_view("first")) {
        EXPECT_EQ(before.cached_tokens(), 0u) << i;
      }
      const Receipt receipt = ask(turned, all[i], Reuse::kBlocks, rows);
      EXPECT_EQ(receipt.spans->computed_tokens, 0u) << i;
      EXPECT_GT(receipt.spans->reused_tokens, 60u) << i;
      ExpectSameRows(want[i], rows, std::string(time) + " " + std::to_string(i));
    }
  }
  // Another adapter under the same name begins anew.
  LoadSeed(*engine, "a", 3, Engine::AdapterNames::kMayReplace);
  LogitRows rows, cold;
  EXPECT_EQ(ask(turned, all[1], Reuse::kBlocks, rows).spans->reused_tokens, 0u);
  ask(turned, all[1], Reuse::kNothing, cold);
  ExpectSameRows(cold, rows, "replaced");
  EXPECT_NE(rows.rbegin()->second, want[1].rbegin()->second);
}

// Each target reads from the disk what another one wrote there.
TEST(SpansMix, TargetsReadEachOthersSpansFromDisk) {
  const std::vector<Target> targets = SupportedTargets();
  ASSERT_GE(targets.size(), 2u);
  const Documents documents{.order = {0, 1, 2}, .between = 3, .seam = 8, .span_head = 1};
  Documents turned = documents;
  turned.order = {2, 0, 1};
  const GenerateRequest request = turned.Ask(12);
  std::map<uint32_t, std::vector<float>> want;
  for (const char* format : {"f16", "int4"}) {
    want.clear();
    for (size_t i = 0; i < targets.size(); ++i) {
      EngineOptions options = RowOptions();
      options.kv_format = format;
      options.disk = DiskOptions{
          .folder = ScratchDir() / ("span-targets-" + std::string(format) + std::to_string(i)),
          .cap_bytes = uint64_t{64} << 20};
      options.target = NameOf(targets[i]);
      LogitRows unused;
      AskWithRows(*LoadEngine(options), documents.Ask(3), unused);
      options.target = NameOf(targets[(i + 1) % targets.size()]);
      const auto engine = LoadEngine(options);
      LogitRows rows;
      const Answer answer = AskWithRows(*engine, request, rows);
      if (want.empty()) want = SpanTwinRows(request, answer, 0, kRowModel, *ParseKvFormats(format));
      const std::string what = std::string(format) + " by " + std::string(NameOf(targets[i]));
      EXPECT_GT(answer.receipt.reused_disk, 0u) << what;  // a slow load is overtaken
      EXPECT_EQ(answer.receipt.spans->reused_tokens + answer.receipt.spans->computed_tokens +
                    answer.receipt.spans->seam_tokens,
                Documents::Size(0) + Documents::Size(1) + Documents::Size(2));
      EXPECT_GT(CompareSpanRows(want, rows, 0, what), 30u);
    }
  }
}

const Documents kStepped{.order = {0, 1, 2}, .between = 3, .seam = 8, .span_head = 1};

// Makes a prompt of which each step computes a few tokens: 17 steps of its 45 or so compute parts.
GenerateRequest Stepped(uint32_t salt) {
  GenerateRequest request = kStepped.Ask(20);
  request.chunk_tokens = 9;
  request.cache_salt = std::to_string(salt);
  return request;
}

EngineOptions SteppedOptions() {
  EngineOptions options = RowOptions();
  options.speculate = Speculate::kOff;
  options.parallel = 2;
  return options;
}

// Runs a request beside an endless one, of which each step computes a token. `act` comes on the
// engine's thread, once the two have run so many steps together.
Answer AskWith(Engine& engine, GenerateRequest request, uint32_t steps,
               const std::function<void(Pending&)>& act) {
  std::promise<void> runs, asked;
  Pending* pending = nullptr;
  GenerateRequest endless = Greedy({7}, 100'000);
  endless.ignore_eos = true;
  endless.retention = RetentionChoice{.policy = Retention::kWindow, .budget = 16};
  endless.reuse = Reuse::kNothing;
  endless.on_logits = [&, seen = 0u](uint32_t, uint32_t, std::span<const float>) mutable {
    if (seen == 0) {
      runs.set_value();
      asked.get_future().wait();
    }
    if (seen++ == steps) act(*pending);
  };
  Pending beside(engine, std::move(endless));
  runs.get_future().wait();
  Pending other(engine, std::move(request));
  pending = &other;
  asked.set_value();
  Answer answer = other.Wait();
  beside.Cancel();
  beside.Wait();
  engine.CheckInvariants();
  EXPECT_EQ(engine.Stats().pinned_blocks, 0u) << steps;
  return answer;
}

TEST(SpansMix, AClientThatLeavesAtAnyStepGivesAllBlocksBack) {
  const auto engine = LoadEngine(SteppedOptions());
  uint32_t cancelled = 0;
  for (uint32_t steps = 1; steps < 40; ++steps) {
    GenerateRequest request = Stepped(steps);
    if (steps % 3 == 0) request.reuse = Reuse::kNothing;
    const Answer answer =
        AskWith(*engine, std::move(request), steps, [](Pending& pending) { pending.Cancel(); });
    cancelled += answer.choices[0].finish_reason == FinishReason::kCancelled;
  }
  EXPECT_EQ(cancelled, 39u);
}

TEST(SpansMix, APreemptionAtAnyStepChangesNoBit) {
  const auto engine = LoadEngine(SteppedOptions());
  const LogitRows want = ColdRows(*engine, Stepped(0));
  uint32_t preemptions = 0;
  for (uint32_t steps = 1; steps < 40; steps += 2) {
    GenerateRequest request = Stepped(steps);
    request.priority = 1;
    request.on_logits = [&](uint32_t of, uint32_t position, std::span<const float> row) {
      EXPECT_TRUE(SameBits(want.at({of, position}), row)) << position << ", step " << steps;
    };
    std::unique_ptr<Pending> urgent;
    const Answer answer = AskWith(*engine, std::move(request), steps, [&](Pending&) {
      urgent = std::make_unique<Pending>(*engine, Greedy(SpanText(3, 5), 2));
    });
    ASSERT_TRUE(urgent) << steps;
    EXPECT_FALSE(urgent->Wait().error);
    EXPECT_FALSE(answer.error);
    preemptions += answer.receipt.preemptions;
  }
  EXPECT_GE(preemptions, 15u);
}

// What is erased or forgotten while parts are read is not found afterwards.
TEST(SpansMix, AnErasureOrAForgetAtAnyStepChangesNoBit) {
  const auto engine = LoadEngine(SteppedOptions());
  const LogitRows want = ColdRows(*engine, Stepped(0));
  const PromptSpan second = Stepped(0).spans->spans[1];
  for (const uint32_t steps : {1u, 4u, 8u, 11u, 15u, 22u, 30u}) {
    for (const bool forgets : {false, true}) {
      GenerateRequest request = Stepped(steps);
      std::vector<TokenId> part = {request.prompt[0]};
      part.insert(part.end(), request.prompt.begin() + second.begin,
                  request.prompt.begin() + second.end);
      request.on_logits = [&](uint32_t of, uint32_t position, std::span<const float> row) {
        EXPECT_TRUE(SameBits(want.at({of, position}), row)) << position << ", step " << steps;
      };
      std::promise<void> erased;
      const auto is_erased = [&](const Erasure&) { erased.set_value(); };
      const Answer answer = AskWith(*engine, std::move(request), steps, [&](Pending&) {
        if (!forgets) return engine->Erase(GenerateRequest().tenant, is_erased);
        engine->Forget({.owner = GenerateRequest().tenant,
                        .cache_salt = std::to_string(steps),
                        .ids = part,
                        .first = 1,
                        .last = static_cast<uint32_t>(part.size()) - 1},
                       is_erased);
      });
      EXPECT_FALSE(answer.error);
      erased.get_future().wait();
      if (!forgets) {
        EXPECT_EQ(engine->Stats().idle_blocks, 0u) << steps;
      }
      Documents again = kStepped;
      again.order = {1};
      GenerateRequest asked = again.Ask(2);
      asked.cache_salt = std::to_string(steps);
      const SpansReceipt spans = Ask(*engine, std::move(asked)).receipt.spans.value();
      EXPECT_EQ(spans.reused_tokens, 0u) << steps;
      EXPECT_EQ(spans.computed_tokens, Documents::Size(1) - 8) << steps;
    }
  }
}

}  // namespace
}  // namespace kvasir
