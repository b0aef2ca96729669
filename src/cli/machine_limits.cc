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
// What its files get where they are memory (tmpfs): of the limit.
constexpr uint64_t kFilesDivisor = 16;

// Tells whether a part of the plan takes what is left of it by flags that name it.
bool IsOpen(const Part& part, const Args& args, const EngineOptions& options) {
  const bool is_draft = part.bytes == &EngineOptions::draft_kv_memory_bytes;
  return !args.Has(part.flag) && (!is_draft || options.draft_model || options.draft_shape);
}

uint64_t DiskMemoryOf(const MemoryPlan& plan) {
  return plan.tier_index_bytes + plan.tier_buffer_bytes;
}

void Shrink(const Args& args, uint64_t most, EngineOptions* options) {
  const Result<MemoryPlan> planned = Engine::PlanMemory(*options);
  if (!planned) return;
  const MemoryPlan& plan = *planned;
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

// Returns what the disk tier's files take of the memory, at most: nothing where they do not lie in
// it. Where they do, they get a part of the limit if no flag gives their cap.
uint64_t FitFilesInMemory(const MemoryLimit& limit, EngineOptions* options) {
  std::optional<DiskOptions>& disk = options->disk;
  const auto folder = disk ? disk->folder : std::nullopt;
  if (!folder || !IsInMemory(*folder)) return 0;
  if (disk->cap_bytes) return *disk->cap_bytes;
  const uint64_t most = limit.bytes / kFilesDivisor;
  if (most < kDefaultDiskCapBytes) disk->cap_bytes = most;
  if (Engine::PlanMemory(*options)) return disk->cap_bytes.value_or(kDefaultDiskCapBytes);
  disk->cap_bytes = 0;
  if (options->warn && Engine::PlanMemory(*options)) {
    options->warn(fmt::format(
        "{} lies in memory, of which a process may take {} ({}): a sixteenth of it is too little "
        "for blocks of this model, so nothing is kept there; give a folder on a disk, or "
        "--disk-cap",
        *folder, FormatBytes(limit.bytes), limit.source));
  }
  return 0;
}

std::string FilesText(uint64_t files) {
  if (files == 0) return "";
  return fmt::format(", {} of it for the files of --disk, which lies in memory (--disk-cap),",
                     FormatBytes(files));
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
  const uint64_t files = FitFilesInMemory(limit, options);
  Result<MemoryPlan> plan = Engine::PlanMemory(*options);
  if (!plan) return {};
  const uint64_t share = ShareOf(limit.bytes), most = share - std::min(share, files);
  if (NeedOf(*plan) <= most) return {};
  const EngineOptions given = *options;
  for (const uint32_t grammar_compiles : {given.grammar_compiles, 1u}) {
    *options = given;
    options->grammar_compiles = grammar_compiles;
    Shrink(args, most, options);
    plan = Engine::PlanMemory(*options);
    if (!plan || NeedOf(*plan) <= most) return {};
  }
  const uint64_t need = NeedOf(*plan) + files;
  const uint64_t others = need - std::min(need, plan->kv_memory_bytes);
  const uint64_t largest = (limit.bytes - std::min(limit.bytes, others)) / kMib;
  const std::string said =
      fmt::format("the plan takes {}{} and this process may take {} ({})", FormatBytes(need),
                  FilesText(files), FormatBytes(limit.bytes), limit.source);
  if (need <= limit.bytes || args.Has("allow-overcommit")) {
    if (options->warn) {
      const uint64_t less = (share - std::min(share, others)) / kMib;
      options->warn(fmt::format(
          "{}: more than 60% of it may end in the system's killing it; {}", said,
          less > 0 ? fmt::format("--kv-memory {}MiB is 60%", less)
                   : fmt::format("what it takes beside the cache is {}", FormatBytes(others))));
    }
    return {};
  }
  if (largest == 0 && files > 0) {
    return FailField(Code::kInvalidArgument, "disk-cap",
                     "{}; what it takes beside the cache ({}) does not fit: use a smaller "
                     "--disk-cap, a folder on a disk or a smaller model; --allow-overcommit starts "
                     "anyway",
                     said, FormatBytes(others));
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
