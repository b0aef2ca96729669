// The forms of translations, from a TranslationSpec; those of whole requests: translation_test.cc.
#include "api/translation_writer.h"

#include <gtest/gtest.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "api/written_answer.h"
#include "base/parts.h"
#include "server/fake_engine_for_test.h"

namespace kvasir {
namespace {

using nlohmann::json;

Event TranslationPiece(std::string text, float logprob, bool ends) {
  Event event;
  event.text = text;
  event.tokens.push_back({.id = 7, .text = std::move(text), .logprob = logprob, .top = {}});
  if (!ends) return event;
  event.finish_reason = FinishReason::kStop;
  event.last = true;
  event.receipt.source_tokens = 5;
  event.completion_tokens = 2;
  return event;
}

TranslationSpec::Sentence SentenceOf(std::optional<size_t> request, std::string break_before = "") {
  return {.request = request, .break_before = std::move(break_before)};
}

// Returns what two texts become: one of three sentences, the second of which has no tokens, and an
// empty one.
TranslationSpec SpecOfTexts() {
  TranslationSpec spec;
  spec.texts = {{SentenceOf(0), SentenceOf(std::nullopt, "\n"), SentenceOf(1, "\n")}, {}};
  spec.splits_sentences = true;
  spec.prompt = {257, 259};
  return spec;
}

struct WrittenTranslation {
  WrittenTranslation(TranslationSpec spec, size_t requests, bool streams) {
    auto made = std::make_unique<TranslationWriter>(std::move(spec));
    writer = made.get();
    answer = std::make_unique<WrittenAnswer>(
        AnswerSpec{.stream = streams, .keeps_ids = true, .keeps_receipts = true, .model = "m"},
        requests, "1", 0, nullptr, std::move(made));
  }
  json Body() const { return json::parse(Joined(answer->Body())); }

  std::unique_ptr<WrittenAnswer> answer;
  const TranslationWriter* writer;
};

TEST(TranslationWriter, ATextHasItsSentencesAndTheBreaksBetweenThem) {
  WrittenTranslation written(SpecOfTexts(), 2, /*streams=*/false);
  EXPECT_EQ(written.answer->Take(1, TranslationPiece("B", -1, true)), "");
  EXPECT_EQ(written.answer->Take(0, TranslationPiece("A", -2, true)), "");
  const json body = written.Body();
  ASSERT_EQ(body["data"].size(), 2u);
  const json& entry = body["data"][0];
  EXPECT_EQ(entry["index"], 0);
  EXPECT_EQ(entry["text"], "A\n\nB");
  EXPECT_EQ(entry["finish_reason"], "stop");
  // Each sentence has a token, and the language before it.
  EXPECT_DOUBLE_EQ(entry["score"].get<double>(), -3.0 / 4);
  ASSERT_EQ(entry["sentences"].size(), 2u) << "one without tokens has no translation";
  EXPECT_EQ(entry["sentences"][1]["hypotheses"][0]["tokens"], json({257, 259, 7}));
  EXPECT_EQ(body["data"][1]["text"], "");
  EXPECT_EQ(body["usage"], (json{{"source_tokens", 10}, {"target_tokens", 4}}));
}

TEST(TranslationWriter, AStreamHoldsASentenceUntilThoseBeforeItAreSent) {
  WrittenTranslation written(SpecOfTexts(), 2, /*streams=*/true);
  const uint64_t at_first = written.writer->held_bytes();
  EXPECT_EQ(written.answer->Take(1, TranslationPiece("later", -1, false)), "");
  EXPECT_EQ(written.writer->held_bytes(), at_first + 5) << "it is in memory";
  const std::string first = written.answer->Take(0, TranslationPiece("A", -1, true));
  EXPECT_EQ(written.writer->held_bytes(), at_first);
  EXPECT_TRUE(first.starts_with("data: "));
  const json event = json::parse(first.substr(6, first.find("\n\n") - 6));
  EXPECT_EQ(event["data"][0]["text"], "A\n\nlater");
  EXPECT_EQ(event["data"][0]["finish_reason"], nullptr);
  const std::string last = written.answer->Take(1, TranslationPiece("", -1, true));
  EXPECT_TRUE(written.answer->done());
  EXPECT_NE(last.find(R"("index":1)"), std::string::npos) << "the empty text ends too: " << last;
  EXPECT_TRUE(last.ends_with("data: [DONE]\n\n")) << last;
}

TEST(TranslationWriter, TextsWithoutTokensAreAStreamByThemselves) {
  TranslationSpec spec;
  spec.texts = {{}, {}};
  const WrittenTranslation written(spec, 0, /*streams=*/true);
  const std::string stream = written.answer->EmptyStream();
  size_t events = 0;
  for (size_t at = 0; (at = stream.find("data: {", at)) != stream.npos; ++at) ++events;
  EXPECT_EQ(events, 3u) << "two texts, and the usage: " << stream;
  EXPECT_NE(stream.find(R"("source_tokens":0)"), std::string::npos);
  EXPECT_TRUE(stream.ends_with("data: [DONE]\n\n"));
}

TEST(TranslationWriter, AnErrorEndsAStreamAsAnEventOfItsForm) {
  const TranslationWriter writer(SpecOfTexts());
  const std::string event = writer.ErrorEvent({Code::kUnavailable, "it stops"});
  ASSERT_TRUE(event.starts_with("data: ") && event.ends_with("\n\n")) << event;
  const json said = json::parse(event.substr(6));
  EXPECT_EQ(said["data"], json::array());
  EXPECT_EQ(said["error"]["message"], "it stops");
}

TEST(TranslationWriter, LibreTranslatesFormIsAListWhereItsRequestIsOne) {
  const auto body = [](bool has_list, uint32_t alternatives) {
    TranslationSpec spec;
    spec.texts = {{SentenceOf(0)}};
    spec.prompt = {257};
    spec.libre = TranslationSpec::Libre{.has_list = has_list, .alternatives = alternatives};
    WrittenTranslation written(std::move(spec), 1, /*streams=*/false);
    written.answer->Take(0, TranslationPiece("oui", -1, true));
    return written.Body();
  };
  EXPECT_EQ(body(false, 0), (json{{"translatedText", "oui"}}));
  EXPECT_EQ(body(true, 0), (json{{"translatedText", {"oui"}}}));
  EXPECT_EQ(body(false, 2), (json{{"translatedText", "oui"}, {"alternatives", json::array()}}));
}

}  // namespace
}  // namespace kvasir
