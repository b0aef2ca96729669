// What spans cost: answers to probes whose notes are spans, beside answers to the same prompts.
#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "eval/statistics.h"
#include "eval/text.h"
#include "kvasir/engine.h"

namespace kvasir::eval {

// The probes' notes, each cut into kNoteSpans spans, with one seam and one head.
struct SpanQuality {
  uint32_t seam = 0;
  std::optional<uint32_t> head;  // PromptSpans::head
  uint64_t probes = 0, right = 0, exact_right = 0;
  Quality quality;  // of the logits of the expected answers, beside those of the exact prompts
};
inline constexpr uint32_t kNoteSpans = 4;

// Measures each seam with spans that are computed after all that stands before the first one, and
// then with spans that are computed after the start token. Probes whose notes are too short for
// kNoteSpans spans are left out. kInvalidArgument where that leaves none; errors as Generate's.
Result<std::vector<SpanQuality>> MeasureSpans(Engine& engine, std::span<const Probe> probes,
                                              std::span<const uint32_t> seams,
                                              const std::function<void(const std::string&)>& say);

std::string TableOf(std::span<const SpanQuality> rows);
nlohmann::ordered_json JsonOf(std::span<const SpanQuality> rows);

}  // namespace kvasir::eval
