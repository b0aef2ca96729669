#include "schedule/sequence_states.h"

#include <gtest/gtest.h>

#include "base/own_clock.h"
#include "schedule/request_answer.h"
#include "testing/small_runner_for_test.h"

namespace kvasir {
namespace {

class SequenceStatesTest : public testing::Test {
 protected:
  SequenceStatesTest()
      : runner_(SmallRunnerOptions()),
        cache_(SmallCache(runner_)),
        leaders_(requests_, options_, kSmallBlockTokens) {}

  static std::unique_ptr<Request> Ask(const char* tenant) {
    auto request = std::make_unique<Request>();
    request->spec.tenant = tenant;
    request->spec.prompt = SmallPrompt(20);
    request->spec.n = 2;
    request->events.Begin(2);
    return request;
  }
  std::vector<std::string> States(const std::optional<std::string>& tenant = std::nullopt) {
    std::vector<std::string> states;
    for (const SequenceState& state : StatesOf(requests_, leaders_, *cache_, tenant)) {
      states.push_back(state.tenant + " " + state.state);
    }
    return states;
  }

  OwnClock clock_;
  const FakeRunner runner_;
  const std::unique_ptr<KvCache> cache_;
  const SchedulerOptions options_;
  RequestQueues requests_;
  const Leaders leaders_;
};

TEST_F(SequenceStatesTest, NamesWhatEachChoiceDoes) {
  requests_.waiting.push_back(Ask("waits"));
  requests_.running.push_back(Ask("runs"));
  Request& running = *requests_.running[0];
  AddSequence(running, KvSequence(), nullptr);
  EXPECT_EQ(States(), (std::vector<std::string>{"runs prefill", "waits waiting"}));
  running.load.waits = true;
  EXPECT_EQ(States("runs"), std::vector<std::string>{"runs loading"});
  running.load.waits = false;
  running.answer.prompt_done = true;
  AddSequence(running, KvSequence(), nullptr);
  EXPECT_EQ(States("runs"), (std::vector<std::string>{"runs decode", "runs decode"}));
  running.answer.sequences[0]->done = true;
  running.resume.preempted = true;
  EXPECT_EQ(States("runs"), std::vector<std::string>{"runs preempted"});
}

TEST_F(SequenceStatesTest, LeavesOutWorkForLaterAndWhatIsDone) {
  requests_.waiting.push_back(Ask("later"));
  requests_.waiting[0]->spec.only_when_idle = true;
  requests_.running.push_back(Ask("done"));
  for (uint32_t choice = 0; choice < 2; ++choice) {
    requests_.running[0]->events.End(choice, FinishReason::kStop);
  }
  EXPECT_TRUE(States().empty());
}

TEST_F(SequenceStatesTest, CountsTokensAndAge) {
  requests_.running.push_back(Ask("a"));
  requests_.running[0]->times.submitted_ns = MonotonicNs();
  AddSequence(*requests_.running[0], KvSequence(), nullptr).tokens.push_back(7);
  clock_.Advance(std::chrono::nanoseconds(50));
  const SequenceState state = StatesOf(requests_, leaders_, *cache_, "a").at(0);
  EXPECT_EQ(state.prompt_tokens, 20u);
  EXPECT_EQ(state.tokens, 21u);
  EXPECT_EQ(state.computed, 0u);
  EXPECT_EQ(state.blocks, 0u);
  EXPECT_EQ(state.age_ns, 50u);
}

}  // namespace
}  // namespace kvasir
