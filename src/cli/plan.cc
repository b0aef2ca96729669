// kvasir plan: shows how much memory an engine will take, without taking it.
#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/memory_limit.h"
#include "base/result.h"
#include "cli/adapter_flags.h"
#include "cli/command.h"
#include "cli/engine_flags.h"
#include "cli/event_flags.h"
#include "plan/plan_json.h"

namespace kvasir::cli {
namespace {

namespace fs = std::filesystem;

void PrintBytes(const char* what, uint64_t n, const char* note) {
  fmt::print("{:<18}{:>12}  {:>16} bytes{}{}\n", what, FormatBytes(n), n, *note ? "  " : "", note);
}

// Prints the rows of parts that flags ask for.
void PrintMore(const MemoryPlan& plan) {
  if (plan.retention_bytes > 0) {
    PrintBytes("retention", plan.retention_bytes,
               "how much attention each block had, by which --retention heavy chooses");
  }
  if (plan.adapter_bytes > 0) {
    PrintBytes("adapters", plan.adapter_bytes, "matrices of adapters that are loaded; at most");
  }
  if (plan.draft_weights_bytes > 0) {
    PrintBytes("draft weights", plan.draft_weights_bytes, "of the draft model");
    PrintBytes("draft KV", plan.draft_kv_bytes, "its blocks, index and cursors");
    PrintBytes("draft scratch", plan.draft_scratch_bytes, "its activations");
  }
  if (plan.tier_index_bytes > 0) {
    PrintBytes("disk index", plan.tier_index_bytes, "where each block on the disk lies");
    PrintBytes("disk buffers", plan.tier_buffer_bytes, "blocks on their way to and from the disk");
  }
  if (plan.remote_index_bytes > 0) {
    PrintBytes("remote index", plan.remote_index_bytes, "what is known of the fleet's store");
    PrintBytes("remote buffers", plan.remote_buffer_bytes,
               "blocks on their way to and from the store, and its connections");
  }
  if (plan.events_bytes > 0) {
    PrintBytes("KV events", plan.events_bytes, "their ring, and messages on their way; at most");
  }
}

void PrintTable(const MemoryPlan& plan, uint64_t disk_cap_bytes) {
  PrintBytes("weights", plan.weights_bytes, "packed for the kernels");
  PrintBytes("KV blocks", plan.kv_bytes, "the block pool");
  PrintBytes("prefix index", plan.index_bytes, "");
  PrintBytes("cursors", plan.cursor_bytes, "");
  PrintBytes("scratch", plan.scratch_bytes, "activations and logits of one step");
  PrintBytes("requests", plan.request_bytes, "being read, waiting and running; at most");
  PrintBytes("sessions", plan.session_bytes, "their text and ids; at most");
  PrintBytes("heads", plan.head_bytes, "digests of lines of chats; at most");
  PrintBytes("grammars", plan.grammar_bytes, "formats of answers and their masks; at most");
  PrintMore(plan);
  PrintBytes("total", plan.total_bytes, "");
  PrintBytes("process", plan.process_bytes,
             "program, libraries, stacks, tokenizer, grammars being compiled");
  PrintBytes("load peak", plan.load_peak_bytes, "while the weights are packed");
  PrintBytes("mapped files", plan.mapped_bytes,
             "read in place; the system may drop and reread them");
  PrintBytes("cap (--kv-memory)", plan.kv_memory_bytes,
             "limit of KV blocks + prefix index + cursors");
  fmt::print("\n{} blocks of {} tokens ({} each, KV as {}: {} bytes a token)\n", plan.num_blocks,
             plan.block_tokens, FormatBytes(plan.block_bytes), plan.kv_format,
             plan.kv_bytes_per_token);
  fmt::print("the pool holds {} tokens; the context has {}; {} run at once\n", plan.max_tokens,
             plan.ctx_size, plan.parallel);
  for (const KvGroupPlan& group : plan.groups) {
    if (plan.groups.size() == 1 && !group.window) break;
    fmt::print("{} {}: {} bytes a token, at most {} of a sequence\n",
               CountText(group.layers, "layer"),
               group.group == "cross" ? std::string("that see the source")
               : group.window         ? fmt::format("with a window of {} tokens", *group.window)
                                      : std::string("that see all tokens"),
               group.kv_bytes_per_token, CountText(group.sequence_blocks, "block"));
  }
  fmt::print("a sequence of {} tokens takes {} at most; the pool holds {} that share nothing\n",
             plan.sequence_tokens, FormatBytes(plan.sequence_bytes), plan.sequences);
  if (plan.retained_sequence_bytes > 0) {
    fmt::print("a sequence that keeps {} takes {} at most, however long it gets\n", plan.retention,
               FormatBytes(plan.retained_sequence_bytes));
  }
  if (plan.context_kv_memory_bytes) {
    fmt::print("no sequence can fill the context: that needs --kv-memory {}\n",
               *plan.context_kv_memory_bytes);
  }
  if (plan.weights_assumed) {
    fmt::print("the weights are not here: they are counted as {}\n", plan.weights);
  }
  fmt::print("when the pool is full, blocks leave by {} (--eviction)\n", plan.eviction);
  if (plan.tier_index_bytes > 0) {
    fmt::print("{}", UnusableCapLine("on the disk ", disk_cap_bytes, plan));
  }
}

// Returns the cap of the disk tier that the plan is made for.
uint64_t DiskCapOf(const MemoryPlan& plan, const EngineOptions& options) {
  if (!options.disk) return 0;
  const bool is_lowered = !options.disk->cap_bytes && options.disk->memory_bytes;
  return is_lowered ? plan.tier_usable_bytes
                    : options.disk->cap_bytes.value_or(kDefaultDiskCapBytes);
}

// Returns the least --kv-memory whose pool holds a whole context; nullopt: not known.
std::optional<uint64_t> LeastKvMemory(EngineOptions options) {
  const Result<MemoryPlan> whole = Engine::PlanMemory(options);
  if (!whole) return std::nullopt;
  // A pool that is too small says what it would need. Where not even its index fits, a little more
  // is tried.
  for (uint64_t bytes = whole->sequence_bytes / 2; bytes < whole->kv_memory_bytes;
       bytes += bytes / 8 + 1) {
    options.kv_memory_bytes = bytes;
    const Result<MemoryPlan> small = Engine::PlanMemory(options);
    if (small) return small->context_kv_memory_bytes;
  }
  return std::nullopt;
}

void PrintComparison(std::span<const MemoryPlan> plans) {
  fmt::print("\n{:<10}{:>14}{:>16}{:>12}{:>14}\n", "KV format", "bytes a token", "a sequence",
             "sequences", "pool tokens");
  for (const MemoryPlan& plan : plans) {
    fmt::print("{:<10}{:>14}{:>16}{:>12}{:>14}\n", plan.kv_format, plan.kv_bytes_per_token,
               FormatBytes(plan.sequence_bytes), plan.sequences, plan.max_tokens);
  }
}

void PrintMachine(const MemoryPlan& plan, std::optional<uint64_t> least) {
  const MemoryLimit limit = ReadMemoryLimit();
  fmt::print("without --kv-memory the cache gets {} of the {} that a process may use here ({})\n",
             FormatBytes(plan.kv_memory_bytes), FormatBytes(limit.bytes), limit.source);
  if (least) fmt::print("the least that serves one context is --kv-memory {}\n", *least);
}

Result<int> RunPlan(const Args& given) {
  Args args = given;
  if (const auto path = args.Text("config")) KV_TRY(args.MergeConfig(*path, ServeCommand().flags));
  KV_ASSIGN(EngineOptions options,
            EngineOptionsOf(args, DiskDefault::kCacheFolder, ModelUse::kPlan));
  ReadServeAdapterFlags(args, &options);
  std::error_code error;
  if (const auto folder = args.Text("lora-dir"); folder && !fs::is_directory(*folder, error)) {
    return FailField(Code::kInvalidArgument, "lora-dir", "{} is not a folder", *folder);
  }
  // The server would make the folder.
  if (options.disk && options.disk->folder && fs::exists(*options.disk->folder, error) &&
      !fs::is_directory(*options.disk->folder, error)) {
    return FailField(Code::kInvalidArgument, "disk", "{} is not a folder", *options.disk->folder);
  }
  std::optional<uint32_t> tokens;
  if (args.Has("tokens")) {
    KV_ASSIGN(const uint64_t given_tokens, args.Uint("tokens", 1, uint64_t{1} << 31, 1));
    tokens = static_cast<uint32_t>(given_tokens);
  }
  KV_ASSIGN(const MemoryPlan plan, Engine::PlanMemory(options, tokens));
  KV_TRY(Engine::CheckAdapterNumbers(options));  // a server would not start with wrong ones
  if (tokens && *tokens > plan.ctx_size) {
    return FailField(Code::kInvalidArgument, "tokens",
                     "{} are more than the context of {} tokens (--ctx-size)", *tokens,
                     plan.ctx_size);
  }
  std::vector<MemoryPlan> plans;
  if (args.Has("compare")) {
    KV_ASSIGN(plans, Engine::PlanFormats(options, tokens));
  }
  if (!args.Has("json")) {
    // No flag asked for the default cap: as at a start, no line says what of it cannot be used.
    PrintTable(plan, args.Has("disk-cap") ? DiskCapOf(plan, options) : 0);
    if (!args.Has("kv-memory")) PrintMachine(plan, LeastKvMemory(options));
    if (!plans.empty()) PrintComparison(plans);
    return kExitDone;
  }
  nlohmann::ordered_json json = PlanJson(plan);
  for (const MemoryPlan& each : plans) {
    json["compare"].push_back({{"kv_format", each.kv_format},
                               {"kv_bytes_per_token", each.kv_bytes_per_token},
                               {"sequence_bytes", each.sequence_bytes},
                               {"sequences", each.sequences},
                               {"max_tokens", each.max_tokens}});
  }
  fmt::print("{}\n", json.dump(2));
  return kExitDone;
}

}  // namespace

Command PlanCommand() {
  return Grouped(
      {"plan", "how much memory a server with these flags takes, byte for byte",
       "plan --ctx-size 2048 --parallel 8 --kv-memory 512MiB",
       Join({{{"json", "", "one object with every figure", FlagKind::kSwitch},
              {"shape", "S",
               "random weights of this shape, as 'kvasir serve --shape' has them (names as in "
               "'kvasir bench')"},
              {"tokens", "N", "the length of the sequences that are counted (the context)"},
              {"compare", "", "a row for each KV format, too", FlagKind::kSwitch},
              {"config", "F.json",
               "the config file of 'kvasir serve'; flags on the command line win"}},
             ModelFlags(),
             AdapterFlags(),
             {LoraDirFlag()},
             CacheDirFlags(),
             CacheFlags(),
             DiskFlags(DiskDefault::kCacheFolder),
             RemoteFlags(),
             EventFlags(),
             RequestFlags()}),
       RunPlan},
      "model ctx-size parallel kv-memory kv-format json");
}

}  // namespace kvasir::cli
