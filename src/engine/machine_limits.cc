// Keeps the limits of this machine that were measured, so that a server need not measure them.
#include <fmt/format.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>

#include "base/atomic_file.h"
#include "base/result.h"
#include "base/user_folders.h"
#include "kvasir/machine.h"

namespace kvasir {
namespace {

namespace fs = std::filesystem;

// This line; the processor's name; then, for each number of threads, a line of threads, bytes and
// operations (0: not measured) a second.
constexpr const char* kFirstLine = "kvasir-limits 1";
constexpr double kMostPerSecond = 1e18;

fs::path PathIn(const fs::path& cache_dir) { return cache_dir / "limits"; }

std::string ProcessorName() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("model name")) return line.substr(line.find(':') + 1);
  }
  return "";
}

bool IsSpeed(double per_s) { return std::isfinite(per_s) && per_s > 0 && per_s < kMostPerSecond; }

// Returns what is kept of this processor, by the number of threads; what is damaged ends it.
std::map<uint32_t, MachineLimits> ReadLimits(const fs::path& path) {
  std::map<uint32_t, MachineLimits> kept;
  std::error_code error;
  if (!fs::is_regular_file(path, error)) return kept;
  std::ifstream file(path);
  std::string first, processor;
  if (!std::getline(file, first) || !std::getline(file, processor)) return kept;
  if (first != kFirstLine || processor != ProcessorName()) return kept;
  MachineLimits one;
  while (file >> one.threads >> one.read_bytes_per_s >> one.f32_flops_per_s) {
    const bool has_flops = one.f32_flops_per_s != 0;
    if (!IsSpeed(one.read_bytes_per_s) || (has_flops && !IsSpeed(one.f32_flops_per_s))) break;
    kept[one.threads] = one;
  }
  return kept;
}

}  // namespace

Status KeepLimits(const std::optional<std::string>& cache_dir, const MachineLimits& limits) {
  const fs::path folder = CacheDir(cache_dir);
  if (folder.empty()) return Fail(Code::kNotFound, "limits: there is no cache folder");
  std::error_code ignored;
  fs::create_directories(folder, ignored);
  auto kept = ReadLimits(PathIn(folder));
  kept[limits.threads] = limits;
  std::string text = fmt::format("{}\n{}\n", kFirstLine, ProcessorName());
  for (const auto& [threads, one] : kept) {
    text += fmt::format("{} {:.0f} {:.0f}\n", threads, one.read_bytes_per_s, one.f32_flops_per_s);
  }
  return WriteAtomicFile(PathIn(folder), text, {.durability = Durability::kRecomputable});
}

std::optional<MachineLimits> KeptLimits(const std::optional<std::string>& cache_dir,
                                        std::optional<uint32_t> threads) {
  const auto kept = ReadLimits(PathIn(CacheDir(cache_dir)));
  const auto found = kept.find(threads.value_or(DefaultThreads()));
  return found != kept.end() ? std::optional(found->second) : std::nullopt;
}

}  // namespace kvasir
