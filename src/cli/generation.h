// Runs one request for the command line: streams its text, shows the progress of a long prompt and
// handles Ctrl-C.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "kvasir/engine.h"

namespace kvasir::cli {

struct Outcome {
  std::vector<TokenId> tokens;
  std::string text;
  FinishReason finish_reason = FinishReason::kNone;  // kCancelled after Ctrl-C
  Receipt receipt;
  double total_ms = 0;
};

// Runs `request` (n = 1) to its end and calls `on_text` on this thread with each piece. Errors:
// those of Submit, and of the generation itself.
Result<Outcome> RunRequest(Engine& engine, GenerateRequest request,
                           const std::function<void(std::string_view)>& on_text);
// Generates for callers that read the events, with any n. kCancelled after Ctrl-C.
Result<FinishReason> RunEvents(Engine& engine, GenerateRequest request,
                               const std::function<void(const Event&)>& on_event);

}  // namespace kvasir::cli
