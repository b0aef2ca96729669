#include "schedule/leaders.h"

#include <gtest/gtest.h>

#include <memory>
#include <utility>

#include "schedule/request_answer.h"
#include "testing/small_runner_for_test.h"

namespace kvasir {
namespace {

class LeadersTest : public testing::Test {
 protected:
  LeadersTest()
      : runner_(SmallRunnerOptions()),
        cache_(SmallCache(runner_)),
        leaders_(requests_, options_, kSmallBlockTokens) {}

  static std::unique_ptr<Request> Ask(uint64_t id, std::vector<TokenId> prompt) {
    auto request = std::make_unique<Request>();
    request->id = RequestId{id};
    request->spec.prompt = std::move(prompt);
    return request;
  }
  // Adds a running request whose prompt is being computed.
  Request& Run(uint64_t id, std::vector<TokenId> prompt) {
    auto& request = requests_.running.emplace_back(Ask(id, std::move(prompt)));
    const uint32_t tokens = request->prompt_tokens();
    MatchResult match = cache_->Match(cache_->EnterNamespace("a", {}), request->spec.prompt, {});
    request->room.reservation =
        *cache_->Reserve(match, {.prompt_tokens = tokens, .tokens = tokens});
    AddSequence(*request, cache_->Fetch(std::move(match), tokens, request->room.reservation),
                nullptr);
    return *request;
  }
  // Computes so many tokens more of the leader.
  void Compute(Request& request, uint32_t tokens) {
    KvSequence& kv = request.answer.sequences[0]->kv;
    ASSERT_TRUE(
        cache_->Extend(kv, std::span(request.spec.prompt).subspan(kv.num_committed(), tokens)));
    cache_->Commit(kv, tokens, KvCache::CommitKind::kRunning);
  }
  static std::vector<TokenId> PromptThatDiffersAt(uint32_t token) {
    std::vector<TokenId> prompt = SmallPrompt(64);
    prompt[token] = (prompt[token] + 1) % static_cast<TokenId>(kSmallVocab);
    return prompt;
  }

  const FakeRunner runner_;
  const std::unique_ptr<KvCache> cache_;
  SchedulerOptions options_;
  RequestQueues requests_;
  const Leaders leaders_;
};

TEST_F(LeadersTest, FollowsUntilTheWholeBlocksAreComputed) {
  Request& leader = Run(1, SmallPrompt(64));
  const auto request = Ask(2, PromptThatDiffersAt(40));
  EXPECT_TRUE(leaders_.Follow(*request, 0));
  EXPECT_EQ(request->wait.leader, leader.id);
  EXPECT_EQ(request->wait.leader_tokens, 40u);
  Compute(leader, 16);
  EXPECT_TRUE(leaders_.Follows(*request));
  Compute(leader, 16);
  EXPECT_FALSE(leaders_.Follows(*request)) << "the third block is not shared whole";
}

TEST_F(LeadersTest, AnEqualPromptIsFollowedToItsEnd) {
  Request& leader = Run(1, SmallPrompt(40));
  const auto request = Ask(2, SmallPrompt(40));
  ASSERT_TRUE(leaders_.Follow(*request, 0));
  Compute(leader, 32);
  EXPECT_TRUE(leaders_.Follows(*request));
  leader.answer.prompt_done = true;
  EXPECT_FALSE(leaders_.Follows(*request));
}

TEST_F(LeadersTest, NothingIsFollowedThatIsResidentOrLessThanABlock) {
  Run(1, SmallPrompt(64));
  EXPECT_FALSE(leaders_.Follow(*Ask(2, PromptThatDiffersAt(40)), 32));
  EXPECT_FALSE(leaders_.Follow(*Ask(3, PromptThatDiffersAt(15)), 0));
}

TEST_F(LeadersTest, ALeaderThatIsGoneHasNoFollowers) {
  Run(1, SmallPrompt(64));
  const auto request = Ask(2, SmallPrompt(64));
  ASSERT_TRUE(leaders_.Follow(*request, 0));
  requests_.running.clear();
  EXPECT_FALSE(leaders_.Follows(*request));
}

TEST_F(LeadersTest, OnlyRequestsThatShareACacheFollow) {
  Run(1, SmallPrompt(64));
  const auto other = Ask(2, SmallPrompt(64));
  other->spec.tenant = "other";
  EXPECT_FALSE(leaders_.Follow(*other, 0));
  const auto salted = Ask(3, SmallPrompt(64));
  salted->spec.cache_salt = "salt";
  EXPECT_FALSE(leaders_.Follow(*salted, 0));
  const auto alone = Ask(4, SmallPrompt(64));
  alone->spec.reuse = Reuse::kNothing;
  EXPECT_FALSE(leaders_.Follow(*alone, 0));
}

TEST_F(LeadersTest, OnlyRequestsWithTheSameAdaptersFollow) {
  const auto with = [](uint64_t id, uint8_t adapter) {
    auto request = Ask(id, SmallPrompt(64));
    auto set = std::make_shared<AdapterSet>();
    set->digest[0] = adapter;
    request->adapters = AdapterSeat(std::move(set));
    return request;
  };
  Request& leader = Run(1, SmallPrompt(64));
  EXPECT_FALSE(leaders_.Follow(*with(2, 1), 0)) << "the leader has none";
  leader.adapters = std::move(with(3, 1)->adapters);
  EXPECT_TRUE(leaders_.Follow(*with(4, 1), 0));
  EXPECT_FALSE(leaders_.Follow(*with(5, 2), 0));
  EXPECT_FALSE(leaders_.Follow(*Ask(6, SmallPrompt(64)), 0));
}

}  // namespace
}  // namespace kvasir
