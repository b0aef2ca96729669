#include "schedule/request_matcher.h"

#include <gtest/gtest.h>

#include "schedule/scheduler_parts_for_test.h"

namespace kvasir {
namespace {

constexpr uint32_t kMatchedPrompt = 40;

// The cache of tenant "default" has a prompt.
class RequestMatcherTest : public testing::Test {
 protected:
  RequestMatcherTest() {
    Request& request = parts_.Run(Spec());
    parts_.ComputePrompt(request, kMatchedPrompt);
    KvSequence& kv = request.answer.sequences[0]->kv;
    parts_.cache->Commit(kv, 0, KvCache::CommitKind::kEnd);
  }
  static GenerateRequest Spec() {
    return SchedulerParts::Spec(SmallPrompt(kMatchedPrompt), /*max_tokens=*/4);
  }
  MatchResult Match(Request& request) {
    return parts_.matcher.Match(request, request.spec.prompt, /*is_long=*/false,
                                {.use_cursor = false});
  }

  SchedulerParts parts_;
};

TEST_F(RequestMatcherTest, FindsWhatTheOwnerHas) {
  Request& request = parts_.Wait(Spec());
  EXPECT_EQ(Match(request).num_reused(), kMatchedPrompt - 1) << "all but the last token";
  EXPECT_EQ(request.room.account, parts_.tenants.AccountOf("default"));
  GenerateRequest other = Spec();
  other.tenant = "other";
  EXPECT_EQ(Match(parts_.Wait(other)).num_reused(), 0u);
  other.cache_owner = "default";
  EXPECT_EQ(Match(parts_.Wait(other)).num_reused(), kMatchedPrompt - 1);
  GenerateRequest salted = Spec();
  salted.cache_salt = "salt";
  EXPECT_EQ(Match(parts_.Wait(salted)).num_reused(), 0u);
}

TEST_F(RequestMatcherTest, WhoSharesNothingFindsNothing) {
  GenerateRequest alone = Spec();
  alone.reuse = Reuse::kNothing;
  const MatchResult match = Match(parts_.Wait(alone));
  EXPECT_EQ(match.num_reused(), 0u);
  EXPECT_EQ(match.miss->reason, MissReason::kDisabled);
  Request& erased = parts_.Wait(Spec());
  erased.is_erased = true;
  EXPECT_EQ(Match(erased).num_reused(), 0u);
}

TEST_F(RequestMatcherTest, LeavesWhatARequestComputesItself) {
  GenerateRequest spec = Spec();
  spec.retention = RetentionChoice{.policy = Retention::kWindow, .budget = 16, .exact_tokens = 20};
  Request& request = parts_.Wait(spec);
  EXPECT_EQ(Match(request).num_reused(), request.match_end());
  EXPECT_EQ(parts_.matcher.MatchText(request, request.spec.prompt, false, {.use_cursor = false})
                .num_reused(),
            kMatchedPrompt - 1);
}

}  // namespace
}  // namespace kvasir
