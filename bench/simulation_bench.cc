// The scheduler on published recordings, in virtual time (testing/simulation.h), and the time of
// its decisions. One JSON line a row; exit status 1 when a figure is wrong: the cache finds other
// tokens than the recording's golden figures say, or a target is missed.
//
// usage: simulation_bench [folder of the data, with mooncake-conversation and azure-llm-2023]
#include <fmt/format.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "base/random.h"
#include "source_paths.h"
#include "testing/simulation.h"

namespace kvasir {
namespace {

constexpr uint32_t kMaxTokens = 2000;

struct Machine {
  const char* name;
  MachineModel model;
  uint32_t parallel;
  bool has_targets;  // the others are shown beside it
};
constexpr Machine kMachines[] = {{"two CPU cores, 8 at once", kCpuMachine, 8, true},
                                 {"a GPU, 64 at once", kGpuMachine, 64, false}};

// Returns the mean length of a request's prompt and answer.
double MeanTokens(const std::vector<RecordedRequest>& recording) {
  double sum = 0;
  for (const RecordedRequest& request : recording)
    sum += request.input_tokens + request.output_tokens;
  return sum / static_cast<double>(recording.size());
}

// Returns options with more requests than run at once, and blocks for all that run.
SimulationOptions SaturatedOn(const Machine& machine, double mean_tokens) {
  SimulationOptions options{
      .machine = machine.model,
      .scheduler = {.target_step_ns = 200'000'000, .parallel = machine.parallel},
      .concurrency = 2 * machine.parallel};
  options.num_blocks = static_cast<uint32_t>(machine.parallel * mean_tokens / options.block_tokens);
  return options;
}

struct Row {
  std::string name;
  std::string figures;
  bool right = true;
};

bool Print(const Row& row) {
  fmt::print("{{\"bench\": \"simulation\", \"row\": \"{}\", {}, \"right\": {}}}\n", row.name,
             row.figures, row.right);
  return row.right;
}

// Writes a number; null for a request that never began, since JSON has no number for it.
std::string Number(double value) {
  return std::isfinite(value) ? fmt::format("{:.1f}", value) : "null";
}

std::string FiguresOf(const SimulationResult& result) {
  const Percentiles ttft = result.ttft_ms(), itl = PercentilesOf(result.itl_ms);
  return fmt::format(
      "\"requests\": {}, \"refused\": {}, \"steps\": {}, \"virtual_s\": {:.1f}, "
      "\"mean_batch\": {:.2f}, \"tok_s\": {:.1f}, \"computed\": {}, \"hit\": {}, "
      "\"preemptions\": {}, \"recomputed_share\": {:.4f}, \"ttft_ms\": {{\"p50\": {}, "
      "\"p95\": {}, \"p99\": {}}}, \"itl_ms\": {{\"p50\": {:.1f}, \"p95\": {:.1f}, "
      "\"p99\": {:.1f}}}, \"digest\": \"{:016x}\"",
      result.answers.size(), result.refusals(), result.stats.steps,
      static_cast<double>(result.virtual_ns) * 1e-9, result.mean_decode_batch(),
      result.tokens_per_s(), result.stats.prefill_rows + result.stats.decode_rows,
      result.hit_tokens(), result.preemptions(), result.recomputed_share(), Number(ttft.p50),
      Number(ttft.p95), Number(ttft.p99), itl.p50, itl.p95, itl.p99, result.digest);
}

// Returns Mooncake's requests at their times.
std::vector<SimulatedRequest> RequestsOf(const std::vector<RecordedRequest>& recording,
                                         uint32_t max_tokens) {
  std::vector<SimulatedRequest> requests;
  for (const RecordedRequest& request : recording) {
    requests.push_back({.arrival_ns = request.timestamp_ms * 1'000'000,
                        .recorded = request,
                        .max_tokens = max_tokens});
  }
  return requests;
}

struct Golden {
  uint64_t least, most;  // tokens or blocks that the cache must find
};

// Returns the hit tokens of an endless cache: those of the recording's golden figures, less one a
// request at most, because the last token of a prompt is always computed.
Golden EndlessHits(const nlohmann::json& golden) {
  const double ratio = golden["infinite_cache"]["prefix_token_hit_ratio"];
  const double tokens = golden["input_tokens"];
  const double rounding = 0.5e-6 * tokens;
  const double requests = golden["requests"];
  return {static_cast<uint64_t>(ratio * tokens - rounding - requests),
          static_cast<uint64_t>(ratio * tokens + rounding)};
}

Row MooncakeEndless(const std::vector<RecordedRequest>& recording, const nlohmann::json& golden) {
  const SimulationOptions options{
      .machine = {.step_ns = 10e6, .row_ns = 10e3, .seen_ns = 0.2},
      .scheduler = {.target_step_ns = 200'000'000, .parallel = 256, .max_rows = 4096},
      .num_blocks = 260'000,
      .block_tokens = kRecordedBlockTokens};
  const uint64_t begin = MonotonicNs();
  const auto result = Simulate(RequestsOf(recording, kMaxTokens), options);
  const double seconds = static_cast<double>(MonotonicNs() - begin) * 1e-9;
  const Golden hits = EndlessHits(golden);
  const uint64_t hit = result.hit_tokens();
  return {
      .name = "mooncake, endless pool",
      .figures = FiguresOf(result) + fmt::format(", \"golden_hit\": [{}, {}], \"wall_s\": {:.1f}",
                                                 hits.least, hits.most, seconds),
      .right = hit >= hits.least && hit <= hits.most && result.refusals() == 0 && seconds <= 120};
}

Row MooncakeLru(const std::vector<RecordedRequest>& recording, const nlohmann::json& golden) {
  constexpr uint32_t kBlocks = 10'000;
  const SimulationOptions options{.machine = {.step_ns = 1e6},
                                  .scheduler = {.parallel = 1, .max_rows = 1 << 16},
                                  .num_blocks = kBlocks,
                                  .block_tokens = kRecordedBlockTokens,
                                  .eviction = "lru",
                                  .concurrency = 1};
  const uint64_t begin = MonotonicNs();
  const auto result = Simulate(RequestsOf(recording, 0), options);
  uint64_t hits = 0;
  for (const SimulatedAnswer& answer : result.answers) {
    const Receipt& receipt = answer.receipt;
    // Where all is found but the last token, the last block counts too.
    hits += (receipt.cached_tokens() + kRecordedBlockTokens - 1) / kRecordedBlockTokens;
  }
  const double expected = golden["lru"][std::to_string(kBlocks)]["prefix_reverse_touch"]["hits"];
  return {.name = "mooncake, one at a time, lru, 10000 blocks",
          .figures =
              FiguresOf(result) +
              fmt::format(", \"block_hits\": {}, \"golden_block_hits\": {:.0f}, \"wall_s\": {:.1f}",
                          hits, expected, static_cast<double>(MonotonicNs() - begin) * 1e-9),
          .right = std::abs(static_cast<double>(hits) - expected) <= 0.01 * expected};
}

// Simulates lengths of Azure's conversations, more requests than run at once, and blocks for half
// of them.
bool AzureAdmission(const std::vector<RecordedRequest>& conv, const Machine& machine) {
  const auto requests = SampleRequests(conv, {.count = 600, .max_tokens = kMaxTokens});
  const auto run = [&](Admission admission, double headroom) {
    SimulationOptions options = SaturatedOn(machine, MeanTokens(conv));
    options.num_blocks /= 2;
    options.scheduler.admission = admission;
    options.scheduler.kv_headroom = headroom;
    return Simulate(requests, options);
  };
  const auto full = run(Admission::kFull, 0.05), expected = run(Admission::kExpected, 0.05);
  const auto tight = run(Admission::kExpected, 0);
  const double batch = expected.mean_decode_batch() / full.mean_decode_batch();
  const double speed = expected.tokens_per_s() / full.tokens_per_s();
  const auto name = [&](const char* what) {
    return fmt::format("azure, half the demand, {}: {}", machine.name, what);
  };
  Print({name("full"), FiguresOf(full)});
  Print({name("expected, --kv-headroom 0"), FiguresOf(tight)});
  return Print({name("expected"),
                FiguresOf(expected) + fmt::format(", \"batch_to_full\": {:.2f}, "
                                                  "\"tok_s_to_full\": {:.2f}",
                                                  batch, speed),
                !machine.has_targets ||
                    (batch >= 1.6 && speed >= 1.2 && expected.recomputed_share() <= 0.05)});
}

// Simulates two tenants that always wait: one with chats, one with long prompts and short answers.
bool EqualService(const std::vector<RecordedRequest>& conv,
                  const std::vector<RecordedRequest>& code, const Machine& machine) {
  SimulationOptions options = SaturatedOn(machine, MeanTokens(conv));
  options.until_ns = 60'000'000'000;
  const auto result =
      Simulate(Merge(SampleRequests(conv, {.count = 3000, .max_tokens = kMaxTokens}),
                     SampleRequests(code, {.count = 3000, .tenant = 1, .max_tokens = kMaxTokens})),
               options);
  const double ratio = result.service_ns[0] / result.service_ns[1];
  return Print(
      {fmt::format("two tenants that always wait, {}", machine.name),
       FiguresOf(result) + fmt::format(", \"service_s\": [{:.2f}, {:.2f}]",
                                       result.service_ns[0] * 1e-9, result.service_ns[1] * 1e-9),
       !machine.has_targets || std::abs(ratio - 1) <= 0.05});
}

// Simulates a tenant that asks for a quarter of what the machine can do, beside one that asks for
// as much, or for ten times that.
bool QuietTenant(const std::vector<RecordedRequest>& conv, const Machine& machine) {
  SimulationOptions options = SaturatedOn(machine, MeanTokens(conv));
  const uint32_t count = 600;
  const auto alone =
      Simulate(SampleRequests(conv, {.count = count, .max_tokens = kMaxTokens}), options);
  const double capacity = count / (static_cast<double>(alone.virtual_ns) * 1e-9);
  options.concurrency = 0;
  options.until_ns = static_cast<uint64_t>(4 * count / capacity * 1e9);
  const auto run = [&](double load) {
    const auto quiet =
        SampleRequests(conv, {.count = count, .per_s = capacity / 4, .max_tokens = kMaxTokens});
    const auto other = SampleRequests(conv, {.count = static_cast<uint32_t>(4 * count * load),
                                             .per_s = capacity * load,
                                             .tenant = 1,
                                             .max_tokens = kMaxTokens,
                                             .seed = 2});
    return Simulate(Merge(quiet, other), options);
  };
  const auto equal = run(0.25), flood = run(2.5);
  const double before = equal.ttft_ms(0).p95, after = flood.ttft_ms(0).p95;
  Print({fmt::format("a quarter, its neighbour as much, {}", machine.name),
         FiguresOf(equal) + fmt::format(", \"quiet_ttft_p95_ms\": {:.0f}", before)});
  return Print({fmt::format("a quarter, its neighbour ten times that, {}", machine.name),
                FiguresOf(flood) + fmt::format(", \"quiet_ttft_p95_ms\": {:.0f}, \"ratio\": {:.2f}",
                                               after, after / before),
                !machine.has_targets || after <= 1.5 * before});
}

// Measures Decide with 256 waiting, 64 running and 32 tenants.
bool DecisionTime() {
  Random random(1);
  StepCost cost;
  for (uint32_t i = 1; i <= 512; ++i) cost.Observe({.prefill_rows = i}, 1'000'000 + i * 100'000);
  std::vector<TenantView> tenants(32);
  std::vector<RequestView> requests(64 + 256);
  std::vector<SequenceView> sequences;
  StepPlan plan;
  plan.rows.reserve(64);
  std::vector<double> times_us;
  for (uint32_t round = 0; round < 2000; ++round) {
    for (TenantView& tenant : tenants) tenant.charge_ns = random.Uniform() * 1e9;
    sequences.clear();
    for (uint32_t i = 0; i < requests.size(); ++i) {
      const bool runs = i < 64;
      requests[i] = {.state = runs ? RequestView::State::kRunning : RequestView::State::kWaiting,
                     .tenant = static_cast<uint32_t>(random.Below(tenants.size())),
                     .arrival_ns = i,
                     .has_no_room = !runs && random.Below(32) == 0};
      if (runs) sequences.push_back({i, random.Below(4) == 0 ? 200u : 1u, true, 1e6});
      if (runs && sequences.back().pending > 1) sequences.back().decodes = false;
    }
    const View view{.requests = requests,
                    .sequences = sequences,
                    .tenants = tenants,
                    .parallel = round % 2 == 0 ? 64u : 65u,  // every place is taken, or one is free
                    .max_rows = 512,
                    .cost = &cost,
                    .target_step_ns = 200'000'000};
    const auto policy = MakeSchedulingPolicy(Schedule::kFair);
    const uint64_t begin = MonotonicNs();
    policy->Decide(view, plan);
    times_us.push_back(static_cast<double>(MonotonicNs() - begin) * 1e-3);
  }
  const Percentiles us = PercentilesOf(times_us);
  return Print({"Decide: 256 wait, 64 run, 32 tenants",
                fmt::format("\"us\": {{\"p50\": {:.1f}, \"p99\": {:.1f}, \"max\": {:.1f}}}", us.p50,
                            us.p99, us.max),
                us.p99 <= 50});
}

int Run(const std::filesystem::path& folder) {
  bool right = DecisionTime();
  const auto mooncake = ReadRecording(folder / "mooncake-conversation/conversation_trace.jsonl");
  std::ifstream golden_file(folder / "mooncake-conversation/golden.json");
  const auto goldens = nlohmann::json::parse(golden_file, nullptr, /*allow_exceptions=*/false);
  const auto conv = ReadRecording(folder / "azure-llm-2023/AzureLLMInferenceTrace_conv.csv");
  const auto code = ReadRecording(folder / "azure-llm-2023/AzureLLMInferenceTrace_code.csv");
  if (!mooncake || !conv || !code || !goldens.contains("conversation_trace.jsonl")) {
    fmt::print(stderr,
               "simulation_bench: the recordings in {} are missing: their rows are skipped\n",
               folder.string());
    return right ? 0 : 1;
  }
  for (const Machine& machine : kMachines) {
    right &= AzureAdmission(*conv, machine);
    right &= EqualService(*conv, *code, machine);
    right &= QuietTenant(*conv, machine);
  }
  const auto& golden = goldens["conversation_trace.jsonl"];
  right &= Print(MooncakeLru(*mooncake, golden));
  right &= Print(MooncakeEndless(*mooncake, golden));
  return right ? 0 : 1;
}

}  // namespace
}  // namespace kvasir

int main(int argc, char** argv) {
  return kvasir::Run(argc > 1 ? argv[1] : KVASIR_SHARED_DIR "/data");
}
