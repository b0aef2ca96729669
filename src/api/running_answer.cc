#include "api/running_answer.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "base/until_done.h"
#include "http/errors.h"

namespace kvasir {

// A miss of a request with GenerateRequest::caller_explains. It is counted once, when this goes:
// whether or not somebody found out where it comes from, and whether or not the client has left.
class CountedMiss {
 public:
  // `engine` must outlive it.
  CountedMiss(Engine& engine, const Receipt& receipt)
      : engine_(engine), computed_tokens_(receipt.computed) {}
  ~CountedMiss() { engine_.CountMiss(reason_, computed_tokens_); }
  CountedMiss(const CountedMiss&) = delete;
  CountedMiss& operator=(const CountedMiss&) = delete;

  void set_reason(MissReason reason) { reason_ = reason; }

 private:
  Engine& engine_;
  const uint32_t computed_tokens_;
  MissReason reason_ = MissReason::kDiverged;
};

namespace {

bool HasDiverged(const Event& event) {
  return event.receipt.miss && event.receipt.miss->reason == MissReason::kDiverged;
}

// Calls `work`, whose memory comes from `quota`; there may be not enough to end it.
template <typename Work>
void Metered(MemoryQuota& quota, const Work& work) {
  MemoryMeter meter(quota);
  try {
    work();
  } catch (const std::exception&) {  // no memory
  }
  const QuotaShare share = meter.Stop();
}

// Counts the tokens, and says in the log, at most once a minute, that there are such lines.
void NoteVolatile(const std::string& tenant, const std::vector<VolatileLine>& lines,
                  Engine& engine) {
  if (lines.empty()) return;
  uint32_t repeated = 0;
  for (const VolatileLine& line : lines) repeated += line.repeated_tokens;
  engine.CountVolatile(repeated);
  static std::atomic<int64_t> last_s = INT64_MIN / 2;
  const int64_t now_s = static_cast<int64_t>(MonotonicNs() / 1'000'000'000);
  int64_t before_s = last_s.load(std::memory_order_relaxed);
  if (now_s - before_s < 60 || !last_s.compare_exchange_strong(before_s, now_s)) return;
  const auto text_of = [](const std::optional<uint32_t>& number) {
    return number ? std::to_string(*number) : std::string("none");
  };
  Log(LogLevel::kWarning,
      "a line of prompts changes: what follows it is read again (\"volatile\" in receipts; said "
      "at most once a minute)",
      LogField("tenant", tenant), LogField("message", text_of(lines[0].message_index)),
      LogField("line", text_of(lines[0].line)), LogField("repeated_tokens", repeated));
}

Error TooLate() {
  return {Code::kDeadlineExceeded,
          "the time limit of the request ends before all of its texts are read"};
}

Error NoMemory() { return {Code::kUnavailable, "the system is out of memory: try again"}; }

// Calls `step`, which may be refused memory.
template <typename Step>
void Try(const Step& step) noexcept {
  try {
    step();
  } catch (...) {
  }
}

size_t FormatBytes(const std::vector<GenerateRequest>& requests) {
  size_t bytes = 0;
  for (const GenerateRequest& one : requests) {
    if (!one.format) continue;
    if (one.format->text) bytes += one.format->text->text.size();
    for (const AnswerFormat::Tool& tool : one.format->tools) bytes += tool.parameters.size();
  }
  return bytes;
}

}  // namespace

RunningAnswer::RunningAnswer(GenerationStart start, Engine& engine,
                             std::weak_ptr<AnswerClient> client,
                             std::function<void(uint64_t tokens)> charge)
    : start_(std::move(start)),
      engine_(engine),
      client_(std::move(client)),
      charge_(std::move(charge)) {}

void RunningAnswer::Post(std::function<void()> step) const {
  if (const auto client = client_.lock()) client->Post(std::move(step));
}

void RunningAnswer::Start(QuotaShare held) {
  const auto has_format = [](const GenerateRequest& one) { return one.format.has_value(); };
  std::ranges::any_of(start_.requests, has_format) ? Compile(std::move(held)) : Submit();
}

// Compiles the formats on a thread that does nothing else, then submits the requests.
void RunningAnswer::Compile(QuotaShare held) {
  const auto client = client_.lock();
  if (!client) return;
  const auto kept = std::make_shared<QuotaShare>(std::move(held));
  client->Run(
      SlowWork::kGrammar, tenant(), FormatBytes(start_.requests),
      [self = shared_from_this(), kept](MemoryQuota&) {
        Status compiled = tl::unexpected(NoMemory());
        Try([&] {
          if (!self->client_.expired()) {
            compiled = self->engine_.CompileFormats(self->start_.requests);
          }
        });
        UntilDone([&] {
          self->Post([self, kept, compiled] {
            if (self->is_cancelled_) return;
            if (compiled) return self->Submit();
            if (const auto client = self->client_.lock()) {
              client->OnAnswerError(SubmitError(compiled.error(), self->start_.prompt_field));
            }
          });
        });
      });
}

IndexedSink RunningAnswer::MakeSink() {
  const bool explains = start_.requests.front().caller_explains;
  return [weak = weak_from_this(), charge = charge_, chat = start_.chat, explains,
          &engine = engine_](size_t prompt, const Event& event) {
    // Here, so that a client that leaves is charged too. What failed is free.
    if (event.last && !event.error) {
      charge(uint64_t{event.prefilled_tokens} + event.completion_tokens);
    }
    const std::shared_ptr<RunningAnswer> self = weak.lock();
    if (explains && event.last && event.receipt.miss) {
      std::shared_ptr<CountedMiss> miss;
      if (HasDiverged(event)) miss = std::make_shared<CountedMiss>(engine, event.receipt);
      const bool is_whole = !event.error && event.finish_reason != FinishReason::kCancelled;
      if (self && is_whole && chat->MayExplain(*event.receipt.miss)) {
        return self->Explain(event, chat, std::move(miss));
      }
    }
    if (self) self->Post([self, prompt, event] { self->OnEvent(prompt, event); });
  };
}

void RunningAnswer::Submit() {
  if (start_.at_once > 0) {
    begun_ns_ = MonotonicNs();
    const auto client = client_.lock();
    if (const Status begun = SubmitNext(); !begun && client) client->OnAnswerError(begun.error());
    return;
  }
  for (GenerateRequest& request : start_.requests) ShareNoErased(&request);
  IndexedSink sink = MakeSink();
  auto ids = engine_.SubmitAll(std::move(start_.requests), std::move(sink));
  if (ids) {
    running_ = std::move(*ids);
    return;
  }
  if (const auto client = client_.lock()) {
    client->OnAnswerError(SubmitError(ids.error(), start_.prompt_field));
  }
}

// Submits requests until `at_once` of them are open. While some are open, a full queue ends
// nothing: the next one is tried again when one ends.
Status RunningAnswer::SubmitNext() {
  while (num_submitted_ < start_.requests.size() && num_open_ < start_.at_once) {
    const bool may_wait = num_open_ > 0;
    if (may_wait && !engine_.CheckRoom(tenant())) return {};
    const size_t prompt = num_submitted_;
    GenerateRequest request = start_.requests[prompt];
    ShareNoErased(&request);
    if (IsLate(&request)) return tl::unexpected(TooLate());
    std::vector<GenerateRequest> one;
    one.push_back(std::move(request));
    auto ids = engine_.SubmitAll(
        std::move(one),
        [sink = MakeSink(), prompt](size_t, const Event& event) { sink(prompt, event); });
    if (!ids && may_wait && ids.error().code == Code::kExhausted) return {};
    // Once some are read it is their time that is too short, and not what is ahead of them.
    const bool has_read = num_submitted_ > num_open_;
    if (!ids && has_read && ids.error().cause == Cause::kDeadline) return tl::unexpected(TooLate());
    if (!ids) {
      const std::string field = fmt::format("{}[{}]", start_.prompt_field, prompt);
      return tl::unexpected(
          SubmitError(ids.error(), start_.requests.size() > 1 ? field : start_.prompt_field));
    }
    running_.push_back(ids->front());
    start_.requests[prompt] = {};
    ++num_submitted_;
    ++num_open_;
  }
  return {};
}

// Keeps what the request reads out of the cache if the tenant has erased it since the request came:
// the engine knows only of requests that it has.
void RunningAnswer::ShareNoErased(GenerateRequest* request) const {
  if (start_.heads.IsErased()) request->reuse = Reuse::kNothing;
}

// Leaves the request the time that the answer still has. Returns whether that is nothing.
bool RunningAnswer::IsLate(GenerateRequest* request) const {
  if (!request->timeout_ms) return false;
  const uint64_t elapsed_ms = (MonotonicNs() - begun_ns_) / 1'000'000;
  if (elapsed_ms >= *request->timeout_ms) return true;
  *request->timeout_ms -= elapsed_ms;
  return false;
}

// Finds out what the miss comes from, then goes on with the event. On the engine's thread: `chat`
// is not start_.chat, which another thread may reset.
void RunningAnswer::Explain(const Event& event, const std::shared_ptr<AskedChat>& chat,
                            std::shared_ptr<CountedMiss> miss) {
  const auto client = client_.lock();
  if (!client) return;
  client->Run(SlowWork::kText, tenant(), chat->work_bytes(),
              [self = shared_from_this(), chat, explained = event,
               miss = std::move(miss)](MemoryQuota& quota) mutable {
                Receipt& receipt = explained.receipt;
                Metered(quota, [&] {
                  AskedChat::Explained found = chat->Explain(*receipt.miss);
                  receipt.miss->reason = found.reason;
                  receipt.volatile_lines = std::move(found.lines);
                });
                if (miss) miss->set_reason(receipt.miss->reason);
                miss.reset();  // it is counted before the client hears of it
                NoteVolatile(self->tenant(), receipt.volatile_lines, self->engine_);
                UntilDone([&] { self->Post([self, explained] { self->OnEvent(0, explained); }); });
              });
}

void RunningAnswer::OnEvent(size_t prompt, const Event& event) {
  const auto client = client_.lock();
  if (is_cancelled_ || written().done() || !client) return;
  if (event.last && !event.error && written().keeps_on_disk()) {
    return FinishKeeping(prompt, event);
  }
  if (start_.chat) start_.chat->Take(event);
  const std::string text = start_.answer->Take(prompt, event);
  if (written().error()) return client->OnAnswerError(Error(*written().error()));
  if (start_.at_once > 0 && event.last) {
    --num_open_;
    if (const Status next = SubmitNext(); !next) return client->OnAnswerError(next.error());
  }
  client->OnAnswer(text);
}

// Keeps the answer, then goes on with the last event.
void RunningAnswer::FinishKeeping(size_t prompt, const Event& event) {
  const auto client = client_.lock();
  std::shared_ptr<AnswerKeeper> keeper = start_.answer->TakeKeeper();
  keeper->Take(event);
  client->Run(SlowWork::kDisk, tenant(), 0,
              [self = shared_from_this(), keeper = std::move(keeper), prompt, event](MemoryQuota&) {
                Status kept = tl::unexpected(NoMemory());
                Try([&] { kept = keeper->Finish(); });
                UntilDone([&] {
                  self->Post([self, prompt, event, kept] {
                    if (kept) return self->OnEvent(prompt, event);
                    const auto client = self->client_.lock();
                    if (client && !self->is_cancelled_) client->OnAnswerError(kept.error());
                  });
                });
              });
}

void RunningAnswer::Cancel() {
  is_cancelled_ = true;
  for (const RequestId id : std::exchange(running_, {})) engine_.Cancel(id);
  const bool waits = written().keeps_on_disk();
  std::shared_ptr<AnswerKeeper> keeper = start_.answer->TakeKeeper();
  start_.chat.reset();
  const auto client = waits ? client_.lock() : nullptr;
  if (client) {
    client->Run(SlowWork::kDisk, tenant(), 0, [keeper = std::move(keeper)](MemoryQuota&) {});
  }
}

void RunningAnswer::PrepareNext() {
  const std::shared_ptr<AskedChat> chat = std::exchange(start_.chat, nullptr);
  const auto client = client_.lock();
  if (!client || !chat || !chat->prepares()) return;
  client->Run(SlowWork::kText, tenant(), chat->work_bytes(),
              [chat](MemoryQuota& quota) { Metered(quota, [&] { chat->PrepareNext(); }); });
}

}  // namespace kvasir
