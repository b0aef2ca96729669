// The flags of spans of a prompt.
#pragma once

#include <optional>
#include <vector>

#include "cli/args.h"
#include "kvasir/prompt_spans.h"

namespace kvasir::cli {

// Returns the flags of spans of a prompt of ids, and what they say; absent: they were not given.
std::vector<Flag> SpanFlags();
Result<std::optional<PromptSpans>> SpansOf(const Args& args);

}  // namespace kvasir::cli
