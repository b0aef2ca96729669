#include "cli/generation.h"

#include <chrono>
#include <condition_variable>
#include <deque>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/result.h"
#include "cli/interrupt.h"
#include "cli/progress.h"

namespace kvasir::cli {
namespace {

// Passes events from the engine's thread to this one. Thread-safe.
class EventQueue {
 public:
  void Push(const Event& event) {
    const MutexLock lock(mutex_);
    events_.push_back(event);
    changed_.notify_one();
  }
  // Waits a little for events: a signal handler cannot notify, so the caller polls.
  std::deque<Event> Take() {
    MutexLock lock(mutex_);
    if (events_.empty()) lock.WaitFor(changed_, std::chrono::milliseconds(20));
    return std::exchange(events_, {});
  }

 private:
  Mutex mutex_;
  std::condition_variable changed_;
  std::deque<Event> events_ KV_GUARDED_BY(mutex_);
};

}  // namespace

Result<FinishReason> RunEvents(Engine& engine, GenerateRequest request,
                               const std::function<void(const Event&)>& on_event) {
  const size_t prompt_tokens = request.prompt.size();
  const uint64_t rows_before = engine.Stats().prefill_rows;
  const InterruptScope interrupt;
  Progress progress;
  EventQueue events;
  KV_ASSIGN(const RequestId id,
            engine.Submit(std::move(request), [&](const Event& event) { events.Push(event); }));
  FinishReason finish_reason = FinishReason::kNone;
  bool cancelled = false, answers = false;
  for (bool last = false; !last;) {
    if (interrupt.interrupted() && !cancelled) {
      cancelled = true;
      engine.Cancel(id);
    }
    if (!answers) {
      progress.Show(fmt::format("reading the prompt: {} of {} tokens",
                                engine.Stats().prefill_rows - rows_before, prompt_tokens));
    }
    std::optional<Error> error;
    for (const Event& event : events.Take()) {
      answers |= !event.tokens.empty();
      if (answers) progress.Clear();
      on_event(event);
      if (event.finish_reason != FinishReason::kNone) finish_reason = event.finish_reason;
      if (event.error) error = event.error;
      last |= event.last;
    }
    if (last && error) return tl::unexpected(std::move(*error));
  }
  return finish_reason;
}

Result<Outcome> RunRequest(Engine& engine, GenerateRequest request,
                           const std::function<void(std::string_view)>& on_text) {
  const uint64_t start_ns = MonotonicNs();
  Outcome outcome;
  KV_ASSIGN(outcome.finish_reason, RunEvents(engine, std::move(request), [&](const Event& event) {
              for (const GeneratedToken& token : event.tokens) outcome.tokens.push_back(token.id);
              outcome.text += event.text;
              if (!event.text.empty()) on_text(event.text);
              if (event.last) outcome.receipt = event.receipt;
            }));
  outcome.total_ms = static_cast<double>(MonotonicNs() - start_ns) / 1e6;
  return outcome;
}

}  // namespace kvasir::cli
