// StoreFlushes: answers flushes, when all that was handed over before them is stored.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <optional>

#include "tier/store.h"

namespace kvasir {

// Add is thread-safe; the writer calls the others.
class StoreFlushes {
 public:
  explicit StoreFlushes(Store& store) : store_(store) {}

  // Does what Tier::Flush says.
  void Add(std::function<void(Result<TierFlushed>)> done);
  bool is_waiting() const;
  // Finds the answers that can be known now.
  void FindAnswers();
  // Gives the answers that are known. Returns whether it gave one; a callback that throws is called
  // again in the next call.
  bool Answer();
  // Answers all: the tier was closed. Any thread.
  void Refuse();

 private:
  struct Job {
    uint64_t number = 0;  // of the last write that it waits for
    uint64_t blocks = 0, bytes = 0, failed = 0;
    std::function<void(Result<TierFlushed>)> done;
    std::optional<Result<TierFlushed>> answer = {};  // absent: not known yet
  };
  Result<TierFlushed> AnswerTo(const Job& job) KV_REQUIRES(store_.mutex);
  static bool Tell(Job& job);

  Store& store_;
  // A list, so that a job moves without memory: none may be lost.
  std::list<Job> jobs_ KV_GUARDED_BY(store_.mutex);
  // Failed writes that an answer has told of. A flush tells of those since, also of those from
  // before it began.
  uint64_t told_failed_ KV_GUARDED_BY(store_.mutex) = 0;
};

}  // namespace kvasir
