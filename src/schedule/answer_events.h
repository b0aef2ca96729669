// AnswerEvents: what the choices of a request tell its sink after each step.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "kvasir/engine_event.h"

namespace kvasir {

// One event for each choice of a request, joined until the sink has it, and which choices are done.
// Allocates nothing between Begin and the end but what an event's content needs. Engine thread
// only.
class AnswerEvents {
 public:
  void set_sink(EventSink sink) { sink_ = std::move(sink); }
  // Makes room for the choices of a request that was queued, which get at most so many tokens in a
  // step.
  void Begin(uint32_t num_choices, uint32_t step_tokens = 1);

  // Returns the event of a choice in this step; empty if nothing happened to the choice yet.
  Event& Of(uint32_t choice);
  // Puts the end of a choice into its event. REQUIRES: the choice is not done.
  void End(uint32_t choice, FinishReason reason);
  bool is_done(uint32_t choice) const { return done_[choice]; }
  uint32_t num_done() const { return num_done_; }

  // Sends the events of this step, in the order of the choices. If all choices are done, calls
  // complete(event, is_first) before the last event is sent; is_first: it was not called before.
  // Returns false when the sink had no memory for an event, which stays for the next try.
  template <typename F>
  bool Send(F&& complete) {
    const auto last = std::find(has_event_.rbegin(), has_event_.rend(), true);
    const auto end = static_cast<uint32_t>(has_event_.rend() - last);
    for (uint32_t choice = 0; choice < end; ++choice) {
      if (!has_event_[choice]) continue;
      if (choice + 1 == end && num_done_ == events_.size()) {
        events_[choice].last = true;
        complete(events_[choice], !end_reported_);
        end_reported_ = true;
      }
      if (!SendOne(choice)) return false;
    }
    return true;
  }

 private:
  bool SendOne(uint32_t choice);

  EventSink sink_;
  std::vector<Event> events_;
  std::vector<bool> has_event_, done_;  // [events_]
  uint32_t num_done_ = 0;
  bool end_reported_ = false;
};

}  // namespace kvasir
