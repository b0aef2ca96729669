// Bounded contexts beside the rest of an engine: a disk, adapters, erasures, forgets, preemptions,
// clients that leave. The bits stay those of a miss, and all blocks come back.
#include <future>

#include "retained_rows.h"

namespace kvasir {
namespace {

const std::vector<RetentionChoice> kMixed = {
    {.policy = Retention::kWindow, .budget = 64},
    {.policy = Retention::kSinksWindow, .budget = 64, .sinks = 20, .exact_tokens = 0},
    {.policy = Retention::kHeavy, .budget = 64},
    {.policy = Retention::kHeavy, .budget = 96, .sinks = 20, .exact_tokens = 0}};

std::string NameOf(const RetentionChoice& choice) {
  return std::string(ToString(choice.policy)) + " " + std::to_string(*choice.budget);
}

// What is exact comes back from the disk, and nothing else is on it.
TEST(RetentionMix, TheDiskHasWhatIsExact) {
  for (const RetentionChoice& choice : kMixed) {
    EngineOptions options = RowOptions();
    options.disk = DiskOptions{.folder = ScratchDir() / ("disk " + NameOf(choice)),
                               .cap_bytes = uint64_t{64} << 20};
    const GenerateRequest request = Bounded(RetainedPrompt(150), 90, choice);
    LogitRows want, stored, loaded;
    {
      const auto engine = LoadEngine(options);
      want = ColdRows(*engine, request);
      AskWithRows(*engine, request, stored);
      ExpectSameRows(want, stored, NameOf(choice));
    }
    const auto engine = LoadEngine(options);
    const Answer answer = AskWithRows(*engine, request, loaded);
    ExpectSameRows(want, loaded, NameOf(choice));
    const uint32_t exact = *answer.receipt.retention->inexact_from;
    const uint32_t found = choice.policy == Retention::kHeavy ? exact - 32 : exact;
    // A load leaves a token to compute.
    EXPECT_EQ(answer.receipt.reused_disk, (found - 1) / 16 * 16) << NameOf(choice);
    EXPECT_LE(engine->DiskStats()->blocks, (exact + 15) / 16) << NameOf(choice);
  }
}

TEST(RetentionMix, AdaptersHaveTheirOwnBits) {
  EngineOptions options = RowOptions();
  options.adapters.loads_later = true;
  options.adapters.max_loaded = 2;
  const auto engine = LoadEngine(options);
  const auto card = engine->LoadAdapter({.path = "", .name = "a", .scale = 0, .seed = 7},
                                        Engine::AdapterNames::kMustBeNew);
  ASSERT_TRUE(card);
  for (const RetentionChoice& choice : kMixed) {
    GenerateRequest plain = Bounded(RetainedPrompt(150), 90, choice), adapted = plain;
    adapted.adapters = std::vector<AdapterChoice>{{card->id, 1}};
    const LogitRows of_plain = ColdRows(*engine, plain), of_adapted = ColdRows(*engine, adapted);
    EXPECT_FALSE(SameBits(of_plain.at({0, 149}), of_adapted.at({0, 149})));
    for (const char* time : {"first", "second"}) {
      LogitRows rows, others;
      AskWithRows(*engine, adapted, rows);
      AskWithRows(*engine, plain, others);
      ExpectSameRows(of_adapted, rows, NameOf(choice) + time);
      ExpectSameRows(of_plain, others, NameOf(choice) + time);
    }
  }
}

// An erasure, or a forget of most of the prompt, in the middle of it or of its answer: the request
// goes on with the same bits, and leaves nothing that can be found.
TEST(RetentionMix, AnErasureOrAForgetChangesNoBit) {
  struct When {
    uint32_t at;
    bool forgets;
  };
  for (const RetentionChoice& choice : kMixed) {
    for (const When& when :
         {When{40, false}, {149, false}, {200, false}, {60, true}, {200, true}}) {
      const auto engine = LoadEngine(RowOptions());
      GenerateRequest request = Bounded(RetainedPrompt(150), 200, choice);
      request.chunk_tokens = 20;
      const LogitRows want = ColdRows(*engine, request);
      LogitRows rows;
      std::promise<void> erased;
      const auto is_erased = [&](const Erasure&) { erased.set_value(); };
      request.on_logits = [&, is_told = false](uint32_t of, uint32_t position,
                                               std::span<const float> row) mutable {
        rows[{of, position}] = std::vector(row.begin(), row.end());
        if (position != when.at || std::exchange(is_told, true)) return;
        const std::string owner = GenerateRequest().tenant;
        if (when.forgets) {
          engine->Forget({.owner = owner, .ids = RetainedPrompt(150), .first = 20, .last = 149},
                         is_erased);
        } else {
          engine->Erase(owner, is_erased);
        }
      };
      const Answer answer = Ask(*engine, std::move(request));
      EXPECT_FALSE(answer.error);
      erased.get_future().wait();
      ExpectSameRows(want, rows, NameOf(choice));
      engine->CheckInvariants();
      EXPECT_EQ(engine->Stats().pinned_blocks, 0u);
      // The block before that of a forgotten text's first token stays.
      EXPECT_EQ(engine->Stats().idle_blocks, when.forgets ? 1u : 0u)
          << NameOf(choice) << " at " << when.at;
    }
  }
}

// A request that matters more comes at some rows of two choices, and takes their place: what they
// compute again has the same bits. (A request is preempted four times at most.)
TEST(RetentionMix, PreemptionsAtAnyStepChangeNoBit) {
  constexpr uint32_t kEvery = 60;
  EngineOptions options = RowOptions();
  options.parallel = 2;
  uint32_t preemptions = 0;
  for (const RetentionChoice& choice : kMixed) {
    GenerateRequest request = Bounded(RetainedPrompt(150), 90, choice);
    request.chunk_tokens = 7;
    request.n = 2;
    request.priority = 1;
    request.sampling.temperature = 1;
    request.sampling.seed = 5;
    const LogitRows want = ColdRows(*LoadEngine(options), request);
    for (uint32_t first = 0; first < kEvery; first += 10) {
      const auto engine = LoadEngine(options);
      std::vector<std::unique_ptr<Pending>> urgent;
      uint32_t next = first;
      request.on_logits = [&](uint32_t of, uint32_t position, std::span<const float> row) {
        EXPECT_TRUE(SameBits(want.at({of, position}), row)) << NameOf(choice) << " " << position;
        if (position < next) return;
        next = position + kEvery;
        urgent.push_back(std::make_unique<Pending>(*engine, Greedy(RetainedPrompt(3, 50), 2)));
      };
      const Answer answer = Ask(*engine, request);
      EXPECT_FALSE(answer.error);
      for (const auto& one : urgent) EXPECT_FALSE(one->Wait().error);
      preemptions += answer.receipt.preemptions;
      engine->CheckInvariants();
      EXPECT_EQ(engine->Stats().pinned_blocks, 0u);
    }
  }
  EXPECT_GE(preemptions, 3 * 6 * kMixed.size());
}

// Choices drop at the prompt's end before they are forked: one of them copies what all keep.
TEST(RetentionMix, ForksShareTheCopiesOfTheirPrompt) {
  for (const RetentionChoice& choice : {kMixed[0], kMixed[2]}) {
    std::vector<uint64_t> copied;
    for (const uint32_t n : {1u, 3u}) {
      const auto engine = LoadEngine(RowOptions());
      GenerateRequest request = Bounded(RetainedPrompt(160), 10, choice);  // ends with a block
      request.n = n;
      EXPECT_FALSE(Ask(*engine, std::move(request)).error);
      copied.push_back(engine->Stats().copied_blocks);
    }
    EXPECT_GE(copied[0], 3u) << NameOf(choice);
    EXPECT_EQ(copied[1], copied[0]) << NameOf(choice);
  }
}

TEST(RetentionMix, ClientsThatLeaveGiveAllBlocksBack) {
  for (const RetentionChoice& choice : kMixed) {
    for (const uint32_t at : {10u, 130u, 149u, 151u, 230u}) {
      const auto engine = LoadEngine(RowOptions());
      GenerateRequest request = Bounded(RetainedPrompt(150), 500, choice);
      request.chunk_tokens = 30;
      request.n = 2;
      std::promise<void> reached;
      bool told = false;
      request.on_logits = [&](uint32_t of, uint32_t position, std::span<const float>) {
        if (of == 0 && position >= at && !std::exchange(told, true)) reached.set_value();
      };
      Pending pending(*engine, std::move(request));
      reached.get_future().wait();
      pending.Cancel();
      const Answer& answer = pending.Wait();
      EXPECT_EQ(answer.choices[0].finish_reason, FinishReason::kCancelled);
      engine->CheckInvariants();
      EXPECT_EQ(engine->Stats().pinned_blocks, 0u);
    }
  }
}

}  // namespace
}  // namespace kvasir
