// Timings: how many tokens a request took and how fast, as llama.cpp's server says it.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>

#include "kvasir/engine_event.h"

namespace kvasir {

struct Timings {
  uint64_t cached = 0, computed = 0;   // tokens of prompts
  uint64_t predicted = 0;              // tokens of answers
  uint64_t later = 0;                  // of those, all but each choice's first
  double prompt_ms = 0;                // inside the cache, loading and computing; not waiting
  double predicted_ms = 0;             // from the first token to the last
  uint64_t drafted = 0, accepted = 0;  // tokens of drafts

  // Adds a request that ran at the same time.
  void Add(const Timings& other);
};

// Returns those of a finished request. `choices`: those that have a token; `longest`: tokens of the
// longest one.
Timings TimingsOf(const Receipt& receipt, uint64_t completion_tokens, uint32_t choices,
                  uint32_t longest);
// Returns those of a request that runs, with one choice.
Timings TimingsOf(const Progress& progress, uint64_t completion_tokens);

// {"cache_n", "prompt_n", "prompt_ms", "prompt_per_token_ms", "prompt_per_second", "predicted_n",
// "predicted_ms", "predicted_per_token_ms", "predicted_per_second"}, and, if tokens were drafted,
// "draft_n" and "draft_n_accepted". The first token of a choice
// takes no time of its answer, so it does not count in predicted_per_second. 0 where no time has
// passed.
nlohmann::json TimingsJson(const Timings& timings);

// {"total", "cache", "processed", "time_ms"}.
nlohmann::json ProgressJson(const Progress& progress);

}  // namespace kvasir
