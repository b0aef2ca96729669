#include "schedule/format_choice.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "grammar/grammar_text.h"
#include "grammar/token_trie.h"

namespace kvasir {
namespace {

// An answer is letters, a colon and one digit.
class FormatChoiceTest : public testing::Test {
 protected:
  static constexpr uint32_t kHidden = 4;
  static constexpr TokenId kLetter{0}, kLetters{1}, kColon{2}, kColonDigit{3}, kEnd{5};

  FormatChoiceTest()
      : start_(*CompileGrammarText(FormatLanguage::kGbnf, "root ::= [a-z]+ \":\" [0-9]")),
        masks_(std::make_shared<const TokenTrie>(texts_, std::vector<TokenId>{kEnd}), 1 << 20),
        rows_(4, kHidden, static_cast<uint32_t>(texts_.size())) {}

  FormatChoice ChoiceAfter(std::span<const TokenId> tokens) {
    return FormatChoice(start_, tokens, masks_, rows_.Take());
  }
  // Returns the ids whose bits are set.
  static std::vector<uint32_t> IdsIn(std::span<const uint64_t> legal) {
    std::vector<uint32_t> ids;
    for (uint32_t id = 0; id < 64 * legal.size(); ++id) {
      if ((legal[id / 64] >> id % 64 & 1) != 0) ids.push_back(id);
    }
    return ids;
  }

  const std::vector<std::string> texts_{"a", "bc", ":", ":7", "7", ""};
  const Matcher start_;
  TokenMasks masks_;
  HeldRows rows_;
  WalkSteps all_;  // no limit
};

TEST_F(FormatChoiceTest, BothQuestionsHaveOneAnswer) {
  const std::vector<std::pair<std::vector<TokenId>, std::vector<uint32_t>>> places = {
      {{}, {0, 1}},
      {{kLetters}, {0, 1, 2, 3}},
      {{kLetter, kLetters, kColon}, {4}},
      {{kLetter, kColonDigit}, {5}}};
  for (const auto& [tokens, legal] : places) {
    FormatChoice choice = ChoiceAfter(tokens);
    EXPECT_EQ(IdsIn(choice.Legal(all_)), legal);
    EXPECT_EQ(IdsIn(choice.legal()), legal);
    for (uint32_t id = 0; id < texts_.size() - 1; ++id) {  // the end has no text
      const bool is_legal = std::ranges::find(legal, id) != legal.end();
      EXPECT_EQ(choice.Leads(static_cast<TokenId>(id), all_), is_legal) << id;
    }
    EXPECT_FALSE(choice.waits());
  }
}

TEST_F(FormatChoiceTest, ReadsTheTokensThatLedToItsPlace) {
  const std::vector<TokenId> tokens = {kLetter, kLetters, kColonDigit};
  FormatChoice choice = ChoiceAfter(tokens);
  const Matcher* const at = choice.At(all_);
  ASSERT_NE(at, nullptr);
  EXPECT_TRUE(at->Accepts());
  EXPECT_TRUE(at->IsAtEnd());
}

TEST_F(FormatChoiceTest, SaysWhereTheAnswerStandsAfterATokenThatLeadsOn) {
  FormatChoice choice = ChoiceAfter({});
  ASSERT_EQ(choice.Leads(kLetters, all_), true);
  FormatChoice after(choice.next(), {}, masks_, rows_.Take());
  EXPECT_EQ(after.Leads(kColon, all_), true);
  EXPECT_EQ(choice.Leads(kColon, all_), false) << "it stays where it was";
}

TEST_F(FormatChoiceTest, GoesOnWhereItsStepsWereOver) {
  const std::vector<TokenId> tokens = {kLetters, kLetters, kLetter};
  FormatChoice choice = ChoiceAfter(tokens);
  WalkSteps none(0);
  EXPECT_EQ(choice.Leads(kColon, none), std::nullopt);
  EXPECT_TRUE(choice.waits());
  // Asks, a step at a time, until there is an answer. Returns how often it had to go on.
  const auto rounds = [&choice](const auto& ask) {
    uint32_t num = 0;
    for (; num < 1000; ++num) {
      WalkSteps one(1), more(1);
      if (ask(one)) return num;
      EXPECT_TRUE(choice.waits());
      (void)choice.Run(more);
    }
    return num;
  };
  std::optional<bool> leads;
  EXPECT_GT(rounds([&](WalkSteps& few) {
              leads = choice.Leads(kColon, few);
              return leads.has_value();
            }),
            1U);
  EXPECT_EQ(leads, true);
  std::span<uint64_t> legal;
  EXPECT_GT(rounds([&](WalkSteps& few) {
              legal = choice.Legal(few);
              return !legal.empty();
            }),
            1U);
  EXPECT_EQ(IdsIn(legal), (std::vector<uint32_t>{0, 1, 2, 3}));
  EXPECT_FALSE(choice.waits());
}

}  // namespace
}  // namespace kvasir
