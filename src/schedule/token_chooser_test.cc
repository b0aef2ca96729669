#include "schedule/token_chooser.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "base/random.h"
#include "grammar/grammar_text.h"
#include "grammar/token_masks.h"
#include "testing/small_runner_for_test.h"

namespace kvasir {
namespace {

constexpr TokenId kChosenEnd = 3;
constexpr uint64_t kManySteps = 1'000'000;

// Requests whose prompt is {1, 2}, and a chooser of their next tokens.
class TokenChooserTest : public testing::Test {
 protected:
  TokenChooserTest()
      : runner_(SmallRunnerOptions()),
        chooser_(runner_, 4, ends_),
        trie_(std::make_shared<const TokenTrie>(Texts(), std::vector<TokenId>{kChosenEnd})),
        masks_(trie_, 1 << 20) {
    request_.spec.prompt = {1, 2};
    request_.spec.sampling.temperature = 0;
  }

  // Returns texts: token 10 is "a", 11 is "b", ...; the others have no text.
  static std::vector<std::string> Texts() {
    std::vector<std::string> texts(kSmallVocab);
    for (char c = 'a'; c <= 'z'; ++c) texts[static_cast<size_t>(10 + c - 'a')] = c;
    return texts;
  }
  static std::vector<float> Logits(std::initializer_list<std::pair<TokenId, float>> largest) {
    std::vector<float> logits(kSmallVocab, -1);
    for (const auto& [id, logit] : largest) logits[static_cast<size_t>(id)] = logit;
    return logits;
  }
  std::unique_ptr<Sequence> SequenceOf(std::vector<TokenId> answer) const {
    auto sequence = std::make_unique<Sequence>();
    sequence->tokens = request_.spec.prompt;
    sequence->tokens.insert(sequence->tokens.end(), answer.begin(), answer.end());
    if (request_.format.whole) sequence->format.emplace(request_.format.whole);
    return sequence;
  }
  void UseFormat(const char* gbnf) {
    request_.format.whole = *CompileGrammarText(FormatLanguage::kGbnf, gbnf);
    request_.format.masks = &masks_;
  }
  TokenChooser::Draw DrawOf(Sequence& sequence, const std::vector<float>& logits,
                            double steps = kManySteps) {
    chooser_.Clear();
    chooser_.Add(request_, sequence, hidden_, logits);
    chooser_.Run(std::vector<double>{steps});
    return chooser_.draws()[0];
  }
  std::optional<TokenId> TokenAfter(std::vector<TokenId> answer, const std::vector<float>& logits) {
    return DrawOf(*SequenceOf(std::move(answer)), logits).id;
  }

  FakeRunner runner_;
  const std::vector<TokenId> ends_ = {kChosenEnd};
  const float hidden_[FakeRunner::kHidden] = {};
  TokenChooser chooser_;
  const std::shared_ptr<const TokenTrie> trie_;
  TokenMasks masks_;
  Request request_;
};

TEST_F(TokenChooserTest, ForbidsEndTokensUntilThereAreEnoughTokens) {
  request_.spec.min_tokens = 2;
  request_.spec.stop_ids = {9};
  const std::vector<float> logits = Logits({{kChosenEnd, 9}, {9, 8}, {7, 7}});
  EXPECT_EQ(TokenAfter({5}, logits), 7);
  EXPECT_EQ(TokenAfter({5, 5}, logits), kChosenEnd);
}

TEST_F(TokenChooserTest, ForbidsTokensThatWouldRepeatANgram) {
  request_.spec.no_repeat_ngram_size = 2;
  const std::vector<float> logits = Logits({{2, 9}, {7, 8}});
  EXPECT_EQ(TokenAfter({1}, logits), 7) << "1, 2 is in the prompt";
  EXPECT_EQ(TokenAfter({5}, logits), 2);
}

TEST_F(TokenChooserTest, SaysWhichTokensEndAnAnswer) {
  request_.spec.stop_ids = {9};
  EXPECT_TRUE(chooser_.EndsAnswer(request_.spec, kChosenEnd));
  EXPECT_TRUE(chooser_.EndsAnswer(request_.spec, 9));
  EXPECT_FALSE(chooser_.EndsAnswer(request_.spec, 8));
  request_.spec.ignore_eos = true;
  EXPECT_FALSE(chooser_.EndsAnswer(request_.spec, kChosenEnd));
}

TEST_F(TokenChooserTest, HasNoTokenWhereALogitIsNotFinite) {
  const auto sequence = SequenceOf({});
  const TokenChooser::Draw draw = DrawOf(*sequence, Logits({{7, std::nanf("")}}));
  EXPECT_FALSE(draw.id);
  EXPECT_FALSE(draw.is_stuck || draw.waits);
}

TEST_F(TokenChooserTest, TakesTheBestTokenThatTheFormatAllows) {
  UseFormat("root ::= [bc]+");
  const std::vector<float> logits = Logits({{10, 9}, {12, 8}, {11, 7}, {kChosenEnd, 8.5f}});
  EXPECT_EQ(TokenAfter({}, logits), 12) << "neither 'a' nor an end may be first";
}

TEST_F(TokenChooserTest, IsStuckWhereTheFormatHasNoToken) {
  UseFormat("root ::= [A-Z]+");
  const auto sequence = SequenceOf({});
  const TokenChooser::Draw draw = DrawOf(*sequence, Logits({{10, 9}}));
  EXPECT_FALSE(draw.id);
  EXPECT_TRUE(draw.is_stuck);
}

TEST_F(TokenChooserTest, ADrawThatWaitedFindsTheSameToken) {
  UseFormat("root ::= [b-y]+");
  request_.spec.sampling.temperature = 1;
  std::vector<float> logits(kSmallVocab);
  Random random(1);
  for (float& logit : logits) logit = static_cast<float>(random.Uniform());
  const auto at_once = SequenceOf({});
  const std::optional<TokenId> expected = DrawOf(*at_once, logits).id;
  ASSERT_TRUE(expected);
  // The second one keeps no mask: what a row needs is in the row.
  TokenMasks kept(trie_, 1 << 20), evicted(trie_, 0);
  for (TokenMasks* masks : {&kept, &evicted}) {
    request_.format.masks = masks;
    const auto later = SequenceOf({});
    uint32_t waits = 0;
    TokenChooser::Draw draw = DrawOf(*later, logits, 0);
    for (; draw.waits; ++waits) {
      ASSERT_LT(waits, 1000u);
      WalkSteps steps(5);
      later->format_choice->Run(steps);
      draw = DrawOf(*later, logits, 0);
    }
    EXPECT_GT(waits, 0u);
    EXPECT_EQ(draw.id, expected);
  }
  EXPECT_GT(kept.bytes(), 0u);
  EXPECT_EQ(evicted.bytes(), 0u);
}

TEST_F(TokenChooserTest, ADrawDoesNotDependOnItsBatch) {
  request_.spec.sampling.temperature = 1;
  request_.spec.logprobs = 2;
  std::vector<float> logits(kSmallVocab);
  Random random(2);
  for (float& logit : logits) logit = static_cast<float>(random.Uniform());
  std::vector<std::unique_ptr<Sequence>> sequences;
  std::vector<TokenId> alone;
  for (uint32_t choice = 0; choice < 4; ++choice) {
    sequences.push_back(SequenceOf({}));
    sequences.back()->choice = choice;
    alone.push_back(DrawOf(*sequences.back(), logits).id.value());
  }
  chooser_.Clear();
  for (const auto& sequence : sequences) chooser_.Add(request_, *sequence, hidden_, logits);
  chooser_.Run({});
  std::vector<TokenId> together;
  for (const TokenChooser::Draw& draw : chooser_.draws()) {
    together.push_back(draw.id.value());
    EXPECT_EQ(draw.token.top.size(), 2u);
  }
  EXPECT_EQ(together, alone);
  EXPECT_NE(std::vector<TokenId>(4, alone[0]), alone) << "choices differ";
}

TEST_F(TokenChooserTest, AllocatesWhatItPlans) {
  EXPECT_EQ(chooser_.bytes(),
            TokenChooser::BytesFor(kSmallVocab, FakeRunner::kHidden, runner_.threads(), 4));
}

}  // namespace
}  // namespace kvasir
