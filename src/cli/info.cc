// kvasir info: describes this binary and this machine.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "base/result.h"
#include "base/sizes.h"
#include "cli/build_info.h"
#include "cli/command.h"
#include "cli/engine_flags.h"
#include "kvasir/machine.h"

namespace kvasir::cli {
namespace {

nlohmann::json ProcessorsJson(const MachineProcessors& processors) {
  nlohmann::json nodes = nlohmann::json::array();
  for (const MachineNode& node : processors.nodes) {
    nodes.push_back({{"id", node.id},
                     {"cpus", node.cpus},
                     {"cores", node.cores},
                     {"memory_bytes", node.memory_bytes}});
  }
  nlohmann::json json = {{"cpus", processors.cpus}, {"cores", processors.cores}, {"nodes", nodes}};
  json["cpu_limit"] = nullptr;
  if (processors.cpu_limit) json["cpu_limit"] = *processors.cpu_limit;
  return json;
}

std::string ProcessorsLine(const MachineProcessors& processors) {
  std::string line = fmt::format("usable: {}, {}, {}", CountText(processors.cores, "core"),
                                 CountText(processors.cpus, "CPU"),
                                 CountText(processors.nodes.size(), "memory node"));
  if (processors.cpu_limit) line += fmt::format(", {:.2f} CPUs of time", *processors.cpu_limit);
  return line;
}

Result<int> RunInfo(const Args& args) {
  KV_ASSIGN(const EngineOptions options,
            EngineOptionsOf(args, DiskDefault::kNone, ModelUse::kPlan));
  KV_ASSIGN(const MemoryPlan plan, Engine::PlanMemory(options));
  const bool translates = std::ranges::any_of(
      plan.groups, [](const KvGroupPlan& group) { return group.group == "cross"; });
  const char* forced = std::getenv("KVASIR_TARGET");
  const bool is_forced = forced != nullptr && *forced != '\0';
  const std::string target = is_forced ? forced : BestTargetName();
  const std::vector<std::string> targets = SupportedTargetNames();
  const uint32_t threads = options.threads ? *options.threads : DefaultThreads();
  const MachineProcessors processors = DescribeProcessors();
  if (args.Has("json")) {
    const nlohmann::json json = {
        {"version", kVersion},
        {"build", {{"commit", kCommit}, {"compiler", kCompiler}, {"type", kBuildType}}},
        {"numerics", kNumericsVersion},
        {"target", target},
        {"targets", targets},
        {"threads", threads},
        {"processors", ProcessorsJson(processors)},
        {"model", plan.model},
        {"kind", translates ? "translation" : "text"},
        {"ctx_size", plan.ctx_size},
        {"kv_format", plan.kv_format},
        {"weights_bytes", plan.weights_bytes}};
    fmt::print("{}\n", json.dump(2));
    return kExitDone;
  }
  fmt::print("kvasir    {} (commit {}, {}, {})\n", kVersion, kCommit, kCompiler, kBuildType);
  fmt::print("numerics  {}\n", kNumericsVersion);
  fmt::print("target    {}{}\n", target, is_forced ? " (KVASIR_TARGET)" : "");
  fmt::print("targets   {} (values of KVASIR_TARGET on this CPU; all compute the same bits)\n",
             fmt::join(targets, " "));
  fmt::print("threads   {} ({})\n", threads, ProcessorsLine(processors));
  fmt::print("model     {}: context {}, weights {}, KV {} a token as {}{}\n", plan.model,
             plan.ctx_size, FormatBytes(plan.weights_bytes), FormatBytes(plan.kv_bytes_per_token),
             plan.kv_format, translates ? "; translates sources (kvasir translate)" : "");
  return kExitDone;
}

}  // namespace

Command InfoCommand() {
  return {"info", "version, build, numerics, and the instruction sets that this CPU offers",
          "info --json", Join({{{"json", "", "one object", FlagKind::kSwitch}}, ModelFlags()}),
          RunInfo};
}

}  // namespace kvasir::cli
