#include "schedule/step_figures.h"

#include <gtest/gtest.h>

#include <chrono>

#include "base/own_clock.h"
#include "testing/small_runner_for_test.h"

namespace kvasir {
namespace {

constexpr uint32_t kFiguresContext = 100;

std::unique_ptr<Request> CountedRequest(uint32_t tenant, uint64_t submitted_ns) {
  auto request = std::make_unique<Request>();
  request->tenant = tenant;
  request->times.submitted_ns = submitted_ns;
  return request;
}

TEST(StepFigures, ARowsTimeIsThePromptsShareOfTheSteps) {
  StepFigures figures(kFiguresContext);
  EXPECT_EQ(figures.RowNs(), 0);
  figures.AddStep({.work = {.decode_rows = 4}, .num_rows = 4, .decode_rows = 4, .ns = 1000});
  EXPECT_EQ(figures.RowNs(), 0) << "a step that only decodes says nothing of prompts";
  figures.AddStep({.work = {.prefill_rows = 12, .decode_rows = 4},
                   .num_rows = 16,
                   .decode_rows = 4,
                   .ns = 1600});
  EXPECT_EQ(figures.RowNs(), 100);
  EXPECT_EQ(figures.stats().steps, 2u);
  EXPECT_EQ(figures.stats().decode_steps, 2u);
  EXPECT_EQ(figures.stats().decode_rows, 8u);
  EXPECT_EQ(figures.stats().prefill_rows, 12u);
  EXPECT_TRUE(figures.cost().knows_anything());
}

TEST(StepFigures, RowsOfDraftsAreNeitherOfPromptsNorOfSequences) {
  StepFigures figures(kFiguresContext);
  figures.AddStep(
      {.work = {.decode_rows = 4, .draft_rows = 8}, .num_rows = 12, .decode_rows = 4, .ns = 1200});
  EXPECT_EQ(figures.stats().decode_rows, 4u);
  EXPECT_EQ(figures.stats().prefill_rows, 0u);
  EXPECT_EQ(figures.RowNs(), 0) << "a draft says nothing of prompts";
  figures.AddStep({.work = {.prefill_rows = 10, .decode_rows = 4, .draft_rows = 6},
                   .num_rows = 20,
                   .decode_rows = 4,
                   .ns = 2000});
  EXPECT_EQ(figures.stats().prefill_rows, 10u);
  EXPECT_EQ(figures.RowNs(), 100);
}

TEST(StepFigures, RecentRowsDecideTheSpeedOfPrompts) {
  StepFigures figures(kFiguresContext);
  constexpr uint32_t kRows = 60'000;
  const auto add = [&](uint64_t row_ns) {
    figures.AddStep({.work = {.prefill_rows = kRows},
                     .num_rows = kRows,
                     .decode_rows = 0,
                     .ns = row_ns * kRows});
  };
  add(1000);
  for (int i = 0; i < 20; ++i) add(200);
  EXPECT_NEAR(figures.RowNs(), 200, 1);
}

TEST(StepFigures, TimesTheCacheAndTheModelApart) {
  OwnClock clock;
  StepFigures figures(kFiguresContext);
  const auto passes = [&](int ns) {
    return [&clock, ns] {
      clock.Advance(std::chrono::nanoseconds(ns));
      return ns;
    };
  };
  EXPECT_EQ(figures.TimedCache(passes(100)), 100);
  figures.BeginStep();
  figures.TimedCache(passes(30));
  figures.TimedModel(passes(600));
  figures.AddSampling(50);
  EXPECT_EQ(figures.cache_ns(), 130u);
  figures.AddToken(1000);
  const double* parts = figures.stats().requests.token_part_ns;
  EXPECT_EQ(parts[static_cast<size_t>(TokenPart::kCompute)], 600);
  EXPECT_EQ(parts[static_cast<size_t>(TokenPart::kCache)], 30) << "of this step alone";
  EXPECT_EQ(parts[static_cast<size_t>(TokenPart::kSample)], 50);
  EXPECT_EQ(parts[static_cast<size_t>(TokenPart::kWait)], 320);
}

TEST(StepFigures, OwnersWithoutBlocksGiveUpTheirPlaces) {
  StepFigures figures(kFiguresContext);
  for (const char* owner : {"a", "b", "a"}) figures.NoteOwner(owner, 2);
  auto& owners = figures.stats().cache_owners;
  ASSERT_EQ(owners.size(), 2u);
  owners[0].idle_blocks = 1;
  figures.NoteOwner("c", 2);
  EXPECT_EQ(owners[1].name, "c");
  owners[1].pinned_blocks = 1;
  figures.NoteOwner("d", 2);
  EXPECT_EQ(owners.size(), 2u);
  EXPECT_EQ(owners[1].name, "c");
}

TEST(StepFigures, GaugesAreThoseOfTheQueues) {
  const FakeRunner runner(SmallRunnerOptions());
  const auto cache = SmallCache(runner);
  StepFigures figures(kFiguresContext);
  figures.stats().tenants.resize(3);
  RequestQueues requests;
  requests.running.push_back(CountedRequest(1, 50));
  requests.running[0]->spec.n = 2;
  requests.running[0]->answer.sequences.push_back(std::make_unique<Sequence>());
  requests.running[0]->answer.sequences[0]->tokens.resize(7);
  requests.running.push_back(CountedRequest(1, 60));
  requests.running[1]->spec.only_when_idle = true;
  requests.waiting.push_back(CountedRequest(2, 90));
  requests.waiting.push_back(CountedRequest(1, 80));
  const RequestView views[] = {
      {.state = RequestView::State::kWaiting, .arrival_ns = 90, .follows = true},
      {.state = RequestView::State::kWaiting, .arrival_ns = 80}};
  uint32_t calls = 0;
  figures.set_on_stats([&](const EngineStats& stats) {
    ++calls;
    EXPECT_EQ(stats.running, 2u);
    EXPECT_EQ(stats.queued, 2u);
    EXPECT_EQ(stats.tenants[1].running, 2u);
    EXPECT_EQ(stats.tenants[1].waiting, 1u);
    EXPECT_EQ(stats.tenants[2].waiting, 1u);
    EXPECT_EQ(stats.requests.longest_running_tokens, 7u);
    EXPECT_EQ(stats.requests.following, 1u);
    EXPECT_EQ(stats.requests.oldest_wait_since_ns, 80u);
    EXPECT_EQ(stats.free_blocks, 64u);
  });
  figures.Publish(requests, views, *cache);
  EXPECT_EQ(calls, 1u);
}

TEST(StepFigures, WorkForLaterIsNotQueued) {
  const FakeRunner runner(SmallRunnerOptions());
  const auto cache = SmallCache(runner);
  StepFigures figures(kFiguresContext);
  RequestQueues requests;
  requests.waiting.push_back(CountedRequest(0, 90));
  requests.waiting[0]->spec.only_when_idle = true;
  figures.Publish(requests, {}, *cache);
  EXPECT_EQ(figures.stats().queued, 0u);
  EXPECT_EQ(figures.stats().requests.oldest_wait_since_ns, 0u);
}

}  // namespace
}  // namespace kvasir
