#include "schedule/answer_events.h"

#include <gtest/gtest.h>

#include <new>
#include <string>

namespace kvasir {
namespace {

class AnswerEventsTest : public testing::Test {
 protected:
  AnswerEventsTest() { events_.Begin(3); }

  // Sends the events and returns their choices, with a '.' after the last event.
  std::string Send() {
    std::string sent;
    events_.set_sink([&](const Event& event) { sent += Name(event); });
    events_.Send([&](Event&, bool is_first) { num_completed_ += is_first; });
    return sent;
  }
  static std::string Name(const Event& event) {
    return std::to_string(event.choice) + (event.last ? "." : "");
  }

  AnswerEvents events_;
  uint32_t num_completed_ = 0;
};

TEST_F(AnswerEventsTest, SendsWhatHappenedInTheOrderOfTheChoices) {
  events_.Of(2).text = "b";
  events_.Of(0).text = "a";
  EXPECT_EQ(Send(), "02");
  EXPECT_EQ(Send(), "") << "nothing new happened";
  EXPECT_EQ(events_.Of(2).text, "") << "what was sent is not sent again";
}

TEST_F(AnswerEventsTest, TheLastEventOfARequestIsTheLastOneOfItsLastStep) {
  events_.End(1, FinishReason::kStop);
  EXPECT_EQ(Send(), "1");
  events_.End(2, FinishReason::kStop);
  events_.End(0, FinishReason::kLength);
  EXPECT_EQ(events_.num_done(), 3u);
  EXPECT_EQ(Send(), "02.");
  EXPECT_EQ(num_completed_, 1u);
}

TEST_F(AnswerEventsTest, AnEventThatFoundNoMemoryStaysAndIsJoined) {
  for (uint32_t choice = 0; choice < 3; ++choice) events_.End(choice, FinishReason::kStop);
  events_.Of(1).text = "a";
  uint32_t tries = 0, completed = 0;
  std::string sent;
  events_.set_sink([&](const Event& event) {
    if (++tries == 2) throw std::bad_alloc();
    sent += Name(event) + event.text;
  });
  const auto send = [&] {
    return events_.Send([&](Event&, bool is_first) { completed += is_first; });
  };
  EXPECT_FALSE(send());
  events_.Of(1).text += "b";
  EXPECT_TRUE(send());
  EXPECT_EQ(sent, "01ab2.");
  EXPECT_EQ(completed, 1u);
}

TEST_F(AnswerEventsTest, CompletesOnceEvenIfTheLastEventIsSentAgain) {
  for (uint32_t choice = 0; choice < 3; ++choice) events_.End(choice, FinishReason::kStop);
  uint32_t tries = 0, firsts = 0;
  events_.set_sink([&](const Event& event) {
    if (event.last && ++tries == 1) throw std::bad_alloc();
  });
  const auto send = [&] {
    return events_.Send([&](Event&, bool is_first) { firsts += is_first; });
  };
  EXPECT_FALSE(send());
  EXPECT_TRUE(send());
  EXPECT_EQ(firsts, 1u);
}

}  // namespace
}  // namespace kvasir
