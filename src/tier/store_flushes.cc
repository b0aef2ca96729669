#include "tier/store_flushes.h"

#include <algorithm>
#include <utility>

#include "base/result.h"
#include "base/sizes.h"

namespace kvasir {

void StoreFlushes::Add(std::function<void(Result<TierFlushed>)> done) {
  std::list<Job> job(1);
  job.front().done = std::move(done);
  {
    MutexLock lock(store_.mutex);
    if (!store_.is_stopping) {
      const TierStats& stats = store_.figures.stats;
      job.front().number = store_.queues.last_write;
      job.front().blocks = stats.blocks;
      job.front().bytes = stats.written_bytes;
      job.front().failed = told_failed_;
      jobs_.splice(jobs_.end(), job);
      ++store_.queues.num_flushes;
      store_.writer_has_news = true;
    }
  }
  for (const Job& refused : job) {
    refused.done(Fail(Code::kUnavailable, "disk tier: it is being closed"));
  }
  store_.writer_wake.notify_one();
}

bool StoreFlushes::is_waiting() const {
  MutexLock lock(store_.mutex);
  return !jobs_.empty();
}

void StoreFlushes::FindAnswers() {
  MutexLock lock(store_.mutex);
  uint64_t oldest = store_.queues.last_write + 1;  // write that is under way
  for (uint32_t i = 0; i < store_.buffers.size() && !jobs_.empty(); ++i) {
    const RecordBuffer& one = store_.buffers.at(i);
    if (one.use == RecordBuffer::Use::kQueued || one.use == RecordBuffer::Use::kWriting) {
      oldest = std::min(oldest, one.number);
    }
  }
  const bool is_on = store_.state.now == TierStats::State::kOn;
  for (Job& job : jobs_) {
    if (job.answer || (is_on && oldest <= job.number)) continue;
    job.answer = AnswerTo(job);
  }
}

// Returns what to say once nothing that came before the flush is under way.
Result<TierFlushed> StoreFlushes::AnswerTo(const Job& job) {
  StoreState& state = store_.state;
  const TierStats& stats = store_.figures.stats;
  const bool is_on = state.now == TierStats::State::kOn;
  if (!is_on || !state.full_reason.empty()) {
    return Fail(Code::kUnavailable, "disk tier: {}: {}", store_.options.folder,
                is_on ? state.full_reason : state.reason);
  }
  if (stats.dropped_failed > job.failed) {
    told_failed_ = stats.dropped_failed;
    return Fail(Code::kUnavailable, "disk tier: {}: {} could not be stored{}",
                store_.options.folder, CountText(stats.dropped_failed - job.failed, "block"),
                store_.LastErrorText());
  }
  return TierFlushed{.durable = state.is_durable,
                     .blocks = stats.blocks - job.blocks,
                     .bytes = stats.written_bytes - job.bytes};
}

bool StoreFlushes::Answer() {
  bool has_told = false;
  for (;;) {
    std::list<Job> job;
    {
      MutexLock lock(store_.mutex);
      const auto first =
          std::ranges::find_if(jobs_, [](const Job& one) { return one.answer.has_value(); });
      if (first == jobs_.end()) return has_told;
      job.splice(job.end(), jobs_, first);
      --store_.queues.num_flushes;
    }
    if (Tell(job.front())) {
      has_told = true;
      continue;
    }
    MutexLock lock(store_.mutex);
    jobs_.splice(jobs_.end(), job);
    ++store_.queues.num_flushes;
    return has_told;
  }
}

void StoreFlushes::Refuse() {
  std::list<Job> jobs;
  {
    MutexLock lock(store_.mutex);
    jobs.swap(jobs_);
    store_.queues.num_flushes = 0;
  }
  for (Job& job : jobs) {
    if (!job.answer) job.answer = Fail(Code::kUnavailable, "disk tier: it was closed");
    (void)Tell(job);
  }
}

// Calls the callback. False: it threw.
bool StoreFlushes::Tell(Job& job) {
  try {
    job.done(*job.answer);
    return true;
  } catch (...) {
    return false;
  }
}

}  // namespace kvasir
