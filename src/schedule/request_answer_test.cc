#include "schedule/request_answer.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "schedule/bytes_tokenizer_for_test.h"

namespace kvasir {
namespace {

constexpr TokenId kAnswerEnd = 256;

// A request with the prompt {1, 2}, whose tokens are bytes. No cache: nothing is computed.
class RequestAnswerTest : public testing::Test {
 protected:
  RequestAnswerTest() {
    request_.spec.prompt = {1, 2};
    request_.max_tokens = 10;
  }

  Sequence& Add(const Tokenizer* tokenizer) {
    if (request_.answer.sequences.empty()) request_.events.Begin(request_.spec.n);
    return AddSequence(request_, KvSequence(), tokenizer);
  }
  Sequence& Add() { return Add(tokenizer_.get()); }
  FinishReason Append(Sequence& sequence, TokenId id, TokenRole role = TokenRole::kText) {
    Event& event = request_.events.Of(sequence.choice);
    event.tokens.emplace_back().id = id;
    return AppendToken(request_, sequence, role, event);
  }
  // Appends bytes up to the first that ends the choice.
  FinishReason AppendText(Sequence& sequence, const std::string& text) {
    FinishReason reason = FinishReason::kNone;
    for (const char c : text) {
      reason = Append(sequence, static_cast<unsigned char>(c));
      if (reason != FinishReason::kNone) break;
    }
    return reason;
  }
  Event& event(uint32_t choice = 0) { return request_.events.Of(choice); }
  std::string TextOfTokens() {
    std::string text;
    for (const GeneratedToken& token : event().tokens) text += token.text;
    return text;
  }

  const std::unique_ptr<Tokenizer> tokenizer_ = BytesTokenizer();
  Request request_;
};

TEST_F(RequestAnswerTest, AnAnswerHasItsTextUntilItHasItsLength) {
  request_.max_tokens = 3;
  Sequence& sequence = Add();
  EXPECT_EQ(AppendText(sequence, "ab"), FinishReason::kNone);
  EXPECT_EQ(Append(sequence, 'c'), FinishReason::kLength);
  EXPECT_EQ(event().text, "abc");
  EXPECT_EQ(sequence.tokens, (std::vector<TokenId>{1, 2, 'a', 'b', 'c'}));
  EXPECT_EQ(request_.answer.completion_tokens, 3u);
  EXPECT_EQ(request_.answer.longest, 3u);
}

TEST_F(RequestAnswerTest, ATokenThatEndsTheAnswerCountsAndHasNoText) {
  request_.spec.echo_special = true;
  Sequence& sequence = Add();
  AppendText(sequence, "a");
  EXPECT_EQ(Append(sequence, kAnswerEnd, TokenRole::kEnd), FinishReason::kStop);
  EXPECT_EQ(event().text, "a");
  EXPECT_EQ(event().tokens.back().text, "");
  EXPECT_EQ(request_.answer.completion_tokens, 2u);
}

TEST_F(RequestAnswerTest, SpecialTokensAreShownWhereTheRequestWantsThem) {
  struct Case {
    bool echo_special;
    std::vector<TokenId> shown;
    const char* text;
  };
  for (const Case& one :
       {Case{false, {}, "a"}, Case{true, {}, "a<|end|>"}, Case{false, {kAnswerEnd}, "a<|end|>"}}) {
    request_.spec.echo_special = one.echo_special;
    request_.spec.shown_special = one.shown;
    TextStream stream = TextStreamFor(*tokenizer_, request_.spec);
    std::string text = stream.Append('a');
    text += stream.Append(kAnswerEnd);
    text += stream.Finish();
    EXPECT_EQ(text, one.text);
  }
}

TEST_F(RequestAnswerTest, AStopStringEndsTheTextAndIsNamed) {
  request_.spec.stop = {"bc"};
  Sequence& sequence = Add();
  EXPECT_EQ(AppendText(sequence, "ab"), FinishReason::kNone);
  EXPECT_EQ(event().text, "a") << "the b may begin the stop string";
  EXPECT_EQ(Append(sequence, 'c'), FinishReason::kStop);
  EXPECT_EQ(event().stop_match, "bc");
  FinishChoice(request_, 0, FinishReason::kStop);
  EXPECT_EQ(event().text, "a");
  EXPECT_EQ(TextOfTokens(), "abc");
}

TEST_F(RequestAnswerTest, TheEndOfAChoiceGivesTheTextThatWaited) {
  request_.spec.stop = {"bc"};
  AppendText(Add(), "ab\xc3");  // half a character
  EXPECT_EQ(event().text, "a");
  FinishChoice(request_, 0, FinishReason::kLength);
  EXPECT_EQ(event().text, "ab\uFFFD");
  EXPECT_EQ(TextOfTokens(), "ab\uFFFD");
  EXPECT_EQ(event().finish_reason, FinishReason::kLength);
  EXPECT_FALSE(event().stop_match);
  EXPECT_TRUE(request_.done());
}

TEST_F(RequestAnswerTest, ALineThatIsIndentedTooLittleEndsTheText) {
  request_.spec.llama_quirks.min_indent = 2;
  request_.spec.stop = {"cx", "d"};
  Sequence& sequence = Add();
  EXPECT_EQ(AppendText(sequence, "a\n  b\n c"), FinishReason::kNone) << "the c waits";
  EXPECT_EQ(Append(sequence, 'd'), FinishReason::kLength);
  EXPECT_EQ(event().text, "a\n  b\n ");
  EXPECT_FALSE(event().stop_match) << "the text ends before it";
  FinishChoice(request_, 0, FinishReason::kLength);
  EXPECT_EQ(event().text, "a\n  b\n ");
}

TEST_F(RequestAnswerTest, WithoutATokenizerThereAreTokensAlone) {
  request_.max_tokens = 2;
  Sequence& sequence = Add(nullptr);
  EXPECT_EQ(AppendText(sequence, "ab"), FinishReason::kLength);
  FinishChoice(request_, 0, FinishReason::kLength);
  EXPECT_EQ(event().tokens.size(), 2u);
  EXPECT_EQ(event().text, "");
}

TEST_F(RequestAnswerTest, LaterChoicesBeginAfterTheSamePrompt) {
  request_.spec.n = 2;
  Sequence& first = Add();
  Sequence& second = Add();
  EXPECT_EQ(second.choice, 1u);
  EXPECT_EQ(second.tokens, request_.spec.prompt);
  EXPECT_EQ(first.next_logits, 0u);
  EXPECT_EQ(second.next_logits, 2u) << "one choice gives the logits of the prompt";
  AppendText(first, "ab");
  AppendText(second, "c");
  EXPECT_EQ(request_.answer.longest, 2u);
  EXPECT_EQ(request_.answer.completion_tokens, 3u);
  FinishChoice(request_, 1, FinishReason::kLength);
  EXPECT_FALSE(request_.done());
  EXPECT_EQ(event(1).text, "c");
}

TEST_F(RequestAnswerTest, AnAnswerThatCameAtOnceHasTheSameText) {
  const std::vector<TokenId> ended = {'a', 'b', kAnswerEnd}, cut = {'a', 0xc3};
  Event event;
  request_.spec.echo_special = true;
  AddAnswer(ended, /*ended=*/true, tokenizer_.get(), request_.spec, event);
  EXPECT_EQ(event.text, "ab");
  ASSERT_EQ(event.tokens.size(), 3u);
  EXPECT_EQ(event.tokens[2].id, kAnswerEnd);
  EXPECT_EQ(event.tokens[2].text, "");
  event = {};
  AddAnswer(cut, /*ended=*/false, tokenizer_.get(), request_.spec, event);
  EXPECT_EQ(event.text, "a\uFFFD");
  EXPECT_EQ(event.tokens[1].text, "\uFFFD");
  event = {};
  AddAnswer(cut, /*ended=*/false, nullptr, request_.spec, event);
  EXPECT_EQ(event.text, "");
  EXPECT_EQ(event.tokens.size(), 2u);
}

TEST_F(RequestAnswerTest, SaysHowFarItIsWhereThatIsWanted) {
  request_.events.Begin(1);
  NoteProgress(request_, 1);
  EXPECT_FALSE(event().progress);
  request_.spec.reports_progress = true;
  request_.spec.prompt.resize(10);
  request_.answer.prefilled_tokens = 4;
  request_.times.admitted_ns = MonotonicNs() - 5'000'000;
  request_.times.first_token_ns = request_.times.admitted_ns + 2'000'000;
  NoteProgress(request_, 12);
  ASSERT_TRUE(event().progress);
  EXPECT_EQ(event().progress->total, 10u);
  EXPECT_EQ(event().progress->processed, 10u) << "tokens of the answer do not count";
  EXPECT_EQ(event().progress->cached, 6u);
  EXPECT_DOUBLE_EQ(event().progress->prompt_ms, 2);
  EXPECT_GE(event().progress->answer_ms, 3);
}

}  // namespace
}  // namespace kvasir
