// EraseQueue: erasures of the cache, one at a time for each owner.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kvasir/engine.h"

namespace kvasir {

// An owner (a tenant or a share group) has at most one erasure in the engine
// and one that follows. All calls that come while an erasure runs share the
// following one: it starts after all of them, so it erases everything that was
// cached at each call. Thread-safe; no call waits. `done` of an earlier call
// may be called after the queue's end, or never; the engine must outlive those
// calls too.
class EraseQueue {
 public:
  explicit EraseQueue(Engine& engine);

  // Calls `done` once, on the engine's thread (it must not block), when
  // everything that the owner had cached at this call is erased.
  void Erase(const std::string& owner, ErasureSink done);
  // Erases several owners; `done` gets the sum, with the first error.
  void EraseAll(const std::vector<std::string>& owners, ErasureSink done);

 private:
  struct State;
  const std::shared_ptr<State> state_;  // the engine's callbacks hold it weakly
};

// Returns a sink for each of `count` erasures. When all have come, `done` gets
// their sum, with the error of the first one that has an error. The sinks are
// called one at a time, as the engine does.
std::vector<ErasureSink> SinksOfSum(size_t count, ErasureSink done);

}  // namespace kvasir
