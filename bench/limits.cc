// The limits of this machine with pinned threads; speeds are compared with them.
//
//   limits [--json] [--threads N] [--mib N] [--repeats N] [--only NAME,...]
//
//   read      memory bandwidth over --mib in all (default 4096), the best of three ways to read
//   f32 ...   peak of each instruction that the CPU has, from registers; a multiply-add is two
//   int8 ...  operations. maddubs+paddw: sums kept in 16 bits, as 4-bit weights allow it
//   pingpong  one cache line from core to core and back
//
// Each figure is the median of --repeats (default 9), with the least and the most. --only read
// takes a quarter of a second once the memory is touched: read it between other measurements,
// since on shared hosts it moves.
#include "limits.h"

#include <fmt/format.h>
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <charconv>
#include <cstring>
#include <fstream>
#include <optional>
#include <string>
#include <string_view>
#include <thread>

#include "base/clock.h"

namespace kvasir {
namespace {

constexpr uint64_t kPieceBytes = uint64_t{2} << 20;  // what a thread claims at a time
constexpr double kPeakSeconds = 0.05;
constexpr uint32_t kBounces = 200'000;

struct Options {
  bool json = false;
  uint32_t threads = 0;
  uint64_t mib = 4096;
  uint32_t repeats = 9;
  std::vector<std::string> only;

  bool Wants(std::string_view name) const {
    return only.empty() || std::any_of(only.begin(), only.end(), [&](const std::string& word) {
             return name.starts_with(word);
           });
  }
};

struct Figure {
  std::string name, unit;
  double median, min, max;
};

Figure FigureOf(std::string name, std::string unit, std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return {std::move(name), std::move(unit), values[values.size() / 2], values.front(),
          values.back()};
}

std::vector<int> UsableCpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> cpus;
  if (sched_getaffinity(0, sizeof set, &set) == 0) {
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
      if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
    }
  }
  if (cpus.empty()) cpus.push_back(0);
  return cpus;
}

void PinTo(int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  pthread_setaffinity_np(pthread_self(), sizeof set, &set);
}

// Runs work() on a thread of each CPU, started together: seconds from the first start to the last
// end, measured by these threads themselves, because another thread would need a CPU to read the
// clock.
template <typename Work>
double SecondsOf(const std::vector<int>& cpus, Work work) {
  std::barrier line(static_cast<ptrdiff_t>(cpus.size()));
  std::vector<uint64_t> begin_ns(cpus.size()), end_ns(cpus.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < cpus.size(); ++i) {
    threads.emplace_back([&, i] {
      PinTo(cpus[i]);
      line.arrive_and_wait();
      begin_ns[i] = MonotonicNs();
      work();
      end_ns[i] = MonotonicNs();
    });
  }
  for (std::thread& thread : threads) thread.join();
  return static_cast<double>(*std::max_element(end_ns.begin(), end_ns.end()) -
                             *std::min_element(begin_ns.begin(), begin_ns.end())) /
         1e9;
}

// Memory of whole pieces, touched by the threads that will read it; ends with the object.
class Buffer {
 public:
  Buffer(uint64_t bytes, const std::vector<int>& cpus) : bytes_(bytes) {
    data_ = static_cast<std::byte*>(
        mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    if (data_ == MAP_FAILED) return;
    madvise(data_, bytes, MADV_HUGEPAGE);
    ForPieces(cpus, [](std::byte* piece) { std::memset(piece, 1, kPieceBytes); });
  }
  ~Buffer() {
    if (ok()) munmap(data_, bytes_);
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  bool ok() const { return data_ != MAP_FAILED; }
  uint64_t bytes() const { return bytes_; }

  // Calls fn(piece) for every piece, claimed by a counter; seconds.
  template <typename Fn>
  double ForPieces(const std::vector<int>& cpus, Fn fn) {
    std::atomic<uint64_t> next{0};
    return SecondsOf(cpus, [&] {
      for (uint64_t at; (at = next.fetch_add(kPieceBytes, std::memory_order_relaxed)) < bytes_;) {
        fn(data_ + at);
      }
    });
  }

 private:
  uint64_t bytes_;
  std::byte* data_;
};

std::optional<Figure> MeasureRead(const Options& options, const std::vector<int>& cpus) {
  Buffer buffer(std::max<uint64_t>(options.mib << 20, kPieceBytes) / kPieceBytes * kPieceBytes,
                cpus);
  if (!buffer.ok()) return std::nullopt;
  std::atomic<uint64_t> sink{0};  // what is read must not be dropped by the compiler
  const auto speed = [&](const Reader& reader) {
    const double seconds = buffer.ForPieces(cpus, [&](const std::byte* piece) {
      sink.fetch_add(reader.run(piece, kPieceBytes), std::memory_order_relaxed);
    });
    return static_cast<double>(buffer.bytes()) / seconds / 1e9;
  };
  const std::vector<Reader> readers = Readers();
  const Reader* best = &readers.front();
  double best_speed = 0;
  for (const Reader& reader : readers) {
    const double now = speed(reader);
    if (now > best_speed) best = &reader, best_speed = now;
  }
  std::vector<double> values;
  for (uint32_t i = 0; i < options.repeats; ++i) values.push_back(speed(*best));
  return FigureOf(fmt::format("read, {}", best->name), "GB/s", std::move(values));
}

Figure MeasurePeak(const Options& options, const std::vector<int>& cpus, const Peak& peak) {
  uint64_t rounds = 1000;
  const auto seconds = [&] { return SecondsOf(cpus, [&] { peak.run(rounds); }); };
  for (double took = seconds(); took < kPeakSeconds; took = seconds()) {
    rounds = took < kPeakSeconds / 8
                 ? rounds * 8
                 : static_cast<uint64_t>(static_cast<double>(rounds) * 1.1 * kPeakSeconds / took);
  }
  std::vector<double> values;
  for (uint32_t i = 0; i < options.repeats; ++i) {
    const double operations = peak.operations_per_round * static_cast<double>(rounds * cpus.size());
    values.push_back(operations / seconds() / 1e9);
  }
  return FigureOf(peak.name, "GOP/s", std::move(values));
}

// Measures how long a cache line takes that two cores write in turns: the least time to begin and
// end a phase of work.
Figure MeasurePingPong(const Options& options, const std::vector<int>& cpus) {
  std::vector<double> values;
  for (uint32_t i = 0; i < options.repeats; ++i) {
    alignas(64) std::atomic<uint32_t> ball{0};
    std::atomic<uint32_t> side{0};
    const double seconds = SecondsOf({cpus[0], cpus[1]}, [&] {
      const uint32_t mine = side.fetch_add(1, std::memory_order_relaxed);
      for (uint32_t turn = mine; turn < 2 * kBounces; turn += 2) {
        while (ball.load(std::memory_order_acquire) != turn) Pause();
        ball.store(turn + 1, std::memory_order_release);
      }
    });
    values.push_back(seconds / kBounces * 1e9);
  }
  return FigureOf("pingpong", "ns", std::move(values));
}

std::string CpuName() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  }
  return "unknown";
}

void Print(const Options& options, const std::vector<Figure>& figures, size_t threads) {
  if (!options.json) {
    fmt::print("{}, {} threads\n{:<28} {:>10} {:>22}\n", CpuName(), threads, "limit", "median",
               "min .. max");
    for (const Figure& figure : figures) {
      fmt::print("{:<28} {:>10.1f} {:>10.1f} .. {:>8.1f} {}\n", figure.name, figure.median,
                 figure.min, figure.max, figure.unit);
    }
    return;
  }
  fmt::print("{{\"cpu\": \"{}\", \"threads\": {}, \"limits\": [", CpuName(), threads);
  const char* comma = "";
  for (const Figure& figure : figures) {
    fmt::print(
        "{}\n  {{\"limit\": \"{}\", \"unit\": \"{}\", \"median\": {:.2f}, \"min\": {:.2f}, "
        "\"max\": {:.2f}}}",
        comma, figure.name, figure.unit, figure.median, figure.min, figure.max);
    comma = ",";
  }
  fmt::print("\n]}}\n");
}

// nullopt: wrong arguments.
std::optional<Options> Parse(std::span<char*> args) {
  Options options;
  for (size_t i = 0; i < args.size(); ++i) {
    const std::string_view flag = args[i];
    if (flag == "--json") {
      options.json = true;
      continue;
    }
    if (i + 1 == args.size()) return std::nullopt;
    const std::string_view value = args[++i];
    if (flag == "--only") {
      for (size_t begin = 0; begin <= value.size();) {
        const size_t end = std::min(value.find(',', begin), value.size());
        options.only.emplace_back(value.substr(begin, end - begin));
        begin = end + 1;
      }
      continue;
    }
    uint32_t number = 0;
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
    if (error != std::errc{} || end != value.data() + value.size() || number == 0) {
      return std::nullopt;
    }
    if (flag == "--threads") {
      options.threads = number;
    } else if (flag == "--mib") {
      options.mib = number;
    } else if (flag == "--repeats") {
      options.repeats = number;
    } else {
      return std::nullopt;
    }
  }
  return options;
}

int Run(std::span<char*> args) {
  const std::optional<Options> options = Parse(args);
  std::vector<int> cpus = UsableCpus();
  if (!options || options->threads > cpus.size()) {
    fmt::print(stderr,
               "usage: limits [--json] [--threads N, at most {}] [--mib N] [--repeats N] "
               "[--only NAME,...]\n",
               cpus.size());
    return 2;
  }
  if (options->threads > 0) cpus.resize(options->threads);
  std::vector<Figure> figures;
  if (options->Wants("read")) {
    const std::optional<Figure> read = MeasureRead(*options, cpus);
    if (!read) {
      fmt::print(stderr, "limits: no memory for --mib {}\n", options->mib);
      return 1;
    }
    figures.push_back(*read);
  }
  for (const Peak& peak : Peaks()) {
    if (options->Wants(peak.name)) figures.push_back(MeasurePeak(*options, cpus, peak));
  }
  if (cpus.size() > 1 && options->Wants("pingpong")) {
    figures.push_back(MeasurePingPong(*options, cpus));
  }
  Print(*options, figures, cpus.size());
  return 0;
}

}  // namespace
}  // namespace kvasir

int main(int argc, char** argv) {
  return kvasir::Run(std::span(argv + 1, static_cast<size_t>(argc - 1)));
}
