// kvasir plan: shows how much memory an engine will take, without taking it.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/result.h"
#include "cli/command.h"
#include "cli/engine_flags.h"
#include "plan/plan_json.h"

namespace kvasir::cli {
namespace {

void PrintTable(const MemoryPlan& plan) {
  const auto bytes = [](const char* what, uint64_t n, const char* note) {
    fmt::print("{:<18}{:>12}  {:>16} bytes  {}\n", what, FormatBytes(n), n, note);
  };
  bytes("weights", plan.weights_bytes, "packed for the kernels");
  bytes("KV blocks", plan.kv_bytes, "the block pool");
  bytes("prefix index", plan.index_bytes, "");
  bytes("cursors", plan.cursor_bytes, "");
  bytes("scratch", plan.scratch_bytes, "activations and logits of one step");
  bytes("requests", plan.request_bytes, "being read, waiting and running; at most");
  bytes("total", plan.total_bytes, "");
  bytes("process", plan.process_bytes,
        "program, libraries, stacks and tokenizer, beside the total");
  bytes("load peak", plan.load_peak_bytes, "while the weights are packed");
  bytes("mapped files", plan.mapped_bytes, "read in place; the system may drop and reread them");
  bytes("cap (--kv-memory)", plan.kv_memory_bytes, "limit of KV blocks + prefix index + cursors");
  fmt::print("\n{} blocks of {} tokens ({} each, KV as {}: {} bytes a token)\n", plan.num_blocks,
             plan.block_tokens, FormatBytes(plan.block_bytes), plan.kv_format,
             plan.kv_bytes_per_token);
  fmt::print(
      "the pool holds {} tokens: {:.1f} sequences of the whole context ({}); {} run at once\n",
      plan.max_tokens,
      plan.ctx_size > 0 ? static_cast<double>(plan.max_tokens) / plan.ctx_size : 0.0, plan.ctx_size,
      plan.parallel);
  fmt::print("when the pool is full, blocks leave by {} (--eviction)\n", plan.eviction);
}

Result<int> Run(const Args& given) {
  Args args = given;
  if (const auto path = args.Text("config")) KV_TRY(args.MergeConfig(*path, ServeCommand().flags));
  KV_ASSIGN(const EngineOptions options, EngineOptionsOf(args));
  KV_ASSIGN(const MemoryPlan plan, Engine::PlanMemory(options));
  if (args.Has("json")) {
    fmt::print("{}\n", PlanJson(plan).dump(2));
  } else {
    PrintTable(plan);
  }
  return kExitDone;
}

}  // namespace

Command PlanCommand() {
  return {"plan", "how much memory a server with the same flags takes, byte for byte",
          "plan --ctx-size 2048 --parallel 8 --kv-memory 512MiB",
          Join({{{"json", "", "one object with every figure", FlagKind::kSwitch},
                 {"config", "F.json",
                  "the config file of 'kvasir serve'; flags on the command line win"}},
                ModelFlags(),
                CacheFlags(),
                RequestFlags()}),
          Run};
}

}  // namespace kvasir::cli
