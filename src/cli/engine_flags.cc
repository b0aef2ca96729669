#include "cli/engine_flags.h"

#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <set>

#include "base/log.h"
#include "base/result.h"
#include "cli/adapter_flags.h"
#include "cli/event_flags.h"
#include "cli/hub_model.h"
#include "cli/machine_limits.h"
#include "cli/progress.h"
#include "cli/state_flags.h"
#include "kvasir/engine_ranges.h"
#include "kvasir/machine.h"

namespace kvasir::cli {
namespace {

constexpr uint64_t kMaxU32 = std::numeric_limits<uint32_t>::max();
constexpr uint32_t kMaxId = std::numeric_limits<TokenId>::max();

Result<uint32_t> U32(const Args& args, const std::string& name, EngineRange range,
                     uint32_t otherwise) {
  KV_ASSIGN(const uint64_t value, args.Uint(name, range.least, range.most, otherwise));
  return static_cast<uint32_t>(value);
}

Status CheckTarget() {
  const char* target = std::getenv("KVASIR_TARGET");
  if (target == nullptr || *target == '\0') return {};
  const std::vector<std::string> targets = SupportedTargetNames();
  if (std::find(targets.begin(), targets.end(), target) != targets.end()) return {};
  return Fail(Code::kInvalidArgument,
              "KVASIR_TARGET: this CPU or this build has no target '{}'; here are {} (see "
              "'kvasir info')",
              target, fmt::join(targets, ", "));
}

Result<CacheMode> CacheModeOf(const Args& args) {
  static constexpr std::string_view kModes[] = {"prefix", "sequence", "none"};
  if (const auto given = args.Text("cache"); given == "static" || given == "dynamic") {
    return FailField(Code::kInvalidArgument, "cache",
                     "'{}' is a name of Transformers; what it means is sequence here (known: "
                     "prefix, sequence, none)",
                     *given);
  }
  KV_ASSIGN(const std::string mode, args.OneOf("cache", kModes, "prefix"));
  if (mode == "sequence") return CacheMode::kSequence;
  return mode == "none" ? CacheMode::kNone : CacheMode::kPrefix;
}

// Finds the model, and fetches it where --hf-repo asks for that.
Status ReadModel(const Args& args, ModelUse use, EngineOptions* options) {
  if (const auto model = args.Text("model")) {
    if (model->empty()) {
      return Fail(Code::kInvalidArgument,
                  "--model: is empty; give a folder or a GGUF file, or leave it out");
    }
    options->model = *model;
  }
  if (args.Has("shape") && args.Has("model")) {
    return Fail(Code::kInvalidArgument, "give only one of --shape and --model");
  }
  options->shape = args.Text("shape");
  if (const auto repo = args.Text("hf-repo")) {
    if (args.Has("model") || args.Has("shape")) {
      return Fail(Code::kInvalidArgument, "give only one of --hf-repo and --{}",
                  args.Has("model") ? "model" : "shape");
    }
    KV_TRY(FetchModel(*repo, options));
  }
  if (!args.Has("shape")) KV_TRY(FindInHubCache(use, options));
  return {};
}

// Reads how KV and weights are stored.
Status ReadFormats(const Args& args, EngineOptions* options) {
  options->kv_format = args.Text("kv-format").value_or(options->kv_format);
  KV_ASSIGN(const std::vector<uint64_t> skip, args.UintList("kv-skip-layers", 0, kMaxU32, {}));
  options->kv_skip_layers.assign(skip.begin(), skip.end());
  if (args.Has("weights")) {
    static constexpr std::string_view kFormats[] = {"i8",  "i4",  "q8_0", "q4_0",
                                                    "f32", "f16", "bf16"};
    KV_ASSIGN(options->weights, args.OneOf("weights", kFormats, ""));
  }
  return {};
}

// Reads a size that may also be 0.
Result<uint64_t> BytesOrZero(const Args& args, const std::string& name, uint64_t otherwise) {
  if (args.Text(name) == "0") return 0;
  return args.Bytes(name, otherwise);
}

Status ReadMemory(const Args& args, EngineOptions* options) {
  KV_ASSIGN(options->image_cap_bytes, BytesOrZero(args, "image-cap", options->image_cap_bytes));
  KV_ASSIGN(options->kv_memory_bytes, args.Bytes("kv-memory", options->kv_memory_bytes));
  KV_ASSIGN(options->request_memory_bytes,
            args.Bytes("request-memory", options->request_memory_bytes));
  KV_ASSIGN(options->session_memory_bytes,
            BytesOrZero(args, "session-memory", options->session_memory_bytes));
  KV_ASSIGN(options->head_memory_bytes,
            BytesOrZero(args, "head-memory", options->head_memory_bytes));
  KV_ASSIGN(options->grammar_memory_bytes,
            BytesOrZero(args, "grammar-memory", options->grammar_memory_bytes));
  return {};
}

// Finds the draft model, and fetches it where --draft-hf-repo asks for that.
Status ReadDraftModel(const Args& args, ModelUse use, EngineOptions* options) {
  options->draft_shape = args.Text("draft-shape");
  KV_ASSIGN(options->draft_kv_memory_bytes,
            args.Bytes("draft-kv-memory", options->draft_kv_memory_bytes));
  EngineOptions draft;
  draft.warn = options->warn;
  draft.model = args.Text("draft-model");
  if (draft.model && draft.model->empty()) {
    return Fail(Code::kInvalidArgument,
                "--draft-model: is empty; give a folder or a GGUF file, or leave it out");
  }
  const auto fail = [](Error error, const char* field) {
    if (error.field) error.field = field;
    return tl::unexpected(std::move(error));
  };
  if (const auto repo = args.Text("draft-hf-repo")) {
    if (draft.model) {
      return Fail(Code::kInvalidArgument, "give only one of --draft-hf-repo and --draft-model");
    }
    if (const Status fetched = FetchModel(*repo, &draft); !fetched) {
      return fail(fetched.error(), "draft-hf-repo");
    }
  } else if (draft.model) {
    if (const Status found = FindInHubCache(use, &draft); !found) {
      return fail(found.error(), "draft-model");
    }
  }
  options->draft_model = draft.model;
  if (args.Has("draft-kv-memory") && !options->draft_model && !options->draft_shape) {
    return Fail(Code::kInvalidArgument, "--draft-kv-memory: needs --draft-model M");
  }
  return {};
}

// Reads the sizes of sequences, blocks, steps and drafts, and which blocks stay.
Status ReadBlocks(const Args& args, EngineOptions* options) {
  if (args.Has("ctx-size")) {
    KV_ASSIGN(options->ctx_size, U32(args, "ctx-size", {1, kMaxId}, 1));
  }
  KV_ASSIGN(options->parallel, U32(args, "parallel", kParallelRange, options->parallel));
  constexpr uint32_t kUnit = kBlockTokensRange.least;
  const auto block_tokens = U32(args, "block-tokens", kBlockTokensRange, options->block_tokens);
  if (!block_tokens) {
    return Fail(Code::kInvalidArgument,
                "--block-tokens: '{}' is not valid; give a multiple of {}, from {} to {}",
                *args.Text("block-tokens"), kUnit, kUnit, kBlockTokensRange.most);
  }
  options->block_tokens = *block_tokens;
  if (options->block_tokens % kUnit != 0) {
    return Fail(Code::kInvalidArgument,
                "--block-tokens: {} is not a multiple of {}; the nearest is {}",
                options->block_tokens, kUnit, (options->block_tokens + kUnit / 2) / kUnit * kUnit);
  }
  if (args.Has("step-tokens")) {
    KV_ASSIGN(options->step_tokens, U32(args, "step-tokens", kStepTokensRange, 1));
  }
  KV_ASSIGN(options->cache_mode, CacheModeOf(args));
  static constexpr std::string_view kSpeculations[] = {"auto", "always", "off"};
  KV_ASSIGN(const std::string speculate, args.OneOf("speculate", kSpeculations, "auto"));
  options->speculate = speculate == "off"      ? Speculate::kOff
                       : speculate == "always" ? Speculate::kAlways
                                               : Speculate::kAuto;
  KV_ASSIGN(options->draft_max, U32(args, "draft-max", kDraftMaxRange, options->draft_max));
  KV_ASSIGN(options->keep_share, args.Float("keep-share", {0, 1}, options->keep_share));
  options->eviction = args.Text("eviction").value_or(options->eviction);
  if (const auto retention = args.Text("retention")) {
    KV_ASSIGN(options->retention, ParseRetentionChoice(*retention));
  }
  return {};
}

Status ReadDisk(const Args& args, DiskDefault otherwise, EngineOptions* options) {
  const auto folder = args.Text("disk");
  if (args.Text("disk-cap") == "0") return {};
  if (folder == "none" || (!folder && otherwise == DiskDefault::kNone)) {
    for (const char* flag : {"disk-cap", "disk-ttl", "disk-reserve"}) {
      // --disk none on the command line turns off the disk of the config file.
      const bool is_overridden = folder && !args.IsFromConfig("disk") && args.IsFromConfig(flag);
      if (args.Has(flag) && !is_overridden) {
        return Fail(Code::kInvalidArgument, "--{}: needs --disk DIR", flag);
      }
    }
    return {};
  }
  if (folder && folder->empty()) {
    return Fail(Code::kInvalidArgument, "--disk: is empty; give a folder, or none");
  }
  DiskOptions disk{.folder = folder, .cap_bytes = {}};
  if (args.Has("disk-cap")) {
    KV_ASSIGN(disk.cap_bytes, args.Bytes("disk-cap", 0));
  }
  constexpr uint64_t kMaxTtlHours = 24 * 366 * 10;
  KV_ASSIGN(disk.ttl_hours, args.Uint("disk-ttl", 1, kMaxTtlHours, disk.ttl_hours));
  if (args.Has("disk-reserve")) {
    KV_ASSIGN(disk.reserve_bytes, BytesOrZero(args, "disk-reserve", 0));
  }
  options->disk = std::move(disk);
  return {};
}

Status ReadRemote(const Args& args, EngineOptions* options) {
  const auto url = args.Text("remote"), secret = args.Text("fleet-secret");
  if (!url) {
    for (const char* flag : {"fleet-secret", "remote-ca", "remote-mode", "remote-memory",
                             "remote-ttl", "remote-daily", "remote-compression"}) {
      if (args.Has(flag)) return Fail(Code::kInvalidArgument, "--{}: needs --remote URL", flag);
    }
    return {};
  }
  if (!secret) {
    return Fail(Code::kInvalidArgument,
                "--remote: needs --fleet-secret FILE; 'kvasir key fleet FILE' makes one");
  }
  RemoteOptions remote{.url = *url, .ca_file = args.Text("remote-ca"), .fleet_secret = *secret};
  static constexpr std::string_view kModes[] = {"readwrite", "read"};
  KV_ASSIGN(const std::string mode, args.OneOf("remote-mode", kModes, "readwrite"));
  if (mode == "read") remote.mode = RemoteMode::kRead;
  KV_ASSIGN(remote.memory_bytes, args.Bytes("remote-memory", remote.memory_bytes));
  KV_ASSIGN(remote.ttl_hours, args.Uint("remote-ttl", 1, 24 * 366, remote.ttl_hours));
  if (args.Has("remote-daily")) {
    KV_ASSIGN(remote.daily_bytes, args.Bytes("remote-daily", 0));
  }
  static constexpr std::string_view kCompressions[] = {"auto", "none", "zstd"};
  KV_ASSIGN(const std::string compression, args.OneOf("remote-compression", kCompressions, "auto"));
  if (compression == "none") remote.compression = RemoteCompression::kNone;
  if (compression == "zstd") remote.compression = RemoteCompression::kZstd;
  options->remote = std::move(remote);
  return {};
}

Status ReadScheduling(const Args& args, EngineOptions* options) {
  static constexpr std::string_view kSchedules[] = {"fair", "fifo"};
  KV_ASSIGN(const std::string schedule, args.OneOf("schedule", kSchedules, "fair"));
  options->schedule = schedule == "fifo" ? Schedule::kFifo : Schedule::kFair;
  static constexpr std::string_view kAdmissions[] = {"expected", "full"};
  KV_ASSIGN(const std::string admission, args.OneOf("admission", kAdmissions, "expected"));
  options->admission = admission == "full" ? Admission::kFull : Admission::kExpected;
  KV_ASSIGN(options->kv_headroom, args.Float("kv-headroom", {0, kMaxKvHeadroom}, 0.05));
  KV_ASSIGN(options->target_itl_ms,
            U32(args, "target-itl-ms", kTargetItlMsRange, options->target_itl_ms));
  KV_ASSIGN(options->max_queued, U32(args, "max-queued", kMaxQueuedRange, options->max_queued));
  KV_ASSIGN(options->max_queue_ms,
            U32(args, "max-queue-ms", kMaxQueueMsRange, options->max_queue_ms));
  return {};
}

}  // namespace

Result<std::optional<RetentionChoice>> ExactTokensOf(const Args& args,
                                                     const EngineOptions& options) {
  if (!args.Has("exact-tokens")) return std::nullopt;
  if (options.retention.policy == Retention::kFull) {
    return Fail(Code::kInvalidArgument, "--exact-tokens: needs --retention POLICY, not full");
  }
  RetentionChoice choice = options.retention;
  KV_ASSIGN(choice.exact_tokens, U32(args, "exact-tokens", {0, kMaxRetainedTokens}, 0));
  return choice;
}

Flag ExactTokensFlag() {
  return {"exact-tokens", "N",
          "with --retention: the first N tokens see all before them (default: the prompt)"};
}

Result<EngineOptions> EngineOptionsOf(const Args& args, DiskDefault disk_otherwise, ModelUse use) {
  KV_TRY(CheckTarget());
  KV_ASSIGN(const std::string level,
            args.OneOf("log-level", kLogLevelNames, args.Has("verbose") ? "debug" : "info"));
  const auto* found = std::ranges::find(kLogLevelNames, level);
  SetLogLevel(static_cast<LogLevel>(found - std::begin(kLogLevelNames)));
  EngineOptions options;
  options.warn = [said = std::make_shared<std::set<std::string>>()](const std::string& text) {
    if (said->insert(text).second) Log(LogLevel::kWarning, text);
  };
  KV_TRY(ReadModel(args, use, &options));
  KV_TRY(ReadDraftModel(args, use, &options));
  KV_TRY(ReadFormats(args, &options));
  options.cache_dir = CacheDirOf(args);
  if (use == ModelUse::kRun) {
    KV_ASSIGN(SecretPlace secret, ReadStateFlags(args));
    options.state_dir = std::move(secret.state_dir);
    options.secret_file = std::move(secret.file);
  }
  if (args.Has("threads")) {
    KV_ASSIGN(options.threads, U32(args, "threads", kThreadsRange, 1));
  }
  if (use == ModelUse::kRun) WarnOfThreads(options);
  options.pin_threads = args.Has("pin-threads");
  KV_TRY(ReadDisk(args, disk_otherwise, &options));
  KV_TRY(ReadRemote(args, &options));
  KV_TRY(ReadEventFlags(args, &options));
  KV_TRY(ReadMemory(args, &options));
  KV_TRY(ReadBlocks(args, &options));
  KV_TRY(ReadScheduling(args, &options));
  KV_TRY(ReadAdapterFlags(args, &options));
  static constexpr std::string_view kGenerationConfigs[] = {"auto", "none"};
  KV_ASSIGN(const std::string generation,
            args.OneOf("generation-config", kGenerationConfigs, "auto"));
  options.generation_config = generation == "auto";
  const Status fits = FitToMachine(args, ReadMemoryLimit(), &options);
  if (!fits && use == ModelUse::kRun) return tl::unexpected(fits.error());
  if (!fits) options.warn("with these flags nothing starts here: " + fits.error().message);
  return options;
}

namespace {

// Tells whether the folder can be written. Warns if not, because then each start computes again
// what the folder would keep.
bool CheckCacheDir(const std::optional<std::string>& given) {
  if (!given) return true;
  const std::string& folder = *given;
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (!error && !std::filesystem::is_directory(folder)) {
    error = std::make_error_code(std::errc::not_a_directory);
  }
  if (!error && access(folder.c_str(), W_OK | X_OK) != 0) {
    error = std::error_code(errno, std::generic_category());
  }
  if (!error) return true;
  Log(LogLevel::kWarning,
      fmt::format("--cache-dir: {} cannot be written ({}); each start computes again what it would "
                  "keep there",
                  folder, error.message()));
  return false;
}

}  // namespace

std::string UnusableCapLine(std::string_view begin, uint64_t cap_bytes, const MemoryPlan& plan) {
  if (cap_bytes <= plan.tier_usable_bytes) return "";
  return fmt::format(
      "{}{} of the cap of {} cannot be used: at most {} blocks of {} tokens are kept, which is "
      "{}\n",
      begin, FormatBytes(cap_bytes - plan.tier_usable_bytes), FormatBytes(cap_bytes),
      kMaxDiskBlocks, plan.block_tokens, FormatBytes(plan.tier_usable_bytes));
}

Result<std::unique_ptr<Engine>> LoadEngine(EngineOptions options) {
  if (!CheckCacheDir(options.cache_dir)) options.image_cap_bytes = 0;  // warned once
  Progress progress;
  options.progress = [&progress](const char* phase, double share) {
    progress.Show(fmt::format("{}: {:.0f}%", phase, share * 100), share);
  };
  options.warn = [&progress, warn = options.warn](const std::string& text) {
    progress.Clear();
    warn(text);
  };
  return Engine::Load(options);
}

}  // namespace kvasir::cli
