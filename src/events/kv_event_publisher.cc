#include "events/kv_event_publisher.h"

#include <poll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "base/result.h"
#include "base/secret.h"
#include "base/start_thread.h"
#include "base/system_error.h"
#include "base/until_done.h"
#include "base/wipe_stack.h"
#include "cache/kv_cache.h"

namespace kvasir {
namespace {

constexpr int kReopenMs = 100;
// Sequences go on from the start's second: above those of an earlier process, which sent fewer
// than 2^24 batches a second. Routers drop what is below the last one that they saw.
constexpr int kSequenceShift = 24;

}  // namespace

Result<std::unique_ptr<KvEventPublisher>> KvEventPublisher::Open(const KvEventsOptions& options) {
  KV_ASSIGN(auto sockets, EventSockets::Open(options));
  KvEventsOptions bound = options;
  bound.address = sockets->address();
  bound.replay_address = sockets->replay_address();
  return std::unique_ptr<KvEventPublisher>(
      new KvEventPublisher(std::move(bound), std::move(sockets)));
}

Status KvEventPublisher::Attach(KvEventLog* log, std::function<void()> ask_fill) {
  const KvEventLog::Options& about = log->options();
  KV_ASSIGN(const Secret key, EphemeralSecret());
  wake_ = Descriptor(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  if (!wake_) return FailErrno(errno, "--kv-events: eventfd");
  log_ = log;
  log_bytes_ = log->allocated_bytes();
  payload_bytes_ = EventStream::MostPayloadBytes(about.num_nodes, about.block_tokens);
  stream_ = std::make_unique<EventStream>(
      EventStream::Options{.format = options_.format,
                           .num_nodes = about.num_nodes,
                           .block_tokens = about.block_tokens,
                           .hash_key = key,
                           .first_sequence = static_cast<uint64_t>(UnixS()) << kSequenceShift,
                           .ask_fill = std::move(ask_fill),
                           .drop_queues = [this] { Reopen(); }},
      *log);
  log->set_wake([this] { Wake(); });
  return {};
}

uint64_t KvEventPublisher::bytes() const {
  return log_bytes_ + stream_->allocated_bytes() + payload_bytes_;
}

Status KvEventPublisher::Start() {
  KV_ASSIGN(thread_, StartThread("KV events", [this] { Run(); }));
  return {};
}

KvEventPublisher::~KvEventPublisher() {
  if (thread_.joinable()) {
    stops_.store(true, std::memory_order_release);
    Wake();
    thread_.join();
  }
  sockets_.reset();  // before the stream, whose payloads they may still have
}

void KvEventPublisher::Wake() const { (void)eventfd_write(wake_.fd(), 1); }

KvEventsStats KvEventPublisher::Stats() const {
  return {.address = options_.address,
          .replay_address = options_.replay_address,
          .sent = sent_.load(std::memory_order_relaxed),
          .snapshot = snapshot_.load(std::memory_order_relaxed),
          .replayed = replayed_.load(std::memory_order_relaxed),
          .lost = log_ == nullptr ? 0 : log_->num_lost()};
}

std::optional<Digest> KvEventPublisher::OwnerIn(const TenantTable& tenants) const {
  if (!options_.tenant) return KvCache::OwnerOf(options_.owner);
  const auto found = tenants.find(*options_.tenant);
  if (found != tenants.end()) {
    return KvCache::OwnerOf(found->second.cache_owner.value_or(*options_.tenant));
  }
  Log(LogLevel::kWarning, "KV events: there is no such tenant any more; nothing is published",
      LogField("tenant", *options_.tenant));
  return std::nullopt;
}

// Runs the thread. Without memory it tries again: what it did not send, subscribers see as a gap.
void KvEventPublisher::Run() {
  std::vector<EventSockets::Question> questions;
  while (!stops_.load(std::memory_order_acquire)) {
    Wait();
    UntilDone([&] {
      questions.clear();
      if (!sockets_) return Reopen();
      if (sockets_->TakeSubscriptions()) stream_->AskSnapshot();
      while (questions.size() < kMostQuestions) {
        auto question = sockets_->TakeQuestion();
        if (!question) break;
        questions.push_back(std::move(*question));
      }
    });
    // After the questions were taken: what is erased before a question is in no answer to it.
    UntilDone([&] {
      const double unix_s = static_cast<double>(UnixNs()) / 1e9;
      while (const auto batch = stream_->Advance(MonotonicNs(), unix_s)) Send(*batch);
    });
    for (const EventSockets::Question& question : questions) {
      UntilDone([&] { Answer(question); });
    }
    WipeUnusedStack();
  }
}

// Waits until something came, or the stream or the sockets want another try.
void KvEventPublisher::Wait() {
  int timeout_ms = sockets_ ? -1 : kReopenMs;
  if (const auto due_ns = stream_->due_ns()) {
    const uint64_t left_ns = *due_ns - std::min(*due_ns, MonotonicNs());
    const int due_ms = static_cast<int>(std::min<uint64_t>(left_ns / 1'000'000 + 1, 1000));
    timeout_ms = timeout_ms < 0 ? due_ms : std::min(timeout_ms, due_ms);
  }
  if (sockets_) {
    sockets_->Wait(wake_.fd(), timeout_ms);
  } else {
    pollfd wake{.fd = wake_.fd(), .events = POLLIN, .revents = 0};
    (void)poll(&wake, 1, timeout_ms);
  }
  eventfd_t count;
  (void)eventfd_read(wake_.fd(), &count);
}

// Closes the sockets, which frees what waits for them, and opens them again. Their clients come
// back and are sent a snapshot.
void KvEventPublisher::Reopen() {
  waiting_.clear();
  sockets_.reset();
  auto opened = EventSockets::Open(options_);
  if (opened) {
    sockets_ = std::move(*opened);
  } else if (!std::exchange(is_refused_, true)) {
    Log(LogLevel::kWarning, "KV events: " + opened.error().message + "; it is tried again");
  }
  if (opened) is_refused_ = false;
}

void KvEventPublisher::Send(const EventBatch& batch) {
  (batch.is_snapshot ? snapshot_ : sent_).fetch_add(batch.num_blocks, std::memory_order_relaxed);
  if (!sockets_) return;
  sockets_->Publish(batch);
  if (!batch.is_snapshot) return;
  for (const std::string& client : waiting_) {
    sockets_->Replay(client, batch);
    sockets_->EndReplay(client);
  }
  waiting_.clear();
}

void KvEventPublisher::Answer(const EventSockets::Question& question) {
  if (!sockets_) return;
  const auto batches = stream_->From(question.sequence);
  if (!batches && waiting_.size() < kMostQuestions) {
    waiting_.push_back(question.client);
    return stream_->AskSnapshot();
  }
  for (const EventBatch& batch : batches.value_or(std::vector<EventBatch>())) {
    sockets_->Replay(question.client, batch);
    replayed_.fetch_add(batch.num_blocks, std::memory_order_relaxed);
  }
  sockets_->EndReplay(question.client);
}

}  // namespace kvasir
