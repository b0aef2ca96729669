#include "schedule/request_queues.h"

#include <gtest/gtest.h>

#include <string>

namespace kvasir {
namespace {

std::unique_ptr<Request> RequestOf(uint64_t id, uint64_t submitted_ns) {
  auto request = std::make_unique<Request>();
  request->id = RequestId{id};
  request->times.submitted_ns = submitted_ns;
  request->spec.prompt = {1, 2, 3};
  return request;
}

std::vector<uint64_t> IdsOf(const auto& requests) {
  std::vector<uint64_t> ids;
  for (const auto& request : requests) ids.push_back(static_cast<uint64_t>(request->id));
  return ids;
}

using Ids = std::vector<uint64_t>;

TEST(RequestQueues, RunningRequestsStandByAge) {
  RequestQueues queues;
  for (const uint64_t id : {3, 1, 2}) queues.waiting.push_back(RequestOf(id, id * 10));
  queues.waiting.push_back(RequestOf(4, 20));  // as old as 2: the lower id is the older one
  while (!queues.waiting.empty()) queues.Admit(queues.waiting.size() - 1);
  EXPECT_EQ(IdsOf(queues.running), (Ids{1, 2, 4, 3}));
}

TEST(RequestQueues, PreemptedRequestsGoBeforeThoseThatNeverRan) {
  RequestQueues queues;
  for (const uint64_t id : {1, 2, 3}) queues.running.push_back(RequestOf(id, id * 10));
  queues.waiting.push_back(RequestOf(9, 5));
  for (const size_t running : {1, 1, 0}) {
    queues.running[running]->resume.preempted = true;
    queues.Preempt(running);
  }
  EXPECT_EQ(IdsOf(queues.waiting), (Ids{1, 2, 3, 9}));
  EXPECT_TRUE(queues.running.empty());
}

TEST(RequestQueues, PutBackGoesFirst) {
  RequestQueues queues;
  queues.waiting.push_back(RequestOf(1, 10));
  queues.running.push_back(RequestOf(2, 20));
  queues.PutBack(0);
  EXPECT_EQ(IdsOf(queues.waiting), (Ids{2, 1}));
}

TEST(RequestQueues, SpareRequestsBeginOneByOneAndOnlyWhenNothingElseIsThere) {
  RequestQueues queues;
  for (const uint64_t id : {1, 2}) queues.spare.push_back(RequestOf(id, id));
  queues.BeginSpare();
  queues.BeginSpare();
  EXPECT_EQ(IdsOf(queues.waiting), (Ids{1}));
  queues.Admit(0);
  queues.BeginSpare();
  EXPECT_EQ(IdsOf(queues.spare), (Ids{2}));
}

TEST(RequestQueues, CollectsThoseThatAreDone) {
  RequestQueues queues;
  for (const uint64_t id : {1, 2, 3}) queues.running.push_back(RequestOf(id, id));
  queues.running[1]->events.Begin(1);
  queues.running[1]->events.End(0, FinishReason::kStop);
  queues.CollectEnded();
  EXPECT_EQ(IdsOf(queues.running), (Ids{1, 3}));
  EXPECT_EQ(IdsOf(queues.ended), (Ids{2}));
  EXPECT_FALSE(queues.empty());
}

TEST(RequestQueues, FindsTheRequestsOfATenantInEachQueue) {
  RequestQueues queues;
  for (uint32_t tenant = 0; tenant < 4; ++tenant) {
    auto request = RequestOf(tenant, tenant);
    request->tenant = tenant;
    if (tenant == 0)
      queues.waiting.push_back(std::move(request));
    else if (tenant == 1)
      queues.running.push_back(std::move(request));
    else if (tenant == 2)
      queues.spare.push_back(std::move(request));
    else
      queues.ended.push_back(std::move(request));
  }
  for (uint32_t tenant = 0; tenant < 4; ++tenant) EXPECT_TRUE(queues.HasRequestOf(tenant));
  EXPECT_FALSE(queues.HasRequestOf(4));
}

TEST(RequestQueues, StopsSharingOfTheOwnersRequestsThatBeginWithThePath) {
  RequestQueues queues;
  for (const uint64_t id : {1, 2, 3, 4}) queues.waiting.push_back(RequestOf(id, id));
  queues.waiting[0]->spec.tenant = "other";
  queues.waiting[1]->spec.prompt = {1, 2, 4};
  // The path may reach into an answer.
  queues.waiting[2]->answer.sequences.push_back(std::make_unique<Sequence>());
  queues.waiting[2]->answer.sequences[0]->tokens = {1, 2, 3, 7};
  queues.StopSharing("default", std::vector<TokenId>{1, 2, 3, 7});
  std::vector<bool> erased;
  for (const auto& request : queues.waiting) erased.push_back(request->is_erased);
  EXPECT_EQ(erased, (std::vector<bool>{false, false, true, false}));
  queues.StopSharing("default", {});
  EXPECT_FALSE(queues.waiting[0]->is_erased);
  EXPECT_TRUE(queues.waiting[1]->is_erased && queues.waiting[3]->is_erased);
}

// A request that waits or is preempted has no sequence of its parts.
TEST(RequestQueues, StopsSharingOfSpansThatBeginWithThePath) {
  RequestQueues queues;
  auto request = RequestOf(1, 1);
  request->spec.prompt = {1, 2};
  for (TokenId token = 0; token < 80; ++token) request->spec.prompt.push_back(10 + token % 40);
  request->spec.prompt.push_back(3);
  request->spans.plan = *SpanPlan::Create({.spans = {{2, 42}, {42, 82}}, .seam = 0, .head = 1}, 83);
  queues.waiting.push_back(std::move(request));
  const auto is_erased = [&](const std::vector<TokenId>& path) {
    queues.waiting[0]->is_erased = false;
    queues.StopSharing("default", path);
    return queues.waiting[0]->is_erased;
  };
  EXPECT_TRUE(is_erased({1, 10, 11}));
  EXPECT_TRUE(is_erased({1, 2, 10}));
  EXPECT_FALSE(is_erased({1, 11}));
  EXPECT_FALSE(is_erased({2, 10, 11}));
  std::vector<TokenId> span{1};
  for (TokenId token = 0; token < 40; ++token) span.push_back(10 + token);
  EXPECT_TRUE(is_erased(span));
  span.push_back(10);
  EXPECT_FALSE(is_erased(span)) << "a part ends with its span";
}

}  // namespace
}  // namespace kvasir
