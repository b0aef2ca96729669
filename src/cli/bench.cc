// kvasir bench: prefill and decode speed at a depth, and their share of this machine's limits.
#include "kvasir/bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/result.h"
#include "base/sizes.h"
#include "cli/bench_transcript.h"
#include "cli/build_info.h"
#include "cli/command.h"
#include "cli/engine_flags.h"
#include "cli/interrupt.h"
#include "cli/progress.h"

namespace kvasir::cli {
namespace {

constexpr uint32_t kSharePromptTokens = 1024;
constexpr uint64_t kMaxBenchTokens = uint64_t{1} << 24;

const char* NameOf(BenchTest test) { return test == BenchTest::kPrefill ? "prefill" : "decode"; }

Result<std::vector<uint32_t>> Counts(const Args& args, const std::string& name,
                                     std::vector<uint64_t> otherwise) {
  KV_ASSIGN(const auto values, args.UintList(name, 0, kMaxBenchTokens, std::move(otherwise)));
  return std::vector<uint32_t>(values.begin(), values.end());
}

Result<BenchOptions> ReadBenchOptions(const Args& args) {
  BenchOptions options;
  KV_ASSIGN(options.engine, EngineOptionsOf(args));
  KV_ASSIGN(options.prefill_tokens, Counts(args, "p", {512}));
  if (options.prefill_tokens == std::vector<uint32_t>{0}) options.prefill_tokens.clear();
  for (const uint32_t tokens : options.prefill_tokens) {
    if (tokens == 0) {
      return Fail(Code::kInvalidArgument,
                  "-p: 0 skips prefill and cannot be combined with other numbers; give -p 0");
    }
  }
  KV_ASSIGN(const uint64_t decode, args.Uint("n", 0, kMaxBenchTokens, 64));
  options.decode_tokens = static_cast<uint32_t>(decode);
  KV_ASSIGN(options.depths, Counts(args, "d", {0}));
  KV_ASSIGN(const uint64_t repeats, args.Uint("repeats", 1, 1000, options.repeats));
  options.repeats = static_cast<uint32_t>(repeats);
  return options;
}

// Cuts what -p and -n do not give to the room that the model's context has after the deepest -d.
// Returns the context if it cut something.
Result<std::optional<uint32_t>> FitDefaults(const Args& args, BenchOptions* options) {
  if (args.Has("p") && args.Has("n")) return std::nullopt;
  KV_ASSIGN(const MemoryPlan plan, Engine::PlanMemory(options->engine));
  const uint32_t deepest = std::ranges::max(options->depths);
  if (deepest >= plan.ctx_size) return std::nullopt;  // RunBench refuses it
  bool is_cut = false;
  const auto fit = [&](uint32_t& tokens) {
    is_cut |= tokens > plan.ctx_size - deepest;
    tokens = std::min(tokens, plan.ctx_size - deepest);
  };
  if (!args.Has("p")) fit(options->prefill_tokens.front());
  if (!args.Has("n")) fit(options->decode_tokens);
  return is_cut ? std::optional(plan.ctx_size) : std::nullopt;
}

void PrintJson(const BenchReport& report, const std::optional<CacheShare>& cache) {
  nlohmann::ordered_json results = nlohmann::ordered_json::array();
  for (const BenchResult& result : report.results) {
    results.push_back({{"test", NameOf(result.test)},
                       {"tokens", result.tokens},
                       {"depth", result.depth},
                       {"weights", report.weights},
                       {"kv_format", report.kv_format},
                       {"tok_s", result.tok_s},
                       {"tok_s_min", result.tok_s_min},
                       {"tok_s_max", result.tok_s_max},
                       {"bytes_per_token", result.bytes_per_token}});
  }
  nlohmann::ordered_json json = {{"results", results},
                                 {"limits",
                                  {{"read_bandwidth_gb_s", report.limits.read_bytes_per_s / 1e9},
                                   {"f32_gflops", report.limits.f32_flops_per_s / 1e9},
                                   {"threads", report.limits.threads}}},
                                 {"model", report.model},
                                 {"parameters", report.parameters},
                                 {"target", report.target},
                                 {"commit", kCommit}};
  if (cache) {
    json["cache"] = {{"prompt_tokens", cache->prompt_tokens},
                     {"step_ms", cache->step_ms},
                     {"cache_us", cache->cache_us},
                     {"share", cache->share()}};
  }
  fmt::print("{}\n", json.dump(2));
}

void PrintTable(const BenchReport& report, const std::optional<CacheShare>& cache,
                std::optional<uint32_t> cut_to) {
  const MachineLimits& limits = report.limits;
  fmt::print("{}: {:.1f} million parameters, weights {}, KV {}, target {}, {}\n", report.model,
             static_cast<double>(report.parameters) / 1e6, report.weights, report.kv_format,
             report.target, CountText(limits.threads, "thread"));
  if (cut_to) {
    fmt::print("the model's context has {} tokens: tests without -p and -n are cut to it\n",
               *cut_to);
  }
  fmt::print("limits of this machine: {:.1f} GB/s read, {:.0f} GFLOP/s in f32\n\n",
             limits.read_bytes_per_s / 1e9, limits.f32_flops_per_s / 1e9);
  fmt::print("{:<8} {:>7} {:>8} {:>12} {:>23}   {}\n", "test", "tokens", "depth", "tok/s",
             "min .. max", "of the limit");
  for (const BenchResult& result : report.results) {
    // Decode reads the weights for each token; prefill reads them once for many and computes.
    const double read = result.tok_s * static_cast<double>(result.bytes_per_token);
    const double compute = result.tok_s * result.flops_per_token;
    const bool f32_peak = report.weights.find_first_of("iq") == std::string::npos;
    const std::string share =
        result.test == BenchTest::kDecode
            ? fmt::format(
                  "{:.0f}% of read bandwidth{}", 100 * read / limits.read_bytes_per_s,
                  read > limits.read_bytes_per_s
                      ? " (from the CPU's caches, or the limit was measured on a busy machine)"
                      : "")
        : f32_peak ? fmt::format("{:.0f}% of f32 compute", 100 * compute / limits.f32_flops_per_s)
                   : fmt::format("{:.0f} GOP/s", compute / 1e9);
    fmt::print("{:<8} {:>7} {:>8} {:>12.1f} {:>10.1f} .. {:>8.1f}   {}\n", NameOf(result.test),
               result.tokens, result.depth, result.tok_s, result.tok_s_min, result.tok_s_max,
               share);
  }
  if (!cache) return;
  fmt::print(
      "\ncache    {} tokens, nothing to reuse: {:.1f} us of {:.1f} ms inside Match, Extend, "
      "Commit: {:.3f}% (target < 0.5%)\n",
      cache->prompt_tokens, cache->cache_us, cache->step_ms, 100 * cache->share());
}

Result<int> RunBench(const Args& args) {
  KV_ASSIGN(BenchOptions options, ReadBenchOptions(args));
  KV_ASSIGN(const bool replays, ReplayTranscripts(args, options));
  if (replays) return kExitDone;
  ExitOnInterrupt();
  KV_ASSIGN(const std::optional<uint32_t> cut_to, FitDefaults(args, &options));
  Progress progress;
  options.progress = [&](const std::string& what) { progress.Show(what); };
  options.engine.progress = [&](const char* phase, double share) {
    progress.Show(fmt::format("{}: {:.0f}%", phase, share * 100), share);
  };
  options.engine.warn = [&progress, warn = options.engine.warn](const std::string& text) {
    progress.Clear();
    warn(text);
  };
  KV_ASSIGN(const BenchReport report, RunBench(options));
  std::optional<CacheShare> cache;
  if (!options.prefill_tokens.empty() && !args.Has("speed-only")) {
    KV_ASSIGN(cache, MeasureCacheShare(options, kSharePromptTokens));
  }
  progress.Clear();
  if (args.Has("json")) {
    PrintJson(report, cache);
  } else {
    PrintTable(report, cache, cut_to);
  }
  return kExitDone;
}

}  // namespace

Command BenchCommand() {
  return Grouped(
      {"bench", "prefill and decode speed at a depth, and their share of this machine's limits",
       "bench --shape llama-100m -p 512 -n 64 -d 0,4096",
       Join(
           {{{"shape", "S",
              "random weights of this shape, no files: tiny, llama-1b, qwen2-0.5b, llama-100m, "
              "qwen3-moe-2b, gemma3-1b, phi3-mini, m2m100-418m, m2m100-1.2b (with "
              "--weights i8, i4, q8_0, q4_0, f32, f16 or bf16, the default)"},
             {"p", "N,...",
              "prompts of N tokens (default 512, or what fits the context after -d; 0 skips "
              "prefill and the cache row)"},
             {.name = "n",
              .value = "N",
              .help = "decode N tokens (default 64, or what fits; 0 skips decode)",
              .field = "decode_tokens"},
             {.name = "d",
              .value = "N,...",
              .help =
                  "measure after this many tokens; their KV is generated, not computed (default 0)",
              .field = "depth"},
             {"repeats", "N",
              "measure each row at least N times; the median counts (default 5; with --transcript "
              "1)"},
             {"speed-only", "",
              "skip the cache row, which loads the model again and runs more prompts",
              FlagKind::kSwitch},
             {"block-tokens", "N", "tokens of a block: a multiple of 16 (default 16)"},
             {"retention", "POLICY",
              "what a sequence keeps from its first token on (default full), as 'kvasir run' has "
              "it"},
             {"eviction", "POLICY",
              "eviction policy of the measured cache: " + EvictionChoicesText()},
             {"json", "", "one object: results, limits, cache", FlagKind::kSwitch}},
            TranscriptFlags(),
            LoadFlags()}),
       RunBench},
      "model shape p n d json");
}

}  // namespace kvasir::cli
