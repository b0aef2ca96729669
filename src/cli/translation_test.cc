#include "cli/translation.h"

#include <gtest/gtest.h>

#include <cmath>

namespace kvasir::cli {
namespace {

GenerateRequest RequestOf(uint32_t n, bool beams) {
  GenerateRequest request;
  request.prompt = {2, 9};  // start, language
  request.n = n;
  if (beams) request.beams = BeamParams{};
  return request;
}

Event EventOf(uint32_t choice, std::vector<std::pair<TokenId, float>> tokens, std::string text) {
  Event event;
  event.choice = choice;
  event.text = std::move(text);
  for (const auto& [id, logprob] : tokens) {
    GeneratedToken token{};
    token.id = id;
    token.logprob = logprob;
    event.tokens.push_back(token);
  }
  return event;
}

Event Ended(Event event, FinishReason reason, bool last = false) {
  event.finish_reason = reason;
  event.last = last;
  return event;
}

TEST(CliTranslation, ASampledAnswerIsScoredAsABeamSearchWouldScoreIt) {
  for (const float penalty : {0.0F, 1.0F, 0.6F}) {
    TranslationEvents events(RequestOf(1, false), penalty);
    events.Add(EventOf(0, {{5, -0.5F}, {6, -0.25F}}, "Bon"));
    Event end = Ended(EventOf(0, {{3, -1.25F}}, "jour"), FinishReason::kStop, true);
    end.receipt.computed = 7;
    events.Add(end);
    const Translation translation = events.Take();
    ASSERT_EQ(translation.hypotheses.size(), 1U);
    EXPECT_EQ(translation.text(), "Bonjour");
    EXPECT_EQ(translation.hypotheses[0].tokens, (std::vector<TokenId>{2, 9, 5, 6, 3}));
    // One of the prompt's two tokens counts: the language.
    EXPECT_DOUBLE_EQ(translation.hypotheses[0].score, -2.0 / std::pow(4.0, double{penalty}));
    EXPECT_EQ(translation.finish_reason, FinishReason::kStop);
    EXPECT_EQ(translation.receipt.computed, 7U);
  }
}

TEST(CliTranslation, TheBestOfSeveralAnswersComesFirstAndTiesKeepTheirOrder) {
  TranslationEvents events(RequestOf(4, false), 0);
  const float sums[] = {-3, -1, -2, -1};
  for (uint32_t choice : {2U, 0U, 3U, 1U}) {  // as they end
    events.Add(Ended(EventOf(choice, {{5, sums[choice]}}, std::to_string(choice)),
                     choice == 1 ? FinishReason::kLength : FinishReason::kStop, choice == 1));
  }
  const Translation translation = events.Take();
  std::string order;
  for (const Hypothesis& one : translation.hypotheses) order += one.text;
  EXPECT_EQ(order, "1320");
  EXPECT_EQ(translation.text(), "1");
  EXPECT_EQ(translation.finish_reason, FinishReason::kLength);
}

TEST(CliTranslation, ASearchKeepsItsOrderItsScoresAndWhatItFound) {
  TranslationEvents events(RequestOf(3, true), 1);
  Event first = Ended(EventOf(0, {{5, -9.0F}}, "a"), FinishReason::kStop);
  first.score = -0.5F;
  Event second = Ended(EventOf(1, {{6, -1.0F}}, "b"), FinishReason::kLength);
  second.score = -0.25F;  // the search says what is best
  events.Add(first);
  events.Add(second);
  events.Add(Ended(EventOf(2, {}, ""), FinishReason::kLength, true));  // found no third one
  const Translation translation = events.Take();
  ASSERT_EQ(translation.hypotheses.size(), 2U);
  EXPECT_EQ(translation.text(), "a");
  EXPECT_EQ(translation.hypotheses[0].score, -0.5);
  EXPECT_EQ(translation.hypotheses[1].text, "b");
  EXPECT_EQ(translation.hypotheses[1].score, -0.25);
  EXPECT_EQ(translation.finish_reason, FinishReason::kStop);
}

TEST(CliTranslation, ASearchThatFoundNothingIsAnEmptyText) {
  TranslationEvents events(RequestOf(1, true), 1);
  events.Add(Ended(EventOf(0, {}, ""), FinishReason::kLength, true));
  const Translation translation = events.Take();
  EXPECT_TRUE(translation.hypotheses.empty());
  EXPECT_EQ(translation.text(), "");
  EXPECT_EQ(translation.finish_reason, FinishReason::kStop);
}

}  // namespace
}  // namespace kvasir::cli
