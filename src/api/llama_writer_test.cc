#include "api/llama_writer.h"

#include <gtest/gtest.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "api/written_answer.h"
#include "server/fake_engine_for_test.h"

namespace kvasir {
namespace {

using nlohmann::json;

Event LlamaPiece(uint32_t choice, TokenId id, std::string text) {
  Event event;
  event.choice = choice;
  event.tokens.push_back({id, text});
  event.text = std::move(text);
  return event;
}

Event LlamaEnd(Event event, FinishReason reason, std::optional<std::string> stop_match = {}) {
  event.finish_reason = reason;
  event.stop_match = std::move(stop_match);
  return event;
}

Event LlamaLast(Event event, uint32_t prompt_tokens, uint32_t completion_tokens) {
  event.last = true;
  event.receipt.prompt_tokens = prompt_tokens;
  event.receipt.computed = prompt_tokens;
  event.completion_tokens = completion_tokens;
  return event;
}

// A request's answer in llama.cpp's form, of prompts with 6 tokens in a context of 8.
struct AskedLlama {
  WrittenAnswer Answer() const {
    const std::vector<uint32_t> tokens(llama.prompts.size(), 6);
    LlamaSpec spec = llama;
    spec.prompt_tokens = tokens;
    return WrittenAnswer(answer, tokens.size(), "7", 5, nullptr,
                         std::make_unique<LlamaWriter>(spec));
  }

  AnswerSpec answer = {
      .keeps_ids = true, .keeps_receipts = true, .model = "m", .fingerprint = "fp_1"};
  LlamaSpec llama = {
      .settings = R"({"seed":9})", .prompts = {"what"}, .prompt_tokens = {}, .ctx_size = 8};
};

// Returns the objects of a stream; nothing else may stand between them.
std::vector<json> LlamaEvents(const std::string& stream) {
  std::vector<json> events;
  for (size_t at = 0; at < stream.size();) {
    const size_t end = stream.find("\n\n", at);
    EXPECT_EQ(stream.substr(at, 6), "data: ");
    events.push_back(json::parse(stream.substr(at + 6, end - at - 6)));
    at = end + 2;
  }
  return events;
}

TEST(LlamaWriter, SaysWhatWasGenerated) {
  WrittenAnswer answer = AskedLlama().Answer();
  EXPECT_EQ(answer.Take(0, LlamaPiece(0, 3, "a\n")), "") << "it does not stream";
  answer.Take(0, LlamaLast(LlamaEnd(LlamaPiece(0, 4, "b"), FinishReason::kStop), 6, 2));
  ASSERT_TRUE(answer.done());
  const json body = json::parse(Joined(answer.Body()));
  EXPECT_EQ(body["content"], "a\nb");
  EXPECT_EQ(body["tokens"], json({3, 4}));
  EXPECT_EQ(body["prompt"], "what");
  EXPECT_EQ(body["generation_settings"], json({{"seed", 9}}));
  EXPECT_EQ(body["tokens_evaluated"], 6);
  EXPECT_EQ(body["tokens_predicted"], 2);
  EXPECT_EQ(body["tokens_cached"], 7) << "the last token has no KV";
  EXPECT_EQ(body["has_new_line"], true);
  EXPECT_EQ(body["stop"], true);
  EXPECT_EQ(body["stop_type"], "eos");
  EXPECT_EQ(body["stopping_word"], "");
  EXPECT_EQ(body["truncated"], false);
  EXPECT_EQ(body["id_slot"], -1);
  EXPECT_EQ(body["model"], "m");
  EXPECT_EQ(body["system_fingerprint"], "fp_1");
  EXPECT_EQ(body["timings"]["prompt_n"], 6);
  EXPECT_EQ(body["kvasir"]["computed"], 6);
  EXPECT_FALSE(body.contains("completion_probabilities"));
}

TEST(LlamaWriter, SaysWhatEndedIt) {
  const auto ended = [](FinishReason reason, std::optional<std::string> match) {
    WrittenAnswer answer = AskedLlama().Answer();
    answer.Take(0, LlamaPiece(0, 3, "a"));
    answer.Take(0, LlamaLast(LlamaEnd(LlamaPiece(0, 4, "b"), reason, std::move(match)), 6, 2));
    return json::parse(Joined(answer.Body()));
  };
  const json by_word = ended(FinishReason::kStop, "END");
  EXPECT_EQ(by_word["stop_type"], "word");
  EXPECT_EQ(by_word["stopping_word"], "END");
  EXPECT_EQ(by_word["has_new_line"], false);
  const json by_length = ended(FinishReason::kLength, std::nullopt);
  EXPECT_EQ(by_length["stop_type"], "limit");
  EXPECT_EQ(by_length["truncated"], true) << "6 + 2 tokens fill the context";
  EXPECT_EQ(ended(FinishReason::kCancelled, std::nullopt)["stop_type"], "none");
}

TEST(LlamaWriter, SeveralChoicesAreAList) {
  AskedLlama asked;
  asked.answer.n = 2;
  asked.llama.prompts = {"one", "two"};
  WrittenAnswer answer = asked.Answer();
  for (const size_t prompt : {1, 0}) {
    answer.Take(prompt, LlamaEnd(LlamaPiece(1, 1, prompt == 0 ? "b" : "d"), FinishReason::kStop));
    answer.Take(prompt, LlamaLast(LlamaEnd(LlamaPiece(0, 2, prompt == 0 ? "a" : "c"),
                                           FinishReason::kLength),
                                  6, 2));
  }
  const json body = json::parse(Joined(answer.Body()));
  ASSERT_EQ(body.size(), 4u);
  const char* contents[] = {"a", "b", "c", "d"};
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(body[i]["index"], i);
    EXPECT_EQ(body[i]["content"], contents[i]);
    EXPECT_EQ(body[i]["prompt"], i < 2 ? "one" : "two");
  }
}

TEST(LlamaWriter, AStreamHasAnEventForEachPieceAndOneForTheEnd) {
  AskedLlama asked;
  asked.answer.stream = true;
  WrittenAnswer answer = asked.Answer();
  std::string stream = answer.Take(0, LlamaPiece(0, 3, "a"));
  stream += answer.Take(0, LlamaPiece(0, 4, "b"));
  stream += answer.Take(0, LlamaLast(LlamaEnd({}, FinishReason::kStop), 6, 2));
  const std::vector<json> events = LlamaEvents(stream);
  ASSERT_EQ(events.size(), 3u);
  EXPECT_EQ(events[0]["content"], "a");
  EXPECT_EQ(events[0]["tokens"], json({3}));
  EXPECT_EQ(events[1]["content"], "b");
  EXPECT_EQ(events[1]["tokens_predicted"], 2);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(events[i]["stop"], false);
    EXPECT_FALSE(events[i].contains("kvasir"));
  }
  EXPECT_EQ(events[2]["stop"], true);
  EXPECT_EQ(events[2]["content"], "") << "the pieces had it";
  EXPECT_EQ(events[2]["stop_type"], "eos");
  EXPECT_TRUE(events[2].contains("kvasir"));
}

TEST(LlamaWriter, ResponseFieldsChooseWhatIsSaid) {
  AskedLlama asked;
  asked.llama.response_fields = {"content", "generation_settings/seed", "timings/prompt_n",
                                 "no/such"};
  WrittenAnswer answer = asked.Answer();
  answer.Take(0, LlamaLast(LlamaEnd(LlamaPiece(0, 3, "a"), FinishReason::kStop), 6, 1));
  EXPECT_EQ(json::parse(Joined(answer.Body())),
            json({{"content", "a"}, {"generation_settings/seed", 9}, {"timings/prompt_n", 6}}));
}

TEST(LlamaWriter, ProbabilitiesAreTheModelsOrThoseThatWereDrawnFrom) {
  for (const bool is_sampled : {false, true}) {
    AskedLlama asked;
    asked.answer.logprobs = 1;
    asked.llama.post_sampling_probs = is_sampled;
    WrittenAnswer answer = asked.Answer();
    Event event = LlamaPiece(0, 3, "a");
    event.tokens[0].logprob = 0;
    event.tokens[0].top = {{3, 0.0f}};
    answer.Take(0, LlamaLast(LlamaEnd(std::move(event), FinishReason::kStop), 6, 1));
    const json body = json::parse(Joined(answer.Body()));
    ASSERT_EQ(body["completion_probabilities"].size(), 1u);
    const json& token = body["completion_probabilities"][0];
    EXPECT_EQ(token["id"], 3);
    EXPECT_EQ(token[is_sampled ? "prob" : "logprob"], is_sampled ? 1.0 : 0.0);
    EXPECT_EQ(token[is_sampled ? "top_probs" : "top_logprobs"].size(), 1u);
    EXPECT_FALSE(token.contains(is_sampled ? "logprob" : "prob"));
  }
}

TEST(LlamaWriter, AnErrorIsAnEvent) {
  const WrittenAnswer answer = AskedLlama().Answer();
  const auto events = LlamaEvents(answer.ErrorEvent({Code::kIoError, "the disk is gone"}));
  ASSERT_EQ(events.size(), 1u);
  EXPECT_NE(events[0]["error"]["message"].get<std::string>().find("the disk is gone"),
            std::string::npos);
}

}  // namespace
}  // namespace kvasir
