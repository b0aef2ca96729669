// RequestQueues: the requests of a scheduler, by what comes next for them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "schedule/request.h"

namespace kvasir {

// Each request is in one of the four. The functions below move requests between them; where one
// throws, no request is lost. Engine thread only.
struct RequestQueues {
  std::deque<std::unique_ptr<Request>> waiting;   // preempted ones first, the oldest first
  std::vector<std::unique_ptr<Request>> running;  // the oldest first
  // With only_when_idle, until nothing else waits or runs: then the first of them goes to
  // `waiting`.
  std::deque<std::unique_ptr<Request>> spare;
  std::vector<std::unique_ptr<Request>> ended;  // their last events are not sent yet
  bool retry_admission = true;  // blocks were released since the first one was refused

  bool empty() const {
    return waiting.empty() && running.empty() && spare.empty() && ended.empty();
  }
  // Returns whether a tenant has a request. O(requests).
  bool HasRequestOf(uint32_t tenant) const;

  // Moves a waiting request to the running ones, to its place by age.
  void Admit(size_t waiting_index);
  // Moves a running request to the waiting ones that were preempted, to its place by age.
  void Preempt(size_t running_index);
  // Moves a running request to the front of those that wait.
  void PutBack(size_t running_index);
  // Moves the first spare request to the waiting ones, if nothing waits or runs.
  void BeginSpare();
  // Moves the running requests that are done to the ended ones.
  void CollectEnded();

  // Cuts requests of the owner off the cache if their prompt, an answer or a part of its spans
  // begins with `path`: they keep what they have and publish nothing, even after a preemption.
  // Returns those that run. O(tokens).
  std::vector<Request*> StopSharing(std::string_view owner, std::span<const TokenId> path);
};

}  // namespace kvasir
