// What the engine says on request while it generates: the prompt's log probabilities, progress, and
// the distribution that tokens were drawn from.
#include <algorithm>
#include <cmath>

#include "engine_scenario.h"
#include "kvasir/sampling_ranges.h"
#include "text/tokenizer.h"

namespace kvasir {
namespace {

std::vector<TokenId> Story(const Engine& engine) {
  return *engine.tokenizer()->Encode(
      "<|user|>The brass key is in the blue drawer. Where is the brass key?<|end|><|assistant|>");
}

// Returns all events of a request.
std::vector<Event> EventsOf(Engine& engine, GenerateRequest request) {
  std::vector<Event> events;
  std::promise<void> done;
  EXPECT_TRUE(engine.Submit(std::move(request), [&](const Event& event) {
    events.push_back(event);
    if (event.last) done.set_value();
  }));
  done.get_future().wait();
  return events;
}

std::vector<GeneratedToken> ScoredOf(const std::vector<Event>& events) {
  std::vector<GeneratedToken> scored;
  for (const Event& event : events) {
    scored.insert(scored.end(), event.scored.begin(), event.scored.end());
  }
  return scored;
}

GenerateRequest Scoring(std::vector<TokenId> prompt, uint32_t max_tokens) {
  GenerateRequest request = Greedy(std::move(prompt), max_tokens);
  request.logprobs = 2;
  request.scores_prompt = true;
  request.reuse = Reuse::kNothing;
  request.ignore_eos = true;
  return request;
}

// Tokens that were generated, scored as a prompt, have the same log probabilities to the bit,
// however the prompt is chunked, and although the cache has it.
TEST(Scores, OfAPromptEqualThoseOfAnAnswer) {
  const auto engine = LoadEngine(DemoOptions());
  const std::vector<TokenId> story = Story(*engine);
  GenerateRequest request = Greedy(story, 12);
  request.logprobs = 2;
  request.ignore_eos = true;
  const Answer answer = Ask(*engine, request);
  std::vector<TokenId> whole = story;
  for (const GeneratedToken& token : answer.choices[0].pieces) whole.push_back(token.id);
  for (const uint32_t chunk : {1u, 5u, 1000u}) {
    GenerateRequest scoring = Scoring(whole, chunk == 5 ? 0 : 1);
    scoring.chunk_tokens = chunk;
    scoring.n = chunk == 1 ? 2 : 1;
    const std::vector<Event> events = EventsOf(*engine, scoring);
    const std::vector<GeneratedToken> scored = ScoredOf(events);
    ASSERT_EQ(scored.size(), whole.size() - 1);
    for (size_t i = 0; i < scored.size(); ++i) EXPECT_EQ(scored[i].id, whole[i + 1]);
    for (size_t i = 0; i < answer.choices[0].pieces.size(); ++i) {
      const GeneratedToken& generated = answer.choices[0].pieces[i];
      const GeneratedToken& again = scored[story.size() - 1 + i];
      EXPECT_EQ(again.logprob, generated.logprob);
      ASSERT_EQ(again.top.size(), 2u);
      EXPECT_EQ(again.top[0].id, generated.top[0].id);
      EXPECT_EQ(again.top[1].logprob, generated.top[1].logprob);
    }
    EXPECT_EQ(events.back().receipt.computed, whole.size());
    EXPECT_EQ(events.back().receipt.miss->reason, MissReason::kDisabled);
  }
}

TEST(Scores, NeedLogprobsAndAPromptThatIsComputed) {
  const auto engine = LoadEngine(TinyOptions());
  GenerateRequest request = Scoring({1, 2, 3}, 1);
  request.reuse = Reuse::kAll;
  EXPECT_EQ(Pending(*engine, request).refused()->field, "scores_prompt");
  request = Scoring({1, 2, 3}, 1);
  request.logprobs.reset();
  EXPECT_EQ(Pending(*engine, request).refused()->field, "scores_prompt");
}

TEST(Progress, GrowsWithEachStepToTheWholePrompt) {
  const auto engine = LoadEngine(DemoOptions());
  const std::vector<TokenId> story = Story(*engine);
  Ask(*engine, Greedy({story.begin(), story.begin() + 16}, 0));  // a block of the cache
  GenerateRequest request = Greedy(story, 3);
  request.ignore_eos = true;
  request.reports_progress = true;
  request.chunk_tokens = 4;
  const std::vector<Event> events = EventsOf(*engine, request);
  ASSERT_GT(events.size(), 2u);
  uint32_t processed = 0;
  for (const Event& event : events) {
    if (!event.progress) continue;
    EXPECT_EQ(event.progress->total, story.size());
    EXPECT_GE(event.progress->processed, processed);
    EXPECT_EQ(event.progress->cached, events.back().receipt.cached_tokens());
    EXPECT_GE(event.progress->answer_ms, 0);
    processed = event.progress->processed;
  }
  EXPECT_EQ(processed, story.size());
  EXPECT_EQ(events[0].progress->processed, events.back().receipt.cached_tokens() + 4);
  EXPECT_TRUE(events[0].tokens.empty());
  request.reports_progress = false;
  for (const Event& event : EventsOf(*engine, request)) EXPECT_FALSE(event.progress);
}

TEST(SampledLogprobs, AreOfTheTokensThatMayBeDrawn) {
  const auto engine = LoadEngine(DemoOptions());
  GenerateRequest request = Greedy(Story(*engine), 8);
  request.logprobs = 5;
  request.llama_quirks.sampled_logprobs = true;
  request.ignore_eos = true;
  const Answer greedy = Ask(*engine, request);
  for (const GeneratedToken& token : greedy.choices[0].pieces) {
    EXPECT_EQ(token.logprob, 0);
    ASSERT_EQ(token.top.size(), 1u);
    EXPECT_EQ(token.top[0].id, token.id);
  }
  request.sampling.temperature = 2;
  request.sampling.top_k = 3;
  request.sampling.seed = 5;
  const Answer sampled = Ask(*engine, request);
  for (const GeneratedToken& token : sampled.choices[0].pieces) {
    ASSERT_EQ(token.top.size(), 3u);
    double sum = 0;
    for (const TokenLogprob& other : token.top) sum += std::exp(other.logprob);
    EXPECT_NEAR(sum, 1, 1e-5);
    EXPECT_TRUE(std::ranges::any_of(token.top, [&](const TokenLogprob& other) {
      return other.id == token.id && other.logprob == token.logprob;
    }));
  }
}

// The limit counts only once the text has a line end.
TEST(LineTimeout, EndsAfterALineEnd) {
  const auto engine = LoadEngine(DemoOptions());
  const TokenId line_end = engine->tokenizer()->Encode("\n", {.add_special = false})->front();
  GenerateRequest request = Greedy(Story(*engine), 60);
  request.ignore_eos = true;
  request.llama_quirks.line_timeout_ms = 0;
  request.sampling.logit_bias = {{line_end, kForbidden}};
  const Answer without = Ask(*engine, request);
  if (without.choices[0].text.find('\n') == std::string::npos) {
    EXPECT_EQ(without.completion_tokens, 60u);
  }
  request.sampling.logit_bias = {{line_end, 100}};
  const Answer with = Ask(*engine, request);
  EXPECT_LT(with.completion_tokens, 60u);
  EXPECT_EQ(with.choices[0].finish_reason, FinishReason::kLength);
  EXPECT_NE(with.choices[0].text.find('\n'), std::string::npos);
}

}  // namespace
}  // namespace kvasir
