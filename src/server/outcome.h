// Outcome: the result of a handler: an answer, one that comes later, or a generation.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "api/running_answer.h"
#include "http/http_message.h"

namespace kvasir {

// An answer that comes after the engine has done its work.
struct LaterAnswer {
  using Reply = std::function<void(HttpResponse)>;
  // Calls `reply` once, now or later, on any thread: it must not block. What Prepare made is begun
  // on its thread, and may take long. REQUIRES: called once.
  std::function<void(Reply reply)> begin;
};

using Outcome = std::variant<HttpResponse, GenerationStart, LaterAnswer>;

}  // namespace kvasir
