#include "cli/machine_limits.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/cpu_topology.h"
#include "base/result.h"
#include "base/sizes.h"
#include "kvasir/engine.h"
#include "kvasir/engine_ranges.h"
#include "kvasir/plan.h"

namespace kvasir::cli {
namespace {

constexpr uint64_t kMib = uint64_t{1} << 20;

// Returns 60% of the limit: the rest is for other processes, pages of files and what the allocator
// keeps.
constexpr uint64_t ShareOf(uint64_t limit) { return limit / 10 * 6; }

uint64_t NeedOf(const MemoryPlan& plan) { return plan.total_bytes + plan.process_bytes; }

// A flag's memory, which is not less than `least` if no flag gives it.
struct Part {
  const char* flag;
  uint64_t EngineOptions::*bytes;
  uint64_t least;
  uint64_t divisor;  // it gets at most 1/divisor of what the parts have together
};
constexpr Part kParts[] = {
    {"request-memory", &EngineOptions::request_memory_bytes, kMinRequestMemoryBytes, 4},
    {"session-memory", &EngineOptions::session_memory_bytes, 4 * kMib, 8},
    {"head-memory", &EngineOptions::head_memory_bytes, kMib / 4, 64},
    {"grammar-memory", &EngineOptions::grammar_memory_bytes, 8 * kMib, 8},
    {"draft-kv-memory", &EngineOptions::draft_kv_memory_bytes, 2 * kMib, 16}};
constexpr uint64_t kLeastKvBytes = 8 * kMib;
// The least memory of the disk tier, and its divisor as in Part; no flag names this memory.
constexpr uint64_t kLeastDiskBytes = 8 * kMib, kDiskDivisor = 8;

// Tells whether a part of the plan takes what is left of it by flags that name it.
bool IsOpen(const Part& part, const Args& args, const EngineOptions& options) {
  const bool is_draft = part.bytes == &EngineOptions::draft_kv_memory_bytes;
  return !args.Has(part.flag) && (!is_draft || options.draft_model || options.draft_shape);
}

uint64_t DiskMemoryOf(const MemoryPlan& plan) {
  return plan.tier_index_bytes + plan.tier_buffer_bytes;
}

// `plan`: of these options.
void Shrink(const Args& args, const MemoryPlan& plan, uint64_t most, EngineOptions* options) {
  const uint64_t need = NeedOf(plan);
  uint64_t open = DiskMemoryOf(plan) + (args.Has("kv-memory") ? 0 : options->kv_memory_bytes);
  for (const Part& part : kParts) {
    if (IsOpen(part, args, *options)) open += options->*part.bytes;
  }
  const uint64_t fixed = need - std::min(need, open);
  const uint64_t room = most - std::min(most, fixed);
  uint64_t left = room;
  if (options->disk && DiskMemoryOf(plan) > 0) {
    options->disk->memory_bytes = std::max(kLeastDiskBytes, room / kDiskDivisor / kMib * kMib);
    const auto smaller = Engine::PlanMemory(*options);
    left -= std::min(left, DiskMemoryOf(smaller ? *smaller : plan));
  }
  for (const Part& part : kParts) {
    if (!IsOpen(part, args, *options)) continue;
    uint64_t& bytes = options->*part.bytes;
    bytes = std::min(bytes, std::max(part.least, room / part.divisor / kMib * kMib));
    left -= std::min(left, bytes);
  }
  if (args.Has("kv-memory")) return;
  options->kv_memory_bytes =
      std::min(options->kv_memory_bytes, std::max(kLeastKvBytes, left / kMib * kMib));
}

}  // namespace

void WarnOfThreads(const EngineOptions& options) {
  if (!options.threads || !options.warn) return;
  const CpuTopology cpus = ReadCpuTopology();
  const bool is_limited = cpus.cpu_limit && *cpus.cpu_limit < static_cast<double>(cpus.cpus.size());
  const double allowed = is_limited ? *cpus.cpu_limit : static_cast<double>(cpus.cpus.size());
  if (*options.threads <= allowed) return;
  options.warn(fmt::format(
      "--threads {} is more than the {:.3g} {} that this process may use: each step waits "
      "for the slowest thread; give at most {}",
      *options.threads, allowed, is_limited ? "processors' time" : "processors",
      cpus.default_threads()));
}

Status FitToMachine(const Args& args, const MemoryLimit& limit, EngineOptions* options) {
  Result<MemoryPlan> plan = Engine::PlanMemory(*options);
  if (!plan) return {};
  const uint64_t most = ShareOf(limit.bytes);
  if (NeedOf(*plan) <= most) return {};
  Shrink(args, *plan, most, options);
  plan = Engine::PlanMemory(*options);
  if (!plan || NeedOf(*plan) <= most) return {};
  const uint64_t need = NeedOf(*plan), others = need - std::min(need, plan->kv_memory_bytes);
  const uint64_t largest = (limit.bytes - std::min(limit.bytes, others)) / kMib;
  const std::string said = fmt::format("the plan takes {} and this process may take {} ({})",
                                       FormatBytes(need), FormatBytes(limit.bytes), limit.source);
  if (need <= limit.bytes || args.Has("allow-overcommit")) {
    if (options->warn) {
      const uint64_t less = (most - std::min(most, others)) / kMib;
      options->warn(fmt::format(
          "{}: more than 60% of it may end in the system's killing it; {}", said,
          less > 0 ? fmt::format("--kv-memory {}MiB is 60%", less)
                   : fmt::format("what it takes beside the cache is {}", FormatBytes(others))));
    }
    return {};
  }
  if (largest == 0) {
    return FailField(
        Code::kInvalidArgument, "kv-memory",
        "{}; what it takes beside the cache ({}) does not fit: use a smaller model, --weights or "
        "--request-memory; --allow-overcommit starts anyway",
        said, FormatBytes(others));
  }
  return FailField(
      Code::kInvalidArgument, "kv-memory",
      "{}; the largest --kv-memory that fits is {}MiB; --allow-overcommit starts anyway", said,
      largest);
}

}  // namespace kvasir::cli
