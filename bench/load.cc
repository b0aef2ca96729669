// load: sends a workload to a server with OpenAI's API and prints what its clients see. Exit status
// 1: the run is void, because the generator itself was busy; 2: wrong flags; 3: no server.
#include <fmt/format.h>
#include <sys/resource.h>

#include <fstream>
#include <string>

#include "base/clock.h"
#include "base/result.h"
#include "cli/args.h"
#include "load/client.h"
#include "load/report.h"
#include "load/workload.h"

namespace kvasir::load {
namespace {

using cli::Args;
using cli::Flag;
using cli::FlagKind;

const std::vector<Flag>& Flags() {
  static const std::vector<Flag> flags = {
      {"url", "URL", "the server (default http://127.0.0.1:8080)"},
      {"workload", "W", "burst (default), chats, tenants, azure, mooncake"},
      {"trace", "F", "the file of azure (CSV) or mooncake (JSONL)"},
      {"scale", "S", "of a recording: lengths times S, times divided by S (default 1)"},
      {"shuffle", "",
       "requests of a recording in random order: any part of it has the lengths of all",
       FlagKind::kSwitch},
      {"requests", "N", "at most N requests (default: the workload's own number)"},
      {"rate", "R",
       "open loop: R requests a second, whatever the server does; 0: a recording's times"},
      {"concurrency", "C", "closed loop: C clients (default 8)"},
      {"seconds", "S", "send nothing after S seconds (default: send all)"},
      {"wait", "S",
       "give answers up that do not end S seconds after the last request (default 120)"},
      {"max-total", "N", "longest prompt and answer in tokens (default 2048)"},
      {"vocab", "N", "token ids are below N (default 256)"},
      {"seed", "N", "the same seed sends the same requests (default 1)"},
      {"tenants", "N", "tenants that take turns (default: one for each key)"},
      {"api-key", "KEY", "of a tenant; may be given several times", FlagKind::kList},
      {"model", "NAME", "sent as `model` (default: not sent)"},
      {"temperature", "T", "default 0"},
      {"chat", "", "chats with a word for each token, instead of prompts of ids",
       FlagKind::kSwitch},
      {"whole", "",
       "answers are not streamed: no times of tokens, next to no work for the generator",
       FlagKind::kSwitch},
      {"slo-ttft-ms", "MS", "a good request's first token comes within this (default 1000)"},
      {"slo-itl-ms", "MS", "and its tokens follow within this on average (default 200)"},
      {"lengths-out", "F", "writes the tokens of each answer to F, a line each"},
      {"lengths", "F", "sends them as max_tokens: the same answers, of known lengths"},
      {"pid", "PID", "of the server, to report its memory"},
      {"json", "", "one object instead of lines", FlagKind::kSwitch}};
  return flags;
}

std::string Help() {
  std::string text = "usage: load [flags]\n\n";
  for (const Flag& flag : Flags()) {
    text += fmt::format("  {:<22} {}\n", cli::Dashed(flag.name) + " " + flag.value, flag.help);
  }
  return text;
}

Result<WorkloadOptions> WorkloadOf(const Args& args) {
  WorkloadOptions options;
  KV_ASSIGN(options.name, args.OneOf("workload", kWorkloads, "burst"));
  KV_ASSIGN(const uint64_t requests, args.Uint("requests", 1, 1 << 24, 0));
  KV_ASSIGN(options.rate, args.Float("rate", {0, 1e6}, 0));
  KV_ASSIGN(options.scale, args.Float("scale", {1e-4, 1e4}, 1));
  KV_ASSIGN(const uint64_t max_total, args.Uint("max-total", 128, 1 << 24, options.max_total));
  KV_ASSIGN(const uint64_t vocab, args.Uint("vocab", 2, 1 << 30, 256));
  const auto num_keys = std::max<uint64_t>(1, args.List("api-key").size());
  KV_ASSIGN(const uint64_t tenants, args.Uint("tenants", 1, 4096, num_keys));
  KV_ASSIGN(options.seed, args.Uint("seed", 0, uint64_t{1} << 62, 1));
  options.requests = static_cast<uint32_t>(requests);
  options.shuffle = args.Has("shuffle");
  if (options.shuffle && args.Has("rate") && options.rate == 0) {
    return Fail(Code::kInvalidArgument,
                "--shuffle: the times of a recording have an order; give a --rate above 0");
  }
  options.max_total = static_cast<uint32_t>(max_total);
  options.vocab_size = static_cast<uint32_t>(vocab);
  options.tenants = static_cast<uint32_t>(tenants);
  return options;
}

Result<RunOptions> RunOptionsOf(const Args& args) {
  RunOptions options;
  KV_ASSIGN(options.target, ParseUrl(args.Text("url").value_or("http://127.0.0.1:8080")));
  options.target.api_keys = args.List("api-key");
  options.target.model = args.Text("model").value_or("");
  options.target.chat = args.Has("chat");
  options.target.whole = args.Has("whole");
  KV_ASSIGN(options.target.temperature, args.Float("temperature", {0, 100}, 0));
  KV_ASSIGN(options.seconds, args.Float("seconds", {0, 1e6}, 0));
  KV_ASSIGN(options.wait_s, args.Float("wait", {1, 1e6}, 120));
  if (args.Has("rate") && args.Has("concurrency")) {
    return Fail(Code::kInvalidArgument, "give only one of --rate and --concurrency");
  }
  KV_ASSIGN(const uint64_t clients, args.Uint("concurrency", 1, 1 << 16, 8));
  options.concurrency = args.Has("rate") ? 0 : static_cast<uint32_t>(clients);
  return options;
}

// Returns a value of /proc/PID/status, in bytes.
std::optional<uint64_t> MemoryOf(uint64_t pid, const std::string& key) {
  std::ifstream status(fmt::format("/proc/{}/status", pid));
  for (std::string name, rest; status >> name && std::getline(status, rest);) {
    if (name == key + ":") return std::stoull(rest) * 1024;
  }
  return std::nullopt;
}

Status WriteLengths(const std::string& path, const std::vector<Sample>& samples) {
  std::ofstream file(path);
  for (const Sample& sample : samples) file << sample.completion_tokens << '\n';
  if (!file.flush()) return Fail(Code::kIoError, "--lengths-out: {} cannot be written", path);
  return {};
}

Status ReadLengths(const std::string& path, std::vector<LoadRequest>& requests) {
  std::ifstream file(path);
  for (LoadRequest& request : requests) {
    if (!(file >> request.max_tokens) || request.max_tokens == 0) {
      return Fail(Code::kInvalidArgument,
                  "--lengths: {} has no length above 0 for each of the {} requests; write it with "
                  "--lengths-out and the same workload",
                  path, requests.size());
    }
  }
  return {};
}

double CpuSeconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

Result<int> Main(const Args& args) {
  KV_ASSIGN(const WorkloadOptions workload, WorkloadOf(args));
  KV_ASSIGN(const RunOptions options, RunOptionsOf(args));
  KV_ASSIGN(const uint64_t pid, args.Uint("pid", 1, 1 << 30, 0));
  std::vector<RecordedRequest> recording;
  if (const auto path = args.Text("trace")) {
    KV_ASSIGN(recording, ReadRecording(*path));
  }
  KV_ASSIGN(auto requests, MakeWorkload(workload, recording));
  if (const auto path = args.Text("lengths")) {
    KV_TRY(ReadLengths(*path, requests));
  }
  ReportOptions report;
  KV_ASSIGN(report.slo_ttft_ms, args.Float("slo-ttft-ms", {0, 1e9}, 1000));
  KV_ASSIGN(report.slo_itl_ms, args.Float("slo-itl-ms", {0, 1e9}, 200));
  const double cpu_s = CpuSeconds();
  KV_ASSIGN(const LoadResult result, RunLoad(requests, options));
  report.own_cpu_share = (CpuSeconds() - cpu_s) / std::max(result.seconds, 1e-9);
  if (pid > 0) {
    report.server_rss_bytes = MemoryOf(pid, "VmRSS");
    report.server_peak_rss_bytes = MemoryOf(pid, "VmHWM");
  }
  if (const auto path = args.Text("lengths-out")) {
    KV_TRY(WriteLengths(*path, result.samples));
  }
  const Report all = MakeReport(result, report);
  fmt::print("{}", args.Has("json") ? JsonOf(all) : TextOf(all));
  return all.is_void() ? 1 : 0;
}

Result<int> Run(std::span<char* const> arguments) {
  KV_ASSIGN(const Args args, cli::ParseArgs("load", Flags(), {arguments.begin(), arguments.end()}));
  if (!args.Has("help")) return Main(args);
  fmt::print("{}", Help());
  return 0;
}

}  // namespace
}  // namespace kvasir::load

int main(int argc, char** argv) {
  const auto status = kvasir::load::Run({argv + 1, static_cast<size_t>(argc - 1)});
  if (status) return *status;
  fmt::print(stderr, "load: {}\n", status.error().message);
  return status.error().code == kvasir::Code::kUnavailable ? 3 : 2;
}
