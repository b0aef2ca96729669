// EngineOptions: which model an Engine runs, and how much memory and time it takes.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "kvasir/adapters.h"
#include "kvasir/disk.h"
#include "kvasir/drafts.h"
#include "kvasir/images.h"
#include "kvasir/kv_events.h"
#include "kvasir/remote.h"
#include "kvasir/retention.h"

namespace kvasir {

enum class CacheMode { kPrefix, kSequence, kNone };
// How much of an answer admission reserves blocks for: as much as it is expected to have, or as
// much as it may have.
enum class Admission { kExpected, kFull };
// The order in which requests run: tenants by what they were given so far, or first come, first
// served.
enum class Schedule { kFair, kFifo };

// Requests that wait or run in an Engine may take 1 / kWaitingShare of
// EngineOptions::request_memory_bytes; the rest is for a server in front of it
// (http/request_memory.h).
inline constexpr uint64_t kWaitingShare = 20;

// A value of EngineOptions::eviction.
struct EvictionPolicyName {
  const char* name;
  const char* evicts_first;  // the blocks that leave first: "used longest ago"
};
// Lists all of them, the default first.
std::vector<EvictionPolicyName> EvictionPolicies();

// kvasir/engine_ranges.h says what numbers may be.
struct EngineOptions {
  // Hugging Face folder or GGUF file; absent: $KVASIR_MODEL, else the bundled model.
  std::optional<std::string> model;
  std::optional<std::string> model_name;  // what it is called; absent: as its folder or file
  std::optional<std::string> shape;       // instead of model: random weights (bench)
  // Absent, or the stored type's name: used as stored (a shape: "f32", "f16" or "bf16", the
  // default). "i8", "i4", "q8_0", "q4_0": quantised at load, with embedding and output head in i8
  // (q8_0).
  std::optional<std::string> weights;
  // f32, f16, bf16, fp8_e4m3, fp8_e5m2, int8, int4 or nf4; "k=int8,v=f16" sets K and V separately.
  std::string kv_format = "f16";
  std::vector<uint32_t> kv_skip_layers;  // layers whose KV stays in f16
  CacheMode cache_mode = CacheMode::kPrefix;
  uint64_t kv_memory_bytes = uint64_t{2} << 30;
  std::optional<uint32_t> ctx_size;  // absent: what the model was trained for
  uint32_t parallel = 8;             // sequences that run at once
  uint32_t max_queued = 256;         // the engine refuses more with kExhausted
  uint32_t max_queue_ms = 60000;     // and those that it expects to start later
  // Limit of the memory that requests take beside the KV cache: while a server reads, parses and
  // answers them, and while they wait. At least 16 MiB. The engine counts these bytes and does not
  // allocate them ahead; a request beyond the limit gets kExhausted.
  uint64_t request_memory_bytes = uint64_t{320} << 20;
  // Limit of the memory that sessions take in a server in front of it (kvasir/session.h). The
  // engine only plans for it.
  uint64_t session_memory_bytes = uint64_t{64} << 20;
  // Limit of the memory that a server has to name lines of chats that change. The engine only plans
  // for it.
  uint64_t head_memory_bytes = uint64_t{4} << 20;
  // Limit of the memory for formats of answers: the vocabulary as bytes, grammars, and masks.
  uint64_t grammar_memory_bytes = uint64_t{64} << 20;
  // How many grammars are compiled at a time, 1 or 2: each takes 30 MiB at most meanwhile.
  uint32_t grammar_compiles = 2;
  std::optional<uint32_t> threads;  // absent: a thread for each core that this process may use
  bool pin_threads = false;         // each thread to a separate processor
  uint32_t block_tokens = 16;
  std::string eviction = "lru";  // which idle blocks are evicted first: of EvictionPolicies()
  double keep_share = 0.25;    // of the pool, that GenerateRequest::keeps of a tenant keep at most
  uint32_t max_tenants = 256;  // prompts of further tenants are computed and not cached
  // Rows of one step, at most. Absent: 512, or 448 for a model with windows, whose sequences need
  // room for a step beside each window. A model with an encoder has at least ctx_size: it reads
  // sources whole.
  std::optional<uint32_t> step_tokens;
  Schedule schedule = Schedule::kFair;
  Admission admission = Admission::kExpected;
  double kv_headroom = 0.05;  // share of the pool that admission leaves to those that run
  RetentionChoice retention;  // of requests that do not say
  Speculate speculate = Speculate::kAuto;
  uint32_t draft_max = 16;  // tokens of a draft, at most kMaxDraft; 0: no drafts
  // A second, smaller model with the same vocabulary, as `model`: it drafts where the cache and a
  // prediction have nothing, or are wrong too often. Or, for bench, random weights, as `shape`.
  // Absent: none.
  std::optional<std::string> draft_model, draft_shape;
  uint64_t draft_kv_memory_bytes = uint64_t{256} << 20;  // of its cache
  uint32_t target_itl_ms = 200;  // how long a step may take while something decodes; 0: no limit
  // Kernel target; absent: KVASIR_TARGET, else the best of this CPU.
  std::optional<std::string> target;
  // Absent: CACHE_DIRECTORY, XDG_CACHE_HOME/kvasir or ~/.cache/kvasir, else nothing is kept. Holds
  // the digests of weights and the model images.
  std::optional<std::string> cache_dir;
  // Limit of the model images there; the least recently used are removed first. 0: no images are
  // kept. Without a secret in the state folder no images are kept either.
  uint64_t image_cap_bytes = kDefaultImageCapBytes;
  AdapterOptions adapters;
  // Keeps the cache over restarts, encrypted under the secret of the state folder. Absent: it ends
  // with the process. Only with CacheMode::kPrefix, and a secret that lasts.
  std::optional<DiskOptions> disk;
  // Shares the cache with other machines through a store. Absent: it does not. Only with
  // CacheMode::kPrefix, and not for models with an encoder.
  std::optional<RemoteOptions> remote;
  // Publishes which blocks the pool holds, with their tokens in clear, for routers. Absent: it does
  // not. Only with CacheMode::kPrefix, for models without an encoder that have layers which see all
  // tokens, and where libzmq is installed.
  std::optional<KvEventsOptions> events;
  // Absent: STATE_DIRECTORY, XDG_STATE_HOME/kvasir or ~/.local/state/kvasir. Holds the secret that
  // keys are derived from, made at first start. Where it cannot be written, or there is no home, a
  // secret of this process alone is used, and nothing is kept for the next one: a disk folder that
  // `disk` names is then kInvalidArgument. A secret that is there and that others may read
  // (kPermissionDenied) or that is damaged (kCorruption) is refused.
  std::optional<std::string> state_dir;
  // A file that has the secret. It must be there: kNotFound. Absent: the state folder's secret.
  std::optional<std::string> secret_file;
  // Whether ModelCard::sampling has the values of the model folder's generation_config.json.
  bool generation_config = true;
  // Called while loading, from Load's thread: a phase and the share of it that is done.
  std::function<void(const char* phase, double share)> progress;
  // Called while loading, from Load's thread, with a sentence about a problem that Load has
  // repaired, such as a damaged model image.
  std::function<void(const std::string& text)> warn;
  // Called while serving, from the engine's thread or from a thread that calls CheckModel: a
  // sentence that says what happened to the model's files and what to do. Must not block.
  std::function<void(const std::string& text)> on_model_change;
};

}  // namespace kvasir
