#include "schedule/draft_model.h"

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "schedule/model_drafting_for_test.h"

namespace kvasir {
namespace {

std::map<uint32_t, std::vector<TokenId>> AnswersOf(ModelDrafting& drafting) {
  for (uint32_t i = 0; i < 5; ++i) drafting.Begin(i, DraftedSpec(i));
  drafting.Run();
  return drafting.answers;
}

TEST(DraftModel, ChangesNoAnswerWhateverItIsLike) {
  ModelDrafting plain({.has_model = false});
  const auto expected = AnswersOf(plain);
  constexpr auto kModel = static_cast<size_t>(DraftSource::kModel);
  // The same model; another one; fewer and more words; little room; a short context.
  const ModelDrafts kinds[] = {{},
                               {.draft_windows = {16}},
                               {.draft_vocab = 40},
                               {.draft_vocab = 90},
                               {.draft_blocks = 3},
                               {.draft_ctx = 40}};
  std::vector<uint32_t> accepted, drafted;
  for (const ModelDrafts& kind : kinds) {
    ModelDrafting drafting(kind);
    EXPECT_EQ(AnswersOf(drafting), expected) << &kind - kinds;
    DraftReceipt sum;
    for (uint32_t i = 0; i < 5; ++i) sum.Add(drafting.DraftsOf(i));
    drafted.push_back(sum.drafted[kModel]);
    accepted.push_back(sum.accepted[kModel]);
    EXPECT_EQ(drafting.draft_cache().usage().pinned_blocks, 0u);
  }
  // All of one's own draws are right, at any temperature and with penalties.
  EXPECT_EQ(accepted[0], drafted[0]);
  EXPECT_GT(accepted[0], 120u);
  EXPECT_GT(drafted[1], 100u);
  EXPECT_LT(accepted[1], drafted[1] / 4);
  EXPECT_LT(drafted[4], drafted[0]);
  EXPECT_GT(drafted[5], 0u);
  EXPECT_LT(drafted[5], drafted[0]);
}

// One row with a draft may take a part of the budget, and no row more than that for itself.
TEST(DraftModel, WalksFormatsWithinTheBudgetOfTheStep) {
  std::map<uint32_t, std::vector<TokenId>> expected;
  std::vector<uint32_t> drafted;
  // Plenty; 12 steps for each draft, which are two or three tokens; none.
  for (const uint64_t format_steps : {400'000, 4 * 12 * 8 / 3, 0}) {
    ModelDrafting drafting({.format_steps = format_steps});
    drafting.set_format("root ::= [a-z]+");
    for (uint32_t i = 0; i < 4; ++i) {
      GenerateRequest spec = DraftedSpec(0);
      spec.prompt[0] = static_cast<TokenId>(i);
      spec.sampling.temperature = i % 2 == 0 ? 0.0f : 1.0f;
      drafting.Begin(i, std::move(spec));
    }
    drafting.Run();
    if (expected.empty()) expected = drafting.answers;
    EXPECT_EQ(drafting.answers, expected) << format_steps;
    DraftReceipt sum;
    for (uint32_t i = 0; i < 4; ++i) sum.Add(drafting.DraftsOf(i));
    drafted.push_back(sum.drafted[static_cast<size_t>(DraftSource::kModel)]);
  }
  EXPECT_GT(drafted[0], 100u);
  EXPECT_LT(drafted[1], drafted[0]);
  EXPECT_EQ(drafted[2], 0u) << "a draft walks without a budget";
}

// Steps may leave out a sequence that was drafted for: here choices that come back after another
// request took their place, and wait for those that have more to compute again.
TEST(DraftModel, DraftsAgainForASequenceThatStepsLeftOut) {
  std::map<uint32_t, std::vector<TokenId>> expected;
  for (const bool has_model : {false, true}) {
    ModelDrafting drafting({.has_model = has_model, .draft_windows = {16}});
    GenerateRequest spec = DraftedSpec(1);
    spec.n = 4;
    spec.priority = 5;
    spec.chunk_tokens = 1;
    drafting.Begin(0, std::move(spec));
    while (drafting.answers[0].size() < 16) drafting.Step();
    drafting.Begin(1, DraftedSpec(0));
    drafting.Run();
    EXPECT_EQ(drafting.ended.at(0).receipt.preemptions, 1u);
    if (!has_model) expected = drafting.answers;
    EXPECT_EQ(drafting.answers, expected);
  }
}

// A token makes all rows of its sequence useless, whether the prompt or the answer has it.
TEST(DraftModel, StopsReadingWhereRowsAreNotFinite) {
  ModelDrafting plain({.has_model = false});
  const auto expected = AnswersOf(plain);
  uint32_t drafted = 0;
  for (TokenId token = 0; token < static_cast<TokenId>(kSmallVocab); token += 5) {
    ModelDrafting drafting({.draft_not_finite = token});
    EXPECT_EQ(AnswersOf(drafting), expected) << token;
    EXPECT_LT(drafting.draft_steps(), DraftRunner::kMostSteps) << token;
    EXPECT_EQ(drafting.draft_cache().usage().pinned_blocks, 0u);
    for (uint32_t i = 0; i < 5; ++i) drafted += drafting.DraftsOf(i).all_drafted();
  }
  EXPECT_GT(drafted, 0u) << "other sequences are drafted for";
}

TEST(DraftModel, KeepsWhatItReadForTheNextTurnOfItsOwnerAlone) {
  ModelDrafting drafting({});
  drafting.Begin(0, DraftedSpec(0));
  drafting.Run();
  EXPECT_GT(drafting.draft_cache().usage().cached_tokens, 50u);
  GenerateRequest next = DraftedSpec(0);
  next.prompt.insert(next.prompt.end(), drafting.answers[0].begin(), drafting.answers[0].end());
  const uint64_t committed = drafting.draft_cache().counters().committed_blocks;
  drafting.Begin(1, next);
  drafting.Run();
  EXPECT_LE(drafting.draft_cache().counters().committed_blocks - committed, 4u);
}

TEST(DraftModel, IsErasedAndForgottenWithTheCache) {
  for (const bool whole : {true, false}) {
    for (const bool runs : {false, true}) {
      ModelDrafting drafting({});
      const GenerateRequest spec = DraftedSpec(0);
      drafting.Begin(0, spec);
      if (runs) {
        while (drafting.answers[0].size() < 10) drafting.Step();
      } else {
        drafting.Run();
      }
      ASSERT_GT(drafting.draft_cache().usage().cached_tokens, 0u);
      bool done = false;
      const auto sink = [&](const Erasure&) {
        done = true;
        EXPECT_EQ(drafting.draft_cache().usage().cached_tokens, 0u);
      };
      if (whole) {
        drafting.scheduler().Erase("anna", sink);
      } else {
        drafting.scheduler().Forget({.owner = "anna", .ids = spec.prompt, .first = 0, .last = 19},
                                    std::make_shared<const KeptPrompts>(), sink);
      }
      EXPECT_EQ(drafting.draft_cache().usage().cached_tokens, 0u);
      drafting.Run();
      EXPECT_TRUE(done);
      EXPECT_EQ(drafting.draft_cache().usage().cached_tokens, 0u) << "nothing is published later";
      EXPECT_EQ(drafting.answers[0].size(), 40u);
    }
  }
}

// A sequence that shares nothing would be read again from its beginning.
TEST(DraftModel, KeepsWhatItReadWhereAnotherOwnerIsErased) {
  std::vector<uint32_t> steps;
  for (const bool erases : {false, true}) {
    ModelDrafting drafting({});
    const GenerateRequest spec = DraftedSpec(4);
    drafting.Begin(0, spec);
    while (drafting.answers[0].size() < 10) drafting.Step();
    if (erases) {
      Scheduler& scheduler = drafting.scheduler();
      scheduler.Erase("bob", [](const Erasure&) {});
      scheduler.EraseHere(KvCache::OwnerOf("bob"), [](const Erasure&) {});
      scheduler.Forget({.owner = "bob", .ids = spec.prompt, .first = 0, .last = 19},
                       std::make_shared<const KeptPrompts>(), [](const Erasure&) {});
    }
    drafting.Run();
    steps.push_back(drafting.draft_steps());
  }
  EXPECT_EQ(steps[0], steps[1]);
}

TEST(DraftModel, ReplaysWithAShareThatIsRight) {
  ModelDrafting drafting({.draft_windows = {16}});
  GenerateRequest spec = ReplayedSpec(0, 300, 0.7);
  drafting.Begin(0, spec);
  drafting.Run();
  EXPECT_EQ(drafting.answers[0], spec.replayed);
  const DraftReceipt drafts = drafting.DraftsOf(0);
  // 2.5 tokens of a draft of 6 are right where each is with 0.7.
  EXPECT_NEAR(drafts.all_accepted() / double(drafts.steps), 2.06, 0.4);
}

}  // namespace
}  // namespace kvasir
