// Bounded contexts beside the rest of an engine: a disk, adapters, erasures, clients that leave.
// The bits stay those of a miss, and all blocks come back.
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

// An erasure in the middle of an answer: it goes on with the same bits, and what it held is zeroed.
TEST(RetentionMix, AnErasureChangesNoBit) {
  for (const RetentionChoice& choice : kMixed) {
    for (const uint32_t at : {40u, 149u, 200u}) {
      const auto engine = LoadEngine(RowOptions());
      GenerateRequest request = Bounded(RetainedPrompt(150), 200, choice);
      request.chunk_tokens = 20;
      const LogitRows want = ColdRows(*engine, request);
      LogitRows rows;
      std::promise<void> reached;
      request.on_logits = [&](uint32_t of, uint32_t position, std::span<const float> row) {
        rows[{of, position}] = std::vector(row.begin(), row.end());
        if (position == at) reached.set_value();
      };
      Pending pending(*engine, std::move(request));
      reached.get_future().wait();
      std::promise<void> erased;
      engine->Erase(GenerateRequest().tenant, [&](const Erasure&) { erased.set_value(); });
      const Answer& answer = pending.Wait();
      EXPECT_FALSE(answer.error);
      erased.get_future().wait();
      ExpectSameRows(want, rows, NameOf(choice));
      engine->CheckInvariants();
      EXPECT_EQ(engine->Stats().pinned_blocks, 0u);
      EXPECT_EQ(engine->Stats().idle_blocks, 0u) << NameOf(choice) << " at " << at;
    }
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
