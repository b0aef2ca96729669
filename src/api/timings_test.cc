#include "api/timings.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace kvasir {
namespace {

TEST(Timings, SayWhatTheReceiptSays) {
  Receipt receipt;
  receipt.computed = 30;
  receipt.reused_pool = 8;
  receipt.reused_disk = 2;
  receipt.queue_ms = 500;  // waiting is not prompt_ms
  receipt.cache_ms = 1;
  receipt.load_ms = 4;
  receipt.compute_ms = 10;
  receipt.tpot_ms = 2;
  const nlohmann::json timings = TimingsJson(TimingsOf(receipt, 6, 1, 6));
  EXPECT_EQ(timings, nlohmann::json::parse(R"({"cache_n":10,"prompt_n":30,"prompt_ms":15.0,
      "prompt_per_token_ms":0.5,"prompt_per_second":2000.0,"predicted_n":6,"predicted_ms":10.0,
      "predicted_per_token_ms":2.0,"predicted_per_second":500.0})"));
}

TEST(Timings, SayWhatWasDrafted) {
  Receipt receipt;
  EXPECT_FALSE(TimingsJson(TimingsOf(receipt, 6, 1, 6)).contains("draft_n"));
  receipt.draft = {.steps = 2, .drafted = {8, 3}, .accepted = {2, 3}};
  Timings sum = TimingsOf(receipt, 6, 1, 6);
  sum.Add(sum);
  EXPECT_EQ(TimingsJson(sum)["draft_n"], 22);
  EXPECT_EQ(TimingsJson(sum)["draft_n_accepted"], 10);
}

TEST(Timings, NoTimeIsNoSpeed) {
  const nlohmann::json timings = TimingsJson(TimingsOf(Receipt(), 0, 0, 0));
  EXPECT_EQ(timings["prompt_per_second"], 0);
  EXPECT_EQ(timings["prompt_per_token_ms"], 0);
  EXPECT_EQ(timings["predicted_per_token_ms"], 0);
  EXPECT_EQ(timings["predicted_ms"], 0);
  EXPECT_EQ(timings["predicted_per_second"], 0);
}

// Two choices at once give two tokens a step; the first of each came with the prompt.
TEST(Timings, OfChoicesAndPromptsAreSumsOfTokens) {
  Receipt receipt;
  receipt.computed = 4;
  receipt.compute_ms = 8;
  receipt.tpot_ms = 10;
  Timings sum = TimingsOf(receipt, 5, 2, 3);
  EXPECT_EQ(sum.later, 3u);
  EXPECT_EQ(sum.predicted_ms, 20);
  receipt.compute_ms = 2;
  sum.Add(TimingsOf(receipt, 1, 1, 1));
  EXPECT_EQ(sum.computed, 8u);
  EXPECT_EQ(sum.predicted, 6u);
  EXPECT_EQ(sum.prompt_ms, 8);
  EXPECT_EQ(TimingsJson(sum)["predicted_per_second"], 150);
}

TEST(Timings, OfARunningRequestCountTheWholePrompt) {
  const Timings timings =
      TimingsOf(Progress{.processed = 9, .cached = 4, .prompt_ms = 5, .answer_ms = 3}, 2);
  EXPECT_EQ(timings.cached, 4u);
  EXPECT_EQ(timings.computed, 5u);
  EXPECT_EQ(TimingsJson(timings)["prompt_per_second"], 1000);
}

}  // namespace
}  // namespace kvasir
