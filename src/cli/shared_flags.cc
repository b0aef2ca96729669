#include "cli/shared_flags.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>

#include "base/log.h"
#include "cli/adapter_flags.h"
#include "cli/sampling_flags.h"
#include "cli/template_flags.h"
#include "kvasir/engine_options.h"
#include "kvasir/plan.h"

namespace kvasir::cli {

std::string EvictionChoicesText() {
  std::string text;
  for (const EvictionPolicyName& policy : EvictionPolicies()) {
    text += text.empty() ? fmt::format("{} (default: {})", policy.name, policy.evicts_first)
                         : fmt::format(", {} ({})", policy.name, policy.evicts_first);
  }
  return text;
}

Flag Expert(Flag flag) {
  flag.is_expert = true;
  return flag;
}

namespace {

// Returns the flag with the values that shells offer.
template <typename Names>
Flag WithChoices(Flag flag, const Names& names) {
  flag.choices = fmt::format("{}", fmt::join(names, " "));
  return flag;
}

std::vector<std::string> EvictionList() {
  std::vector<std::string> names;
  for (const EvictionPolicyName& policy : EvictionPolicies()) names.emplace_back(policy.name);
  return names;
}

}  // namespace

std::vector<Flag> ModelFlags() {
  return {
      {"model", "M",
       "Hugging Face folder, GGUF file, or owner/name[@revision][:file or quant] in the Hugging "
       "Face "
       "cache ('kvasir pull' fetches it; default: the bundled model)"},
      WithChoices(
          {"kv-format", "F",
           "how KV is stored: f32, f16 (default), bf16, fp8_e4m3, fp8_e5m2, int8, int4, nf4; K and "
           "V apart: k=int8,v=f16"},
          KvFormatList()),
      {"kv-skip-layers", "LIST", "layers whose KV is kept in f16: 0,15"},
      WithChoices(
          {"weights", "W",
           "i8, i4, q8_0, q4_0: quantised at load; f32, f16, bf16: only what the files have "
           "(default: as in the files)"},
          std::to_array<const char*>({"i8", "i4", "q8_0", "q4_0", "f32", "f16", "bf16"})),
      {"threads", "N",
       "threads that compute (default: one for each core that the process may use)"},
      WithChoices(
          {"log-level", "LEVEL",
           "error, warning, info (default) or debug: the least level that the log on stderr shows"},
          kLogLevelNames)};
}

std::vector<Flag> CacheDirFlags() {
  return {{"cache-dir", "DIR",
           "folder of model images and digests of weights (default: XDG_CACHE_HOME/kvasir)"}};
}

std::vector<Flag> LoadFlags() {
  return Join({ModelFlags(),
               {Expert({"pin-threads", "", "pin each thread that computes to a separate processor",
                        FlagKind::kSwitch})},
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
      WithChoices(
          {"cache", "MODE",
           "prefix (default: shared by all requests), sequence (nothing outlives its request, as "
           "with "
           "static and dynamic of Transformers), none (no KV: each step computes everything)"},
          std::to_array<const char*>({"prefix", "sequence", "none"})),
      Expert({"keep-share", "SHARE",
              "share of the cache that the marks of a tenant's requests (cache_control, "
              "prompt_cache_breakpoint) keep at most (default 0.25; 0: none)"}),
      WithChoices(
          {"eviction", "POLICY", "which blocks leave a full cache first: " + EvictionChoicesText()},
          EvictionList()),
      {"retention", "POLICY",
       "what a sequence keeps when it grows: full (default), window (its last tokens), "
       "sinks+window (its first ones too), heavy (blocks that later tokens weigh most); "
       "window:budget=1024, heavy:budget=1024,sinks=4,recent=128, sinks+window:keep=-1 (the prompt "
       "stays)"},
      {"speculate", "auto|always|off",
       "tokens that the cache has seen to follow are computed ahead and checked: auto (default: "
       "where that is faster), always, off; no answer depends on it"},
      {"draft-max", "N", "at most N tokens ahead, 0 to 32 (default 16)"},
      {"draft-model", "M",
       "a smaller model with the same vocabulary, as --model: it drafts where the cache has "
       "nothing, or is wrong too often"},
      {"draft-hf-repo", "REPO", "as --draft-model, and fetches it first, as --hf-repo does"},
      {"draft-kv-memory", "SIZE",
       "the most the cache of the draft model may take (default 256MiB)"},
      Expert({"block-tokens", "N", "tokens of a block: a multiple of 16 (default 16)"}),
      Expert({"step-tokens", "N",
              "at most N rows in a step (default 512, with sliding windows 448)"})};
}

std::vector<Flag> SchedulingFlags() {
  return {
      {"schedule", "fair|fifo",
       "fair (default): API keys take turns by the time that each was given; fifo: first come, "
       "first served"},
      {"admission", "expected|full",
       "expected (default): a request runs when there is room for the answer that it is expected "
       "to get; full: for the longest answer that it may get"},
      Expert({"kv-headroom", "SHARE",
              "share of the cache that new requests leave to those that run (default 0.05)"}),
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
          {"head-memory", "SIZE",
           "memory limit of digests of lines, which name a line of chats that changes "
           "(default 4MiB; 0: none is named)"},
          {"grammar-memory", "SIZE",
           "memory limit of formats of answers: grammars and masks (default 64MiB; 0: none)"}};
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
      {"disk-ttl", "HOURS", "records that were not used for so long leave the disk (default 168)"},
      {"disk-reserve", "SIZE",
       "what stays free on the device (default: a tenth of it, at most 2 GiB)"}};
}

std::vector<Flag> RemoteFlags() {
  return {
      {"remote", "URL",
       "store that the machines of a fleet share their cache through, encrypted: "
       "redis://HOST:PORT, or rediss:// with TLS, whose password is in REDISCLI_AUTH; or "
       "s3://BUCKET/PREFIX?region=R&endpoint=URL, whose keys are in AWS_ACCESS_KEY_ID and "
       "AWS_SECRET_ACCESS_KEY"},
      {"fleet-secret", "FILE",
       "secret of the fleet, which 'kvasir key fleet FILE' makes; needed with --remote"},
      {"remote-ca", "FILE",
       "certificates (PEM) that a store with TLS is verified with (default: those that the system "
       "trusts)"},
      {"remote-mode", "readwrite|read", "read: nothing is written there (default readwrite)"},
      {"remote-memory", "SIZE", "buffers of blocks on their way there and back (default 64MiB)"},
      {"remote-ttl", "HOURS",
       "blocks leave the store so long after they were written or read (default 24); of S3 the "
       "rules "
       "of the bucket count"},
      {"remote-daily", "SIZE",
       "most that this machine writes there in a day; past half of it only blocks that were used "
       "again (default: no limit)"},
      {"remote-compression", "auto|none|zstd",
       "compresses KV of 16 bits that is written there; auto: bf16, and f16 where the store is "
       "slower than 500 MB/s (default)"}};
}

std::vector<Flag> AnswerFlags() {
  return Join({FetchFlags(), TemplateFlags(), SamplingFlags(), GenerationConfigFlags(), LoadFlags(),
               AdapterFlags(), CacheFlags(), DiskFlags(DiskDefault::kNone)});
}

std::vector<Flag> AbsentFlags() {
  return {{"seal", "aes|none", "", FlagKind::kValue, "another seal of the disk tier"}};
}

std::vector<Flag> Join(std::initializer_list<std::vector<Flag>> lists) {
  std::vector<Flag> all;
  for (const std::vector<Flag>& list : lists) all.insert(all.end(), list.begin(), list.end());
  return all;
}

}  // namespace kvasir::cli
