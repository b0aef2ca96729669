#include "schedule/answer_events.h"

#include <chrono>
#include <thread>

#include "base/check.h"

namespace kvasir {
namespace {

// When the system refuses memory, the engine waits this long before it tries again.
constexpr auto kMemoryPause = std::chrono::milliseconds(1);
// Most tokens have no longer texts, so that the joined text of a step's drafts needs no memory.
constexpr size_t kUsualTokenBytes = 15;

}  // namespace

void AnswerEvents::Begin(uint32_t num_choices, uint32_t step_tokens) {
  events_.resize(num_choices);
  has_event_.resize(num_choices);
  done_.resize(num_choices);
  for (Event& event : events_) {
    event.tokens.reserve(step_tokens);
    event.text.reserve(step_tokens * kUsualTokenBytes);
  }
}

Event& AnswerEvents::Of(uint32_t choice) {
  Event& event = events_[choice];
  if (!has_event_[choice]) {
    has_event_[choice] = true;
    event.choice = choice;
    event.tokens.clear();
    event.text.clear();
    event.progress.reset();
    event.score.reset();
    event.scored.clear();
    event.embedding.clear();
  }
  return event;
}

void AnswerEvents::End(uint32_t choice, FinishReason reason) {
  KV_CHECK(!done_[choice]);
  Of(choice).finish_reason = reason;
  done_[choice] = true;
  ++num_done_;
}

bool AnswerEvents::SendOne(uint32_t choice) {
  try {
    sink_(events_[choice]);
  } catch (...) {
    std::this_thread::sleep_for(kMemoryPause);
    return false;
  }
  has_event_[choice] = false;
  return true;
}

}  // namespace kvasir
