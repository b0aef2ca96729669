// Keeps the limits of this machine that were measured, so that a server need not measure them.
#include <fmt/format.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <string>

#include "base/atomic_file.h"
#include "base/result.h"
#include "base/user_folders.h"
#include "kvasir/machine.h"

namespace kvasir {
namespace {

namespace fs = std::filesystem;

// Three lines: this one; the processor's name; threads, bytes and operations (0: not measured) a
// second.
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

}  // namespace

Status KeepLimits(const std::optional<std::string>& cache_dir, const MachineLimits& limits) {
  const fs::path folder = CacheDir(cache_dir);
  if (folder.empty()) return Fail(Code::kNotFound, "limits: there is no cache folder");
  std::error_code ignored;
  fs::create_directories(folder, ignored);
  return WriteAtomicFile(
      PathIn(folder),
      fmt::format("{}\n{}\n{} {:.0f} {:.0f}\n", kFirstLine, ProcessorName(), limits.threads,
                  limits.read_bytes_per_s, limits.f32_flops_per_s),
      {.durability = Durability::kRecomputable});
}

std::optional<MachineLimits> KeptLimits(const std::optional<std::string>& cache_dir,
                                        std::optional<uint32_t> threads) {
  const fs::path path = PathIn(CacheDir(cache_dir));
  std::error_code error;
  if (!fs::is_regular_file(path, error)) return std::nullopt;
  std::ifstream file(path);
  std::string first, processor;
  MachineLimits limits;
  if (!std::getline(file, first) || !std::getline(file, processor) ||
      !(file >> limits.threads >> limits.read_bytes_per_s >> limits.f32_flops_per_s)) {
    return std::nullopt;
  }
  const bool fits = first == kFirstLine && processor == ProcessorName() &&
                    limits.threads == threads.value_or(DefaultThreads());
  const bool has_flops = limits.f32_flops_per_s != 0;
  if (!fits || !IsSpeed(limits.read_bytes_per_s) ||
      (has_flops && !IsSpeed(limits.f32_flops_per_s))) {
    return std::nullopt;
  }
  return limits;
}

}  // namespace kvasir
