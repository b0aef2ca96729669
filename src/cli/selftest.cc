// kvasir selftest: proves on this machine that the cache changes no answer.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "base/fault.h"
#include "base/result.h"
#include "cli/adapter_flags.h"
#include "cli/command.h"
#include "cli/engine_flags.h"
#include "cli/interrupt.h"
#include "cli/selftest_run.h"
#include "kvasir/machine.h"
#include "kvasir/plan.h"

namespace kvasir::cli {
namespace {

Status InjectNamed(const Args& args) {
  const std::optional<std::string> name = args.Text("inject");
  if (!name) return {};
  const std::optional<Fault> fault = ParseFault(*name);
  if (!fault) {
    return Fail(Code::kInvalidArgument, "--inject: unknown fault '{}' (known: {})", *name,
                FaultNames());
  }
  InjectFault(*fault);
  return {};
}

// Refuses a fault that no check of this model looks for: the test would pass.
Status CheckInjected(const Args& args, Lab& lab) {
  constexpr Fault kOfDecoders[] = {
      Fault::kSkippedTag,     Fault::kStaleSlot,    Fault::kKeptKey,        Fault::kLazyForget,
      Fault::kEraseByFirst,   Fault::kEraseOwnOnly, Fault::kAcceptedWrong,  Fault::kKeptDraft,
      Fault::kForeignAdapter, Fault::kMatesAdapter, Fault::kUnshiftedSinks, Fault::kLateDrop,
      Fault::kForeignResume,  Fault::kLooseSpan,    Fault::kDraftedScore,   Fault::kDeafBreaker,
      Fault::kKeptEpoch};
  constexpr Fault kOfRetention[] = {Fault::kUnshiftedSinks, Fault::kLateDrop, Fault::kForeignResume,
                                    Fault::kDraftedScore};
  const auto refuse = [&](std::string_view why) {
    return Fail(Code::kInvalidArgument, "--inject: {} is looked for only {}", *args.Text("inject"),
                why);
  };
  if (lab.has_encoder() && std::ranges::any_of(kOfDecoders, FaultActive)) {
    return refuse("with a model that has no encoder");
  }
  if (!lab.has_encoder() && FaultActive(Fault::kForeignSource)) {
    return refuse("with a model that has an encoder; give --model");
  }
  if (FaultActive(Fault::kKeptEpoch) && !lab.remote()) {
    return refuse("where machines share a store; give --remote and --fleet-secret");
  }
  const ModelCard& card = lab.engine().card();
  if (FaultActive(Fault::kLooseSpan) && !card.no_spans.empty()) {
    return refuse("where prompts may have spans: " + card.no_spans);
  }
  if (std::ranges::any_of(kOfRetention, FaultActive) && !card.no_retention.empty()) {
    return refuse("where tokens may be dropped: " + card.no_retention);
  }
  return {};
}

void PrintLine(const Check& check) {
  fmt::print("{:<7}{:<10} rows {} differ {}", check.passed() ? "ok" : "FAILED", check.name(),
             check.rows(), check.differ());
  if (!check.passed()) fmt::print(" ({})", check.first_wrong());
  fmt::print("\n");
  std::fflush(stdout);
}

struct Totals {
  uint64_t rows = 0, differ = 0;
  std::vector<std::string> failed;  // names
};

Totals Sum(const std::vector<Check>& checks) {
  Totals totals;
  for (const Check& check : checks) {
    totals.rows += check.rows();
    totals.differ += check.differ();
    if (!check.passed()) totals.failed.push_back(check.name());
  }
  return totals;
}

void PrintJson(const std::vector<Check>& checks, const Totals& totals, double seconds) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const Check& check : checks) {
    list.push_back({{"name", check.name()},
                    {"rows", check.rows()},
                    {"differ", check.differ()},
                    {"passed", check.passed()},
                    {"wrong", check.first_wrong()}});
  }
  const nlohmann::ordered_json json = {
      {"checks", list},          {"targets", SupportedTargetNames()}, {"rows", totals.rows},
      {"differ", totals.differ}, {"passed", totals.failed.empty()},   {"seconds", seconds}};
  fmt::print("{}\n", json.dump(2));
}

// Returns the memory for what the checks compute: at most 256 MiB, and less where blocks are so
// small that most of the time would go into setting up an index of all of them.
Result<uint64_t> KvMemoryFor(EngineOptions options) {
  constexpr uint64_t kMost = uint64_t{256} << 20, kEnoughBlocks = 4096;
  options.kv_memory_bytes = kMost;
  KV_ASSIGN(const MemoryPlan plan, Engine::PlanMemory(options));
  return kMost / std::max<uint64_t>(1, plan.num_blocks / kEnoughBlocks);
}

Result<int> RunSelftest(const Args& args) {
  KV_ASSIGN(EngineOptions options, EngineOptionsOf(args));
  KV_TRY(InjectNamed(args));
  ExitOnInterrupt();
  KV_ASSIGN(options.kv_memory_bytes, KvMemoryFor(options));
  const bool json = args.Has("json");
  const uint64_t start_ns = MonotonicNs();
  KV_ASSIGN(Lab lab, Lab::Create(options));
  KV_TRY(CheckInjected(args, lab));
  if (!json) {
    fmt::print(
        "{}: target {} of {}; each row of logits is compared, bit for bit, with the same "
        "prompt computed alone, whole, with the cache off\n",
        lab.engine().card().id, lab.engine().target(), fmt::join(SupportedTargetNames(), ", "));
  }
  const std::vector<Check> checks = RunChecks(lab, [json](const Check& check) {
    if (!json) PrintLine(check);
  });
  const double seconds = static_cast<double>(MonotonicNs() - start_ns) / 1e9;
  const Totals totals = Sum(checks);
  if (json) {
    PrintJson(checks, totals, seconds);
  } else {
    fmt::print("rows {} differ {} ({:.1f} s)\n", totals.rows, totals.differ, seconds);
  }
  if (totals.failed.empty() && args.Has("inject")) {
    return Fail(Code::kInvalidArgument,
                "--inject: no check sees {} with this model and these flags; take others",
                *args.Text("inject"));
  }
  if (totals.failed.empty()) return kExitDone;
  std::fflush(stdout);
  fmt::print(stderr, "kvasir selftest: failed: {}\n", fmt::join(totals.failed, ", "));
  return kExitFailed;
}

}  // namespace

Command SelftestCommand() {
  return {
      "selftest",
      "proves on this machine that answers are the same with and without the cache, bit for bit",
      "selftest",
      Join({{{"inject", "FAULT", "break something on purpose; the test must fail: " + FaultNames()},
             {"json", "", "one object: checks, rows, differ, passed", FlagKind::kSwitch},
             {"block-tokens", "N", "tokens of a block: a multiple of 16 (default 16)"}},
            LoadFlags(),
            AdapterFlags(),
            RemoteFlags()}),
      RunSelftest,
      "With --remote a check more asks the store: what one engine computes, another one takes from "
      "there. It is a tenant's of another name each time, of which nothing stays in the store.\n"};
}

}  // namespace kvasir::cli
