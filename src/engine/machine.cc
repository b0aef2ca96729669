#include "kvasir/machine.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <algorithm>
#include <cmath>
#include <iterator>
#include <memory>
#include <new>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "base/cpu_topology.h"
#include "base/thread_pool.h"
#include "simd/target.h"

namespace kvasir {
namespace {

// More than the last-level cache of today's machines; and the bytes of one claim.
constexpr uint64_t kReadBytes = uint64_t{512} << 20;
constexpr uint64_t kPieceBytes = uint64_t{1} << 20;
// The most and the least bytes of a quick measurement.
constexpr uint64_t kQuickReadBytes = uint64_t{256} << 20, kLeastReadBytes = uint64_t{32} << 20;
constexpr uint32_t kFlopItems = 16;  // per thread
constexpr uint32_t kFlopRounds = 50'000;
constexpr uint32_t kPasses = 5;  // the best counts, because other processes only slow it down
// Sums in flight: two units for fused multiply-adds with four cycles of latency are full with
// eight.
constexpr uint32_t kChains = 10;

// A work item for the floating-point units: its number of operations, and the code.
struct FlopKernel {
  uint32_t lanes;
  float (*run)(float seed);
  double flops() const { return 2.0 * kFlopRounds * kChains * lanes; }
};

#if defined(__x86_64__)
float Fma256(float seed) {
  const __m256 factor = _mm256_set1_ps(0.999f), term = _mm256_set1_ps(0.001f);
  __m256 sums[kChains];
  for (uint32_t k = 0; k < kChains; ++k) sums[k] = _mm256_set1_ps(seed * static_cast<float>(k));
  for (uint32_t i = 0; i < kFlopRounds; ++i) {
#pragma GCC unroll 16  // so that the sums stay in registers
    for (uint32_t k = 0; k < kChains; ++k) sums[k] = _mm256_fmadd_ps(sums[k], factor, term);
  }
  for (uint32_t k = 1; k < kChains; ++k) sums[0] = _mm256_add_ps(sums[0], sums[k]);
  return _mm256_cvtss_f32(sums[0]);
}

__attribute__((target("avx512f"))) float Fma512(float seed) {
  const __m512 factor = _mm512_set1_ps(0.999f), term = _mm512_set1_ps(0.001f);
  __m512 sums[kChains];
  for (uint32_t k = 0; k < kChains; ++k) sums[k] = _mm512_set1_ps(seed * static_cast<float>(k));
  for (uint32_t i = 0; i < kFlopRounds; ++i) {
#pragma GCC unroll 16
    for (uint32_t k = 0; k < kChains; ++k) sums[k] = _mm512_fmadd_ps(sums[k], factor, term);
  }
  for (uint32_t k = 1; k < kChains; ++k) sums[0] = _mm512_add_ps(sums[0], sums[k]);
  return _mm512_cvtss_f32(sums[0]);
}

FlopKernel BestFlopKernel() {
  if (FloatTarget(BestTarget()) == Target::kAvx512) return {16, Fma512};
  return {8, Fma256};
}
#else
float FmaScalar(float seed) {
  float sums[kChains];
  for (uint32_t k = 0; k < kChains; ++k) sums[k] = seed * static_cast<float>(k);
  for (uint32_t i = 0; i < kFlopRounds; ++i) {
    for (float& sum : sums) sum = std::fma(sum, 0.999f, 0.001f);
  }
  for (uint32_t k = 1; k < kChains; ++k) sums[0] += sums[k];
  return sums[0];
}

FlopKernel BestFlopKernel() { return {1, FmaScalar}; }
#endif

uint64_t SumOf(const uint64_t* words, uint64_t count) {
  uint64_t sums[16] = {};
  for (uint64_t i = 0; i < count; i += 16) {
    // Prefetches like the kernels, because hardware prefetching hardly works on some machines.
    for (uint64_t line = 0; line < 16; line += 8) __builtin_prefetch(words + i + line + 512);
#pragma GCC unroll 16
    for (uint64_t k = 0; k < 16; ++k) sums[k] += words[i + k];
  }
  uint64_t total = 0;
  for (const uint64_t sum : sums) total += sum;
  return total;
}

// Runs fn(item, thread) for all items kPasses times; the shortest pass, in seconds.
template <typename Fn>
double BestSeconds(ThreadPool& pool, uint32_t items, Fn fn) {
  double best_s = 1e9;
  for (uint32_t pass = 0; pass < kPasses; ++pass) {
    const uint64_t start_ns = MonotonicNs();
    pool.Run(items, fn);
    best_s = std::min(best_s, static_cast<double>(MonotonicNs() - start_ns) / 1e9);
  }
  return best_s;
}

// Returns the bytes that all threads read a second, of so many. Throws std::bad_alloc.
double ReadBytesPerSecond(ThreadPool& pool, uint64_t bytes, std::vector<uint64_t>& sink) {
  constexpr uint64_t kPieceWords = kPieceBytes / 8;
  const std::unique_ptr<uint64_t[]> words(new uint64_t[bytes / 8]);  // new pages
  const auto pieces = static_cast<uint32_t>(bytes / kPieceBytes);
  pool.Run(pieces, [&](uint32_t item, uint32_t) {
    std::fill_n(words.get() + item * kPieceWords, kPieceWords, 1);
  });
  const double best_s = BestSeconds(pool, pieces, [&](uint32_t item, uint32_t thread) {
    sink[thread * 8] += SumOf(words.get() + item * kPieceWords, kPieceWords);
  });
  return static_cast<double>(bytes) / best_s;
}

}  // namespace

std::vector<std::string> SupportedTargetNames() {
  std::vector<std::string> names;
  for (const Target target : SupportedTargets()) names.emplace_back(NameOf(target));
  return names;
}

std::string BestTargetName() { return std::string(NameOf(BestTarget())); }

uint32_t DefaultThreads() { return ReadCpuTopology().default_threads(); }

MachineProcessors DescribeProcessors() {
  const CpuTopology topology = ReadCpuTopology();
  MachineProcessors all;
  all.cpus = static_cast<uint32_t>(topology.cpus.size());
  all.cores = topology.num_cores();
  all.cpu_limit = topology.cpu_limit;
  for (const MemoryNode& node : topology.nodes) {
    CpuTopology part;
    std::copy_if(topology.cpus.begin(), topology.cpus.end(), std::back_inserter(part.cpus),
                 [&](const Cpu& cpu) { return cpu.node == node.id; });
    all.nodes.push_back(
        {node.id, static_cast<uint32_t>(part.cpus.size()), part.num_cores(), node.memory_bytes});
  }
  return all;
}

MachineLimits MeasureLimits(std::optional<uint32_t> threads) {
  MachineLimits limits;
  limits.threads = threads ? *threads : DefaultThreads();
  ThreadPool pool(limits.threads, EnterComputeThread);
  limits.threads = pool.num_threads();  // fewer if the system refused one
  // Results go where the compiler cannot drop the work that made them; a line for each thread.
  std::vector<uint64_t> sink(limits.threads * 8);

  const FlopKernel kernel = BestFlopKernel();
  const uint32_t flop_items = kFlopItems * limits.threads;
  const double flop_s = BestSeconds(pool, flop_items, [&](uint32_t item, uint32_t thread) {
    sink[thread * 8] += static_cast<uint64_t>(kernel.run(static_cast<float>(item)));
  });
  limits.f32_flops_per_s = kernel.flops() * flop_items / flop_s;

  limits.read_bytes_per_s = ReadBytesPerSecond(pool, kReadBytes, sink);
  volatile uint64_t result = 0;
  for (const uint64_t value : sink) result = result + value;
  return limits;
}

std::optional<MachineLimits> MeasureReading(std::optional<uint32_t> threads, uint64_t most_bytes) {
  const uint64_t bytes = std::min(most_bytes, kQuickReadBytes) / kPieceBytes * kPieceBytes;
  if (bytes < kLeastReadBytes) return std::nullopt;
  MachineLimits limits;
  ThreadPool pool(threads ? *threads : DefaultThreads(), EnterComputeThread);
  limits.threads = pool.num_threads();
  std::vector<uint64_t> sink(limits.threads * 8);
  try {
    limits.read_bytes_per_s = ReadBytesPerSecond(pool, bytes, sink);
  } catch (const std::bad_alloc&) {
    return std::nullopt;
  }
  volatile uint64_t result = 0;
  for (const uint64_t value : sink) result = result + value;
  return limits;
}

}  // namespace kvasir
