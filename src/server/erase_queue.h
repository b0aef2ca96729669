// EraseQueue: erasures of the cache, one at a time for each tenant.
#pragma once

#include <memory>
#include <string>

#include "kvasir/engine.h"

namespace kvasir {

// A tenant has at most one erasure in the engine and one behind it. What is asked for while one is
// in the engine waits, all together, for the next one: it begins after they all came, and so takes
// what was there when each of them came. Thread-safe; nothing waits. Calls from before its end may
// be told after it, or never; the engine must outlive those too.
class EraseQueue {
 public:
  explicit EraseQueue(Engine& engine);

  // `done` is called once, on the engine's thread (it must not block), when all that the tenant had
  // cached at this call is gone.
  void Erase(const std::string& tenant, ErasureSink done);

 private:
  struct State;
  const std::shared_ptr<State> state_;  // the engine's callbacks hold it weakly
};

}  // namespace kvasir
