// Bench: the speed of a model's prefill and decode at a depth, without scheduler or sampler.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "kvasir/engine_options.h"
#include "kvasir/machine.h"
#include "kvasir/status.h"

namespace kvasir {

struct BenchOptions {
  EngineOptions engine;                          // model or shape, weights, kv_format, threads, ...
  std::vector<uint32_t> prefill_tokens = {512};  // empty: no prefill
  uint32_t decode_tokens = 64;                   // 0: no decode
  std::vector<uint32_t> depths = {0};
  uint32_t repeats = 5;
  std::function<void(const std::string& what)> progress;
};

enum class BenchTest { kPrefill, kDecode };

// tok_s: the median of the repeats.
struct BenchResult {
  BenchTest test;
  uint32_t tokens, depth;
  double tok_s, tok_s_min, tok_s_max;
  uint64_t bytes_per_token;  // packed weights read (a tied table once) plus KV read at that depth
  double flops_per_token;    // products of the matrices and of attention
};

struct BenchReport {
  std::vector<BenchResult> results;
  MachineLimits limits;
  std::string model, weights, kv_format, target;
  uint64_t parameters = 0;
};

// Measures a model's speed at depths that are filled with generated KV, never prefilled.
// kInvalidArgument, of the field "depth" or "decode_tokens": nothing to measure; a depth and its
// tokens exceed the model's context.
Result<BenchReport> RunBench(const BenchOptions& options);

// The share of an engine's prefill that goes to Match, Extend and Commit when nothing can be
// reused.
struct CacheShare {
  uint32_t prompt_tokens = 0;
  double step_ms = 0;   // mean time of one prefill
  double cache_us = 0;  // mean time inside the cache, as part of step_ms
  double share() const { return step_ms > 0 ? cache_us / 1000 / step_ms : 0; }
};
// Returns the mean of options.repeats prompts, cut to the model's context. kInvalidArgument, of the
// field "repeats" or "prompt_tokens": none to run.
Result<CacheShare> MeasureCacheShare(const BenchOptions& options, uint32_t prompt_tokens);

}  // namespace kvasir
