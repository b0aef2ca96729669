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
#include "cli/hub_model.h"
#include "cli/machine_limits.h"
#include "cli/progress.h"
#include "cli/template_flags.h"
#include "kvasir/machine.h"
#include "kvasir/sampling_ranges.h"

namespace kvasir::cli {
namespace {

constexpr uint64_t kMaxU32 = std::numeric_limits<uint32_t>::max();
constexpr uint64_t kMaxId = std::numeric_limits<TokenId>::max();

Result<uint32_t> U32(const Args& args, const std::string& name, uint64_t min, uint64_t max,
                     uint32_t otherwise) {
  KV_ASSIGN(const uint64_t value, args.Uint(name, min, max, otherwise));
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
  KV_ASSIGN(const std::string mode, args.OneOf("cache", kModes, "prefix"));
  if (mode == "sequence") return CacheMode::kSequence;
  return mode == "none" ? CacheMode::kNone : CacheMode::kPrefix;
}

}  // namespace

std::vector<Flag> ModelFlags() {
  return {
      {"model", "M",
       "Hugging Face folder, GGUF file, or owner/name[@revision][:file or quant] in the Hugging "
       "Face "
       "cache ('kvasir pull' fetches it; default: the bundled model)"},
      {"kv-format", "F",
       "how KV is stored: f32, f16 (default), bf16, fp8_e4m3, fp8_e5m2, int8, int4, nf4; K and "
       "V apart: k=int8,v=f16"},
      {"kv-skip-layers", "LIST", "layers whose KV is kept in f16: 0,15"},
      {"weights", "W",
       "i8, i4, q8_0, q4_0: quantised at load; f32, f16, bf16: only what the files have "
       "(default: as in the files)"},
      {"threads", "N",
       "threads that compute (default: one for each core that the process may use)"},
      {"log-level", "LEVEL",
       "error, warning, info (default) or debug: the least level that the log on stderr shows"}};
}

std::vector<Flag> CacheDirFlags() {
  return {{"cache-dir", "DIR",
           "folder of model images and digests of weights (default: XDG_CACHE_HOME/kvasir)"}};
}

std::vector<Flag> LoadFlags() {
  return Join({ModelFlags(),
               {{"pin-threads", "", "pin each thread that computes to a separate processor",
                 FlagKind::kSwitch}},
               CacheDirFlags(),
               {{"image-cap", "SIZE",
                 "limit of the model images there (default 16GiB; 0: keep no images)"}}});
}

std::vector<Flag> CacheFlags() {
  return {
      {"kv-memory", "SIZE",
       "the most the KV cache may take: 512MiB, 1G (default 2GiB, less where all together would be "
       "more than 60% of the memory that the process may use)"},
      {"allow-overcommit", "",
       "start with a plan that is more than the memory that the process may use",
       FlagKind::kSwitch},
      {"ctx-size", "N", "longest sequence in tokens (default: what the model was trained for)"},
      {"parallel", "N", "sequences that run at once (default 8)"},
      {"cache", "MODE",
       "prefix (default: shared by all requests), sequence (nothing outlives its request), none "
       "(no KV: each step computes everything)"},
      {"eviction", "POLICY",
       "which blocks leave a full cache first: lru (default: used longest ago), s3fifo (used "
       "once)"},
      {"block-tokens", "N", "tokens of a block: a multiple of 16 (default 16)"},
      {"step-tokens", "N", "at most N rows in a step (default 512, with sliding windows 448)"}};
}

std::vector<Flag> SchedulingFlags() {
  return {
      {"schedule", "fair|fifo",
       "fair (default): API keys take turns by the time that each was given; fifo: first come, "
       "first served"},
      {"admission", "expected|full",
       "expected (default): a request runs when there is room for the answer that it is expected "
       "to get; full: for the longest answer that it may get"},
      {"kv-headroom", "SHARE",
       "share of the cache that new requests leave to those that run (default 0.05)"},
      {"target-itl-ms", "MS",
       "while answers are generated, prompts are computed in steps of about this time (default "
       "200; 0: in whole steps)"}};
}

std::vector<Flag> QueueFlags() {
  return {
      {"max-queued", "N", "at most N requests wait; one more gets 429 (default 256)"},
      {"max-queue-ms", "MS", "a request that is expected to wait longer gets 429 (default 60000)"}};
}

std::vector<Flag> FetchFlags() {
  return {{"hf-repo", "REPO",
           "as --model owner/name[:file or quant], and fetches it first, as 'kvasir pull' does, if "
           "the Hugging Face cache lacks it"}};
}

std::vector<Flag> RequestFlags() {
  return {{"request-memory", "SIZE",
           "memory limit of requests that are read, wait or run, beside the cache "
           "(default 320MiB, at least 16MiB)"},
          {"session-memory", "SIZE",
           "memory limit of sessions: their text and ids (default 64MiB; 0: none)"},
          {"grammar-memory", "SIZE",
           "memory limit of formats of answers: grammars and masks (default 64MiB; 0: none)"}};
}

std::vector<Flag> SamplingFlags() {
  return {{"max-tokens", "N", "at most N tokens of answer (default: the room that is left)"},
          {"temperature", "T",
           "0 (default without a generation_config.json): always the likeliest token, so runs "
           "repeat"},
          {"seed", "S", "the same seed gives the same text"},
          {"top-k", "N", "only the N likeliest tokens (default 0: all)"},
          {"top-p", "P", "only the likeliest tokens that make up P (default 1)"},
          {"min-p", "P", "only tokens at least P times as likely as the likeliest (default 0)"},
          {"repetition-penalty", "X", "over prompt and answer (default 1: none)"},
          {"presence-penalty", "X", "over the answer (default 0)"},
          {"frequency-penalty", "X", "over the answer (default 0)"},
          {"stop", "TEXT", "end before TEXT; may be given several times", FlagKind::kList}};
}

std::vector<Flag> DefaultFlags() {
  return {{"max-tokens", "N",
           "the most tokens of answers whose requests do not say it (default: the room that is "
           "left; /v1/completions: 16)"},
          {"temperature", "T",
           "of requests that do not say it, before generation_config.json, as the flags up to "
           "--frequency-penalty (default 1)"},
          {"seed", "S", "the same seed gives the same text (default: a new one each time)"},
          {"top-k", "N", "only the N likeliest tokens (default 0: all)"},
          {"top-p", "P", "only the likeliest tokens that make up P (default 1)"},
          {"min-p", "P", "only tokens at least P times as likely as the likeliest (default 0)"},
          {"repetition-penalty", "X", "over prompt and answer (default 1: none)"},
          {"presence-penalty", "X", "over the answer (default 0)"},
          {"frequency-penalty", "X", "over the answer (default 0)"}};
}

std::vector<Flag> GenerationConfigFlags() {
  return {{"generation-config", "auto|none",
           "auto (default): the model folder's generation_config.json says how to sample where "
           "nothing else does; none: it is not looked at"}};
}

std::vector<Flag> DiskFlags(DiskDefault otherwise) {
  return {
      {"disk", "DIR",
       otherwise == DiskDefault::kCacheFolder
           ? "folder in which the cache outlives the process, encrypted (default: kv in the cache "
             "folder); none: it ends with the process"
           : "folder in which the cache outlives the process, encrypted; none: it does not "
             "(default)"},
      {"disk-cap", "SIZE",
       "limit of all in that folder (default: a tenth of what is free, at most 20GiB; 0: no "
       "disk)"},
      {"disk-ttl", "HOURS", "what nobody used for so long leaves the disk (default 168)"},
      {"disk-reserve", "SIZE",
       "what stays free on the device (default: a tenth of it, at most 2 GiB)"}};
}

std::vector<Flag> AnswerFlags() {
  return Join({FetchFlags(), TemplateFlags(), SamplingFlags(), GenerationConfigFlags(), LoadFlags(),
               CacheFlags(), DiskFlags(DiskDefault::kNone)});
}

std::vector<Flag> AbsentFlags() {
  return {{"seal", "aes|none", "", FlagKind::kValue, "another seal of the disk tier"}};
}

std::vector<Flag> Join(std::initializer_list<std::vector<Flag>> lists) {
  std::vector<Flag> all;
  for (const std::vector<Flag>& list : lists) all.insert(all.end(), list.begin(), list.end());
  return all;
}

namespace {

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
  if (args.Text("disk-reserve") == "0") {
    disk.reserve_bytes = 0;
  } else if (args.Has("disk-reserve")) {
    KV_ASSIGN(disk.reserve_bytes, args.Bytes("disk-reserve", 0));
  }
  options->disk = std::move(disk);
  return {};
}

Status ReadScheduling(const Args& args, EngineOptions* options) {
  static constexpr std::string_view kSchedules[] = {"fair", "fifo"};
  KV_ASSIGN(const std::string schedule, args.OneOf("schedule", kSchedules, "fair"));
  options->schedule = schedule == "fifo" ? Schedule::kFifo : Schedule::kFair;
  static constexpr std::string_view kAdmissions[] = {"expected", "full"};
  KV_ASSIGN(const std::string admission, args.OneOf("admission", kAdmissions, "expected"));
  options->admission = admission == "full" ? Admission::kFull : Admission::kExpected;
  KV_ASSIGN(options->kv_headroom, args.Float("kv-headroom", {0, 0.5}, 0.05));
  KV_ASSIGN(options->target_itl_ms,
            U32(args, "target-itl-ms", 0, 3'600'000, options->target_itl_ms));
  KV_ASSIGN(options->max_queued, U32(args, "max-queued", 0, 1 << 20, options->max_queued));
  KV_ASSIGN(options->max_queue_ms, U32(args, "max-queue-ms", 1, 86'400'000, options->max_queue_ms));
  return {};
}

}  // namespace

std::optional<std::string> CacheDirOf(const Args& args) {
  const auto given = args.Text("cache-dir");
  return given && !given->empty() ? given : std::nullopt;
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
  if (const auto model = args.Text("model")) {
    if (model->empty()) {
      return Fail(Code::kInvalidArgument,
                  "--model: is empty; give a folder or a GGUF file, or leave it out");
    }
    options.model = *model;
  }
  if (args.Has("shape") && args.Has("model")) {
    return Fail(Code::kInvalidArgument, "give only one of --shape and --model");
  }
  options.shape = args.Text("shape");
  if (const auto repo = args.Text("hf-repo")) {
    if (args.Has("model") || args.Has("shape")) {
      return Fail(Code::kInvalidArgument, "give only one of --hf-repo and --{}",
                  args.Has("model") ? "model" : "shape");
    }
    KV_TRY(FetchModel(*repo, &options));
  }
  if (!args.Has("shape")) KV_TRY(FindInHubCache(use, &options));
  options.kv_format = args.Text("kv-format").value_or(options.kv_format);
  KV_ASSIGN(const std::vector<uint64_t> skip, args.UintList("kv-skip-layers", 0, kMaxU32, {}));
  options.kv_skip_layers.assign(skip.begin(), skip.end());
  if (args.Has("weights")) {
    static constexpr std::string_view kFormats[] = {"i8",  "i4",  "q8_0", "q4_0",
                                                    "f32", "f16", "bf16"};
    KV_ASSIGN(options.weights, args.OneOf("weights", kFormats, ""));
  }
  options.cache_dir = CacheDirOf(args);
  if (args.Text("image-cap") == "0") {
    options.image_cap_bytes = 0;
  } else {
    KV_ASSIGN(options.image_cap_bytes, args.Bytes("image-cap", options.image_cap_bytes));
  }
  if (args.Has("threads")) {
    KV_ASSIGN(options.threads, U32(args, "threads", 1, 1024, 1));
  }
  options.pin_threads = args.Has("pin-threads");
  KV_TRY(ReadDisk(args, disk_otherwise, &options));
  KV_ASSIGN(options.kv_memory_bytes, args.Bytes("kv-memory", options.kv_memory_bytes));
  KV_ASSIGN(options.request_memory_bytes,
            args.Bytes("request-memory", options.request_memory_bytes));
  if (args.Text("session-memory") == "0") {
    options.session_memory_bytes = 0;
  } else {
    KV_ASSIGN(options.session_memory_bytes,
              args.Bytes("session-memory", options.session_memory_bytes));
  }
  if (args.Text("grammar-memory") == "0") {
    options.grammar_memory_bytes = 0;
  } else {
    KV_ASSIGN(options.grammar_memory_bytes,
              args.Bytes("grammar-memory", options.grammar_memory_bytes));
  }
  if (args.Has("ctx-size")) {
    KV_ASSIGN(options.ctx_size, U32(args, "ctx-size", 1, kMaxId, 1));
  }
  KV_ASSIGN(options.parallel, U32(args, "parallel", 1, 4096, options.parallel));
  const auto block_tokens = U32(args, "block-tokens", 16, 1024, options.block_tokens);
  if (!block_tokens) {
    return Fail(Code::kInvalidArgument,
                "--block-tokens: '{}' is not valid; give a multiple of 16, from 16 to 1024",
                *args.Text("block-tokens"));
  }
  options.block_tokens = *block_tokens;
  if (options.block_tokens % 16 != 0) {
    return Fail(Code::kInvalidArgument,
                "--block-tokens: {} is not a multiple of 16; the nearest is {}",
                options.block_tokens, (options.block_tokens + 8) / 16 * 16);
  }
  if (args.Has("step-tokens")) {
    KV_ASSIGN(options.step_tokens, U32(args, "step-tokens", 1, 1 << 16, 1));
  }
  KV_TRY(ReadScheduling(args, &options));
  KV_ASSIGN(options.cache_mode, CacheModeOf(args));
  options.eviction = args.Text("eviction").value_or(options.eviction);
  static constexpr std::string_view kGenerationConfigs[] = {"auto", "none"};
  KV_ASSIGN(const std::string generation,
            args.OneOf("generation-config", kGenerationConfigs, "auto"));
  options.generation_config = generation == "auto";
  const Status fits = FitToMachine(args, ReadMemoryLimit(), &options);
  if (!fits && use == ModelUse::kRun) return tl::unexpected(fits.error());
  if (!fits) options.warn("with these flags nothing starts here: " + fits.error().message);
  return options;
}

Status ReadSampling(const Args& args, GenerateRequest& request) {
  SamplingParams& sampling = request.sampling;
  const auto number = [&args](const char* name, SamplingRange range, float otherwise) {
    return args.Float(name, {range.least, range.most}, otherwise);
  };
  KV_ASSIGN(sampling.temperature, number("temperature", kTemperatureRange, 0));
  KV_ASSIGN(sampling.top_k, U32(args, "top-k", 0, kMaxU32, 0));
  KV_ASSIGN(sampling.top_p, number("top-p", kProbabilityRange, 1));
  KV_ASSIGN(sampling.min_p, number("min-p", kProbabilityRange, 0));
  KV_ASSIGN(sampling.repetition_penalty, number("repetition-penalty", kRepetitionPenaltyRange, 1));
  KV_ASSIGN(sampling.presence_penalty, number("presence-penalty", kAnswerPenaltyRange, 0));
  KV_ASSIGN(sampling.frequency_penalty, number("frequency-penalty", kAnswerPenaltyRange, 0));
  if (args.Has("seed")) {
    KV_ASSIGN(sampling.seed, args.Uint("seed", 0, std::numeric_limits<uint64_t>::max(), 0));
  }
  request.stop = args.List("stop");
  for (const std::string& stop : request.stop) {
    if (stop.empty()) {
      return Fail(Code::kInvalidArgument,
                  "--stop: an empty string would stop every answer at once; leave it out");
    }
  }
  KV_ASSIGN(request.max_tokens, U32(args, "max-tokens", 0, kMaxU32, request.max_tokens));
  return {};
}

Result<RequestDefaults> ReadDefaults(const Args& args) {
  GenerateRequest given;
  KV_TRY(ReadSampling(args, given));
  const SamplingParams& sampling = given.sampling;
  RequestDefaults defaults;
  const auto take = [&args](const char* name, auto& to, auto value) {
    if (args.Has(name)) to = value;
  };
  take("max-tokens", defaults.max_tokens, given.max_tokens);
  take("temperature", defaults.sampling.temperature, sampling.temperature);
  take("seed", defaults.seed, sampling.seed);
  take("top-k", defaults.sampling.top_k, sampling.top_k);
  take("top-p", defaults.sampling.top_p, sampling.top_p);
  take("min-p", defaults.sampling.min_p, sampling.min_p);
  take("repetition-penalty", defaults.sampling.repetition_penalty, sampling.repetition_penalty);
  take("presence-penalty", defaults.presence_penalty, sampling.presence_penalty);
  take("frequency-penalty", defaults.frequency_penalty, sampling.frequency_penalty);
  return defaults;
}

void TakeDefaults(const Args& args, const SamplingDefaults& defaults, SamplingParams& sampling) {
  SamplingDefaults left = defaults;
  if (args.Has("temperature")) left.temperature.reset();
  if (args.Has("top-k")) left.top_k.reset();
  if (args.Has("top-p")) left.top_p.reset();
  if (args.Has("min-p")) left.min_p.reset();
  if (args.Has("repetition-penalty")) left.repetition_penalty.reset();
  sampling = left.Over(sampling);
}

Result<std::vector<TokenId>> ParseIds(const std::string& text, const std::string& flag) {
  Args args;
  args.Set(flag, {text});
  KV_ASSIGN(const std::vector<uint64_t> values, args.UintList(flag, 0, kMaxId, {}));
  return std::vector<TokenId>(values.begin(), values.end());
}

namespace {

// Whether the folder can be written. Warns if not, because then each start computes again what the
// folder would keep.
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
    progress.Show(fmt::format("{}: {:.0f}%", phase, share * 100));
  };
  options.warn = [&progress, warn = options.warn](const std::string& text) {
    progress.Clear();
    warn(text);
  };
  return Engine::Load(options);
}

}  // namespace kvasir::cli
