// Requests and answers of POST /v1/translations and POST /translate.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "api/translation_request.h"
#include "api/translation_writer.h"
#include "api/written_answer.h"
#include "server/fake_engine_for_test.h"

namespace kvasir {
namespace {

using nlohmann::json;

constexpr TokenId kStart = 257, kFrench = 259;
constexpr const char* kJson = "application/json";

class TranslationTest : public testing::Test {
 protected:
  TranslationTest() {
    model_.names = {"m"};
    model_.tokenizer = tokenizer_.get();
    model_.vocab_size = tokenizer_->vocab_size();
    model_.ctx_size = 64;
    model_.max_prompts = 8;
    translation_.languages = Languages::Of(*tokenizer_);
    translation_.decoder_start = kStart;
    translation_.parallel = 8;
  }

  Result<GenerationCall> Parse(json fields) const {
    json body = {{"text", "One. Two."}, {"source", "en"}, {"target", "fr"}};
    body.update(fields);
    return ParseTranslationRequest(body.dump(), model_, translation_);
  }
  Result<GenerationCall> ParseLibre(json fields) const {
    json body = {{"q", "One. Two."}, {"source", "en"}, {"target", "fr"}};
    body.update(fields);
    return ParseLibreRequest(body.dump(), kJson, model_, translation_);
  }
  static std::string FieldOf(const Result<GenerationCall>& call) {
    return call ? "" : call.error().field.value_or("?");
  }

  static Event Piece(uint32_t choice, std::string text, float logprob) {
    Event event;
    event.choice = choice;
    event.text = text;
    event.tokens.push_back({.id = 7, .text = std::move(text), .logprob = logprob, .top = {}});
    return event;
  }
  static Event End(Event event, bool last = true) {
    event.finish_reason = FinishReason::kStop;
    event.last = last;
    event.receipt.source_tokens = 5;
    event.completion_tokens = 2;
    return event;
  }
  std::unique_ptr<WrittenAnswer> AnswerTo(Result<GenerationCall> call) const {
    const size_t requests = call->requests.size();
    return std::make_unique<WrittenAnswer>(std::move(call->spec), requests, "id", 0,
                                           tokenizer_.get(), std::move(call->writer));
  }
  static std::vector<json> EventsOf(std::string_view stream) {
    std::vector<json> events;
    while (!stream.empty()) {
      const size_t end = stream.find("\n\n");
      const std::string_view event = stream.substr(6, end - 6);
      stream.remove_prefix(end + 2);
      if (event == "[DONE]") {
        EXPECT_EQ(stream, "");
        events.emplace_back("[DONE]");
      } else {
        events.push_back(json::parse(event));
      }
    }
    return events;
  }

  std::unique_ptr<Tokenizer> tokenizer_ =
      *Tokenizer::Parse(LanguagesTokenizerJson(), kTinyTokenizerConfig);
  ModelView model_;
  TranslationModel translation_;
};

TEST_F(TranslationTest, TheFieldsOfASearchReachTheEngine) {
  const auto call = Parse({{"beams", 5},
                           {"n", 3},
                           {"length_penalty", 0.5},
                           {"early_stopping", "never"},
                           {"min_tokens", 4},
                           {"max_tokens", 9},
                           {"no_repeat_ngram_size", 2},
                           {"repetition_penalty", 1.5}});
  ASSERT_TRUE(call) << call.error().text();
  const GenerateRequest& request = call->requests.at(0);
  EXPECT_EQ(request.prompt, (std::vector<TokenId>{kStart, kFrench}));
  ASSERT_TRUE(request.beams);
  EXPECT_EQ(request.beams->beams, 5u);
  EXPECT_EQ(request.beams->length_penalty, 0.5f);
  EXPECT_EQ(request.beams->early_stopping, EarlyStopping::kNever);
  EXPECT_EQ(request.n, 3u);
  // The language counts for users, and not for the engine.
  EXPECT_EQ(request.min_tokens, 3u);
  EXPECT_EQ(request.max_tokens, 8u);
  EXPECT_EQ(request.no_repeat_ngram_size, 2u);
  EXPECT_EQ(request.sampling.repetition_penalty, 1.5f);
  EXPECT_FALSE(request.logprobs);
  EXPECT_EQ(Parse({{"beams", 2}, {"early_stopping", true}})->requests[0].beams->early_stopping,
            EarlyStopping::kTrue);
}

TEST_F(TranslationTest, WithoutBeamsAnswersAreGreedyOrSampled) {
  const auto greedy = Parse(json::object());
  EXPECT_FALSE(greedy->requests[0].beams);
  EXPECT_EQ(greedy->requests[0].sampling.temperature, 0.0f);
  EXPECT_EQ(greedy->requests[0].logprobs, 0u);
  EXPECT_EQ(greedy->requests[0].max_tokens, UINT32_MAX);
  EXPECT_EQ(Parse({{"beams", 1}, {"n", 2}, {"temperature", 0.5}})->requests[0].n, 2u);
}

TEST_F(TranslationTest, WrongFieldsAreNamed) {
  const std::pair<const char*, json> cases[] = {
      {"beams", {{"beams", 0}}},
      {"beams", {{"beams", 17}}},
      {"beams", {{"beams", 9}}},
      {"beams", {{"beams", "5"}}},
      {"n", {{"beams", 2}, {"n", 3}}},
      {"n", {{"n", 2}}},
      {"n", {{"n", 2}, {"temperature", 1}, {"stream", true}}},
      {"length_penalty", {{"length_penalty", 11}, {"beams", 2}}},
      {"length_penalty", {{"length_penalty", "NaN"}}},
      {"early_stopping", {{"early_stopping", "always"}}},
      {"early_stopping", {{"early_stopping", 1}}},
      {"min_tokens", {{"min_tokens", 5}, {"max_tokens", 4}}},
      {"min_tokens", {{"min_tokens", -1}}},
      {"max_tokens", {{"max_tokens", 0}}},
      {"max_tokens", {{"beams", 2}, {"max_tokens", 1}}},
      {"no_repeat_ngram_size", {{"no_repeat_ngram_size", -1}}},
      {"stream", {{"beams", 2}, {"stream", true}}},
      {"temperature", {{"beams", 2}, {"temperature", 0.1}}},
      {"stop", {{"beams", 2}, {"stop", "x"}}},
      {"presence_penalty", {{"beams", 2}, {"presence_penalty", 1}}},
      {"logit_bias", {{"beams", 2}, {"logit_bias", {{"65", 1}}}}},
      {"split", {{"split", "words"}}},
      {"response_format", {{"response_format", {{"type", "json_object"}}}}},
      {"source", {{"source", "auto"}}},
      {"target", {{"target", "xx"}}},
      {"text", {{"text", std::vector<std::string>(9, "a")}}},
      {"text",
       {{"text", "A. A. A. A. AA. BB. CC. DD. EE. FF. GG. HH. II. JJ."}, {"split", "sentences"}}},
  };
  for (const auto& [field, fields] : cases) EXPECT_EQ(FieldOf(Parse(fields)), field) << fields;
  EXPECT_NE(Parse({{"source", "auto"}}).error().message.find("not detected"), std::string::npos);
}

TEST_F(TranslationTest, ATextThatIsTooLongHasTheNumbersAndWhatHelps) {
  const auto said = [](const Result<GenerationCall>& call) {
    return call ? "" : call.error().message;
  };
  const std::string longer(63, 'a');
  EXPECT_EQ(said(Parse({{"text", longer}})),
            "has 65 tokens; the encoder reads at most 64 at once; \"split\": \"sentences\" "
            "translates it in parts");
  EXPECT_EQ(said(Parse({{"text", longer}, {"split", "sentences"}})),
            "has 65 tokens in a sentence; the encoder reads at most 64 at once");
  EXPECT_EQ(said(ParseLibre({{"q", longer}})),
            said(Parse({{"text", longer}, {"split", "sentences"}})));
  EXPECT_EQ(said(ParseLibre({{"q", longer}, {"split", "none"}})), said(Parse({{"text", longer}})));
  EXPECT_EQ(said(Parse({{"text", std::string(70000, 'a')}})),
            fmt::format("has more than {} tokens; the encoder reads at most 64 at once; "
                        "\"split\": \"sentences\" translates it in parts",
                        model_.max_text_tokens()));
}

TEST_F(TranslationTest, AModelForOnePairNeedsNoLanguages) {
  translation_.languages = {};
  translation_.pair = LanguagePair{.source = "en", .target = "es", .frame = {}};
  // No language stands in the answer, so one token is enough for a search.
  const auto call =
      Parse({{"source", nullptr}, {"target", nullptr}, {"beams", 2}, {"max_tokens", 1}});
  ASSERT_TRUE(call) << call.error().text();
  EXPECT_EQ(call->requests.at(0).prompt, (std::vector<TokenId>{kStart}));
  EXPECT_EQ(call->requests.at(0).max_tokens, 1u);
  const auto none = Parse({{"target", nullptr}, {"max_tokens", 0}});
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().text(), "max_tokens: is 0; give at least 1");
  const auto other = Parse(json::object());
  ASSERT_FALSE(other);
  EXPECT_EQ(other.error().field, "target");
  EXPECT_NE(other.error().message.find("'fr', but the model translates from en to es"),
            std::string::npos);
}

TEST_F(TranslationTest, LibreTextsAreSplitAndSearched) {
  const auto call = ParseLibre(json::object());
  ASSERT_TRUE(call) << call.error().text();
  ASSERT_EQ(call->requests.size(), 2u);
  EXPECT_EQ(call->requests[0].beams->beams, 4u);
  EXPECT_EQ(call->requests[0].n, 1u);
  const auto more = ParseLibre({{"alternatives", 5}, {"split", "none"}});
  ASSERT_EQ(more->requests.size(), 1u);
  EXPECT_EQ(more->requests[0].beams->beams, 6u);
  EXPECT_EQ(more->requests[0].n, 6u);
  EXPECT_FALSE(ParseLibre({{"temperature", 1}})->requests[0].beams);
  const std::pair<const char*, json> cases[] = {
      {"alternatives", {{"alternatives", 8}}},
      {"alternatives", {{"alternatives", -1}}},
      {"alternatives", {{"alternatives", 2}, {"beams", 2}}},
      {"format", {{"format", "html"}}},
      {"source", {{"source", "auto"}}},
      {"q", {{"q", nullptr}}},
      {"q", {{"q", 7}}},
      {"stream", {{"stream", true}, {"beams", 1}}},
  };
  for (const auto& [field, fields] : cases) EXPECT_EQ(FieldOf(ParseLibre(fields)), field) << fields;
  translation_.parallel = 1;
  EXPECT_FALSE(ParseLibre(json::object())->requests[0].beams);
  EXPECT_EQ(FieldOf(ParseLibre({{"alternatives", 1}})), "alternatives");
}

TEST_F(TranslationTest, LibreTranslateSearchesWithAsManyBeamsAsTheTenantMayHave) {
  const std::string body = R"({"q":"One.","source":"en","target":"fr"})";
  const auto beams = [&](uint32_t max_running) {
    const auto call = ParseLibreRequest(body, kJson, model_, translation_, max_running);
    const auto& search = call->requests.at(0).beams;
    return search ? search->beams : 1;
  };
  EXPECT_EQ(beams(1), 1u);
  EXPECT_EQ(beams(2), 2u);
  EXPECT_EQ(beams(6), 4u);
}

TEST_F(TranslationTest, ErrorsOfLibreSpeakOfNoBeamsThatTheBodyDoesNotHave) {
  const auto said = [this](const json& fields) { return ParseLibre(fields).error().message; };
  EXPECT_EQ(said({{"stream", true}}), "is for POST /v1/translations; leave it out here");
  EXPECT_EQ(said({{"stream", true}, {"beams", 2}}), said({{"stream", true}}));
  EXPECT_EQ(said({{"presence_penalty", 1}}),
            R"(a beam search has none; leave it out, or give "beams": 1)");
  EXPECT_TRUE(ParseLibre({{"presence_penalty", 1}, {"beams", 1}}));
  EXPECT_EQ(said({{"presence_penalty", 1}, {"beams", 2}}),
            "a beam search has none; leave out this or beams");
}

TEST_F(TranslationTest, AFormSaysTheSameAsJson) {
  const std::string form =
      "q=One.+Two%21&source=en&target=fr&alternatives=2&max_tokens=9&api_key=7";
  constexpr const char* kForm = "application/x-www-form-urlencoded";
  const auto call = ParseLibreRequest(form, kForm, model_, translation_);
  ASSERT_TRUE(call) << call.error().text();
  EXPECT_EQ(call->requests.size(), 2u);
  EXPECT_EQ(call->requests[0].n, 3u);
  EXPECT_EQ(call->requests[0].max_tokens, 8u);
  EXPECT_EQ(KeyInLibreBody(form, kForm), "7");
  EXPECT_EQ(KeyInLibreBody(R"({"api_key":"k"})", kForm), "k");
  EXPECT_EQ(KeyInLibreBody(R"({"api_key":7})", kJson), "");
  EXPECT_EQ(KeyInLibreBody("%", kForm), "");
  EXPECT_EQ(FieldOf(ParseLibreRequest(form + "&q=x", kForm, model_, translation_)), "form");
  EXPECT_EQ(
      FieldOf(ParseLibreRequest("q=a&source=en&target=fr&beams=two", kForm, model_, translation_)),
      "beams");
}

TEST_F(TranslationTest, TheScoreIsThatOfABeamSearch) {
  auto answer = AnswerTo(Parse({{"text", {"a", ""}}, {"length_penalty", 2}}));
  answer->Take(0, Piece(0, "w", -1));
  answer->Take(0, End(Piece(0, "x", -2)));
  ASSERT_TRUE(answer->done());
  const json body = json::parse(Joined(answer->Body()));
  const json& entry = body.at("data").at(0);
  EXPECT_EQ(entry.at("text"), "wx");
  // The language is the third token.
  EXPECT_DOUBLE_EQ(entry.at("score"), -3.0 / 9);
  EXPECT_EQ(entry.at("hypotheses"),
            json({{{"text", "wx"}, {"tokens", {kStart, kFrench, 7, 7}}, {"score", -3.0 / 9}}}));
  EXPECT_EQ(body.at("data").at(1), (json{{"index", 1}, {"text", ""}, {"finish_reason", "stop"}}));
  EXPECT_EQ(body.at("usage"), (json{{"source_tokens", 5}, {"target_tokens", 2}}));
}

TEST_F(TranslationTest, SamplesStandTheBestFirst) {
  auto answer = AnswerTo(Parse({{"n", 2}, {"temperature", 1}}));
  answer->Take(0, End(Piece(0, "worse", -2), false));
  answer->Take(0, End(Piece(1, "better", -1)));
  const json entry = json::parse(Joined(answer->Body())).at("data").at(0);
  EXPECT_EQ(entry.at("text"), "better");
  EXPECT_EQ(entry.at("hypotheses").at(1).at("text"), "worse");
}

TEST_F(TranslationTest, AHypothesisThatTheSearchDidNotFindIsLeftOut) {
  auto answer = AnswerTo(Parse({{"beams", 2}, {"n", 2}}));
  Event found = Piece(0, "a", 0);
  found.score = -0.5f;
  answer->Take(0, End(std::move(found), false));
  Event missing;
  missing.choice = 1;
  answer->Take(0, End(std::move(missing)));
  const json entry = json::parse(Joined(answer->Body())).at("data").at(0);
  EXPECT_EQ(entry.at("hypotheses").size(), 1u);
  EXPECT_EQ(entry.at("score"), -0.5);
}

TEST_F(TranslationTest, AnEntrySaysWhatEndedItsText) {
  for (const bool streams : {false, true}) {
    auto answer = AnswerTo(Parse({{"text", {"a", "b"}}, {"stop", "w"}, {"stream", streams}}));
    Event stopped = End(Piece(0, "", -1));
    stopped.stop_match = "w";
    std::string stream = answer->Take(0, stopped);
    stream += answer->Take(1, End(Piece(0, "x", -1)));
    const json first = streams ? EventsOf(stream).at(0).at("data").at(0)
                               : json::parse(Joined(answer->Body())).at("data").at(0);
    EXPECT_EQ(first.at("stop_reason"), "w");
    if (streams) continue;
    EXPECT_FALSE(json::parse(Joined(answer->Body())).at("data").at(1).contains("stop_reason"));
  }
}

// Only a piece of a body is in memory, however many hypotheses a text has.
TEST_F(TranslationTest, BodiesComeInPieces) {
  model_.max_prompts = 64;
  model_.ctx_size = 2048;
  std::string text;
  for (int i = 0; i < 64; ++i) text += "One. ";
  const json fields = {{"split", "sentences"}, {"beams", 4}};
  const auto longest_piece = [&](Result<GenerationCall> call, uint32_t n) {
    auto answer = AnswerTo(std::move(call));
    for (size_t sentence = 0; sentence < 64; ++sentence) {
      for (uint32_t choice = 0; choice < n; ++choice) {
        Event event = Piece(choice, std::string(1000, 'a' + static_cast<char>(choice)), 0);
        event.tokens.resize(1000, event.tokens.front());
        event.score = -1.0f - static_cast<float>(choice);
        answer->Take(sentence, End(std::move(event), choice + 1 == n));
      }
    }
    EXPECT_TRUE(answer->done());
    size_t longest = 0, all = 0;
    Parts body = answer->Body();
    for (std::string piece = body.Next(); !piece.empty(); piece = body.Next()) {
      longest = std::max(longest, piece.size());
      all += piece.size();
    }
    EXPECT_GT(all, 64u * n * 1000);
    return longest;
  };
  json of_ours = fields, of_libre = fields;
  of_ours.update({{"text", text}, {"n", 4}});
  of_libre.update({{"q", text}, {"alternatives", 3}});
  EXPECT_LT(longest_piece(Parse(of_ours), 4), 4 * kPartBytes);
  EXPECT_LT(longest_piece(ParseLibre(of_libre), 4), 4 * kPartBytes);
}

TEST_F(TranslationTest, SentencesAreJoinedAndScoredTogether) {
  auto answer = AnswerTo(Parse({{"text", "One.\n\nTwo. Three."}, {"split", "sentences"}}));
  answer->Take(2, End(Piece(0, "C", -1)));
  answer->Take(0, End(Piece(0, "A", -1)));
  Event cut = End(Piece(0, "B", -4));
  cut.finish_reason = FinishReason::kLength;
  answer->Take(1, cut);
  const json entry = json::parse(Joined(answer->Body())).at("data").at(0);
  EXPECT_EQ(entry.at("text"), "A\n\nB C");
  EXPECT_EQ(entry.at("finish_reason"), "length");
  EXPECT_DOUBLE_EQ(entry.at("score"), -6.0 / 6);
  ASSERT_EQ(entry.at("sentences").size(), 3u);
  EXPECT_EQ(entry.at("sentences").at(1).at("text"), "B");
  EXPECT_EQ(entry.at("sentences").at(1).at("kvasir").at("source_tokens"), 5);
}

TEST_F(TranslationTest, AStreamHasTheSentencesInTheirOrder) {
  auto answer =
      AnswerTo(Parse({{"text", {"One. Two.", "", "x"}}, {"split", "sentences"}, {"stream", true}}));
  std::string stream = answer->Take(1, End(Piece(0, "B", -1)));  // waits for the first
  EXPECT_EQ(stream, "");
  stream += answer->Take(0, Piece(0, "A", -1));
  stream += answer->Take(2, Piece(0, "X", -1));
  stream += answer->Take(0, End(Piece(0, "a", -1)));
  stream += answer->Take(2, End(Piece(0, "x", -1)));
  ASSERT_TRUE(answer->done());
  const std::vector<json> events = EventsOf(stream);
  std::vector<std::string> texts(3);
  std::vector<int> ends(3);
  for (const json& event : events) {
    if (event == "[DONE]" || event.contains("usage")) continue;
    const json& entry = event.at("data").at(0);
    const size_t index = entry.at("index");
    EXPECT_EQ(ends[index], 0) << "nothing comes after the end";
    texts[index] += entry.at("text").get<std::string>();
    if (!entry.at("finish_reason").is_null()) ++ends[index];
  }
  EXPECT_EQ(texts, (std::vector<std::string>{"Aa B", "", "Xx"}));
  EXPECT_EQ(ends, (std::vector<int>{1, 1, 1}));
  EXPECT_EQ(events[events.size() - 2].at("usage").at("source_tokens"), 15);
  EXPECT_EQ(events.back(), "[DONE]");
}

TEST_F(TranslationTest, AlternativesAreOtherTextsOnly) {
  const auto body = [this](const json& q) {
    auto answer = AnswerTo(ParseLibre({{"q", q}, {"alternatives", 2}, {"split", "none"}}));
    uint32_t choice = 0;
    for (const char* text : {"best", "best", "other"}) {
      Event event = Piece(choice, text, 0);
      event.score = -1.0f - static_cast<float>(choice);
      answer->Take(0, End(std::move(event), ++choice == 3));
    }
    return json::parse(Joined(answer->Body()));
  };
  EXPECT_EQ(body("a"), (json{{"translatedText", "best"}, {"alternatives", {"other"}}}));
  EXPECT_EQ(body({"a"}), (json{{"translatedText", {"best"}},
                               {"alternatives", json::array({json::array({"other"})})}}));
}

}  // namespace
}  // namespace kvasir
