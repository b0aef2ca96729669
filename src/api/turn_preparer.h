// TurnPreparer: has the engine compute, while nothing waits, what next turns of chats begin with.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "kvasir/engine.h"

namespace kvasir {

// Keeps the requests that it gave to the engine, so that they can be cancelled: those of a session
// before anything about it changes, all before somebody erases the cache. At most kMostTurnsAhead
// wait; the oldest one goes first. Thread-safe.
class TurnPreparer {
 public:
  // `engine` must outlive this.
  explicit TurnPreparer(Engine& engine);

  // Returns how many erasures there were. What was asked before one is not prepared after it.
  uint64_t epoch() const;
  // `session`: whose next turn it is; "": a chat completion's. Does nothing if the engine has no
  // room, or an erasure came after `epoch`. REQUIRES: request.only_when_idle.
  void Submit(GenerateRequest request, std::string session, uint64_t epoch);
  // Cancels what was submitted: once it returns, nothing that was submitted before for the session
  // is published after an erase that begins later.
  void Cancel(std::string_view session);
  void CancelAll();

 private:
  struct State;
  Engine& engine_;
  const std::shared_ptr<State> state_;  // requests share it until they end
};

}  // namespace kvasir
