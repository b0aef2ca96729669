// Engine: model + KvCache + scheduler + threads. Servers and commands are built on it.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kvasir/answer_format.h"
#include "kvasir/cache_counters.h"
#include "kvasir/disk.h"
#include "kvasir/histogram.h"
#include "kvasir/images.h"
#include "kvasir/plan.h"
#include "kvasir/prefix_list.h"
#include "kvasir/receipt.h"
#include "kvasir/request_stats.h"
#include "kvasir/request_trace.h"
#include "kvasir/status.h"
#include "kvasir/tenant.h"
#include "kvasir/types.h"

namespace kvasir {

class Tokenizer;
class ChatTemplate;

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

struct EngineOptions {
  // Hugging Face folder or GGUF file; absent: $KVASIR_MODEL, else the bundled model.
  std::optional<std::string> model;
  std::optional<std::string> model_name;  // what it is called; absent: as its folder or file
  std::optional<std::string> shape;       // instead of model: random weights (bench)
  // Absent or what they are: as stored (a shape: "f32", "f16" or "bf16", the default). "i8", "i4",
  // "q8_0", "q4_0": quantised at load, with embedding and output head in i8 (q8_0).
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
  // Limit of the memory for formats of answers: the vocabulary as bytes, grammars, and masks.
  uint64_t grammar_memory_bytes = uint64_t{64} << 20;
  std::optional<uint32_t> threads;  // absent: a thread for each core that this process may use
  bool pin_threads = false;         // each thread to a separate processor
  uint32_t block_tokens = 16;
  std::string eviction = "lru";  // which idle blocks are evicted first: "lru" or "s3fifo"
  uint32_t max_tenants = 256;    // prompts of further tenants are computed and not cached
  // Rows of one step, at most. Absent: 512, or 448 for a model with windows, whose sequences need
  // room for a step beside each window. A model with an encoder has at least ctx_size: it reads
  // sources whole.
  std::optional<uint32_t> step_tokens;
  Schedule schedule = Schedule::kFair;
  Admission admission = Admission::kExpected;
  double kv_headroom = 0.05;     // share of the pool that admission leaves to those that run
  uint32_t target_itl_ms = 200;  // how long a step may take while something decodes; 0: no limit
  // Kernel target; absent: KVASIR_TARGET, else the best of this CPU.
  std::optional<std::string> target;
  // Absent: XDG_CACHE_HOME/kvasir, else ~/.cache/kvasir; with no home nothing is remembered. Holds
  // the digests of weights and the model images.
  std::optional<std::string> cache_dir;
  // Limit of the model images there; the least recently used are removed first. 0: no images are
  // kept. Without a secret in the state folder no images are kept either.
  uint64_t image_cap_bytes = kDefaultImageCapBytes;
  // Keeps the cache over restarts, encrypted under the secret of the state folder. Absent: it ends
  // with the process. Only with CacheMode::kPrefix, and a secret that lasts.
  std::optional<DiskOptions> disk;
  // Absent: XDG_STATE_HOME/kvasir, else ~/.local/state/kvasir. Holds the secret that keys are
  // derived from, made at first start. Where it cannot be written, or there is no home, a secret of
  // this process alone is used, and nothing is kept for the next one: a disk folder that `disk`
  // names is then kInvalidArgument. A secret that is there and that others may read
  // (kPermissionDenied) or that is damaged (kCorruption) is refused.
  std::optional<std::string> state_dir;
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

struct SamplingParams {
  float temperature = 1.0f;  // 0: greedy
  uint32_t top_k = 0;        // 0: all
  float top_p = 1.0f;
  float min_p = 0.0f;
  float repetition_penalty = 1.0f;  // over prompt and answer (CTRL, Keskar et al., 2019)
  float presence_penalty = 0.0f;    // over the answer (OpenAI)
  float frequency_penalty = 0.0f;
  // All three penalties are over the last so many tokens of prompt and answer (llama.cpp).
  std::optional<uint32_t> penalty_last_n;
  std::vector<std::pair<TokenId, float>> logit_bias;
  bool temperature_last = false;  // after top_k, top_p and min_p (llama.cpp), not before them
  bool infill = false;            // then only what sampling/infill_cut.h keeps (llama.cpp)
  std::optional<uint64_t> seed;   // absent: a random one, which the receipt does not show
};

// What a model's makers say of sampling (generation_config.json), for requests that do not.
struct SamplingDefaults {
  std::optional<float> temperature, top_p, min_p, repetition_penalty;
  std::optional<uint32_t> top_k;

  SamplingParams Over(SamplingParams params) const;  // `params`, with what is said here
  // "temperature 0.6, top_k 20"; absent: nothing is said.
  std::optional<std::string> Text() const;
};

// kInvalidArgument naming the field that is outside its range (kvasir/sampling_ranges.h) or not
// finite, "samplers" for infill without a top_k of 1..kMaxInfillCandidates, or the token of
// logit_bias that is outside the vocabulary. (The order and the formulas are in
// sampling/sampler.h.)
Status ValidateSampling(const SamplingParams& params, uint32_t vocab_size);

// When a beam search ends that has as many hypotheses as beams. kTrue: at once. kFalse: when the
// worst hypothesis scores at least as much as the best beam at its present length. kNever: as
// kFalse; with a positive length_penalty the beam's score is that at max_tokens.
enum class EarlyStopping : uint8_t { kFalse, kTrue, kNever };
inline constexpr uint32_t kMaxBeams = 16;

// Beam search as transformers 5 defines it (sampling/beam_search.h).
struct BeamParams {
  uint32_t beams = 5;        // 2..kMaxBeams, at most `parallel`; each counts as a sequence
  float length_penalty = 1;  // score = sum of log probabilities / length ** length_penalty
  EarlyStopping early_stopping = EarlyStopping::kFalse;
};

struct TokenLogprob {
  TokenId id;
  float logprob;  // natural log, of the model's distribution before sampling parameters
};

struct GeneratedToken {
  TokenId id;
  // The text that is certain once this token is known; may be empty. All pieces joined are the
  // whole decoded answer; all Event.text joined are the same, except that they end before a stop
  // string. The text of a token that ended the answer (end of sequence, stop_ids) is empty.
  std::string text;
  float logprob = 0;              // only if logprobs were asked for
  std::vector<TokenLogprob> top;  // best first
};

// How far a request is: GenerateRequest::reports_progress.
struct Progress {
  uint32_t total = 0;      // tokens of the prompt
  uint32_t processed = 0;  // of those, with KV
  uint32_t cached = 0;     // of those: not computed
  double prompt_ms = 0;    // from admission until now or, later, to the first token
  double answer_ms = 0;    // from the first token until now
};

enum class FinishReason { kNone, kStop, kLength, kCancelled, kError };
const char* ToString(FinishReason reason);  // "stop", "length", ...

// Progress of a request. Exactly one event of a request has `last` set: the final one. Each choice
// has exactly one event with a finish_reason, at or before the final one.
struct Event {
  uint32_t choice = 0;
  std::vector<GeneratedToken> tokens;
  // Text to append. Stop strings never appear in it: text that may begin one waits.
  std::string text;
  FinishReason finish_reason = FinishReason::kNone;
  std::optional<std::string> stop_match;  // the stop string that ended it, or "deadline"
  // GenerateRequest::beams: of the hypothesis; its length counts all tokens after the first one of
  // the prompt. Absent: the search found fewer, and this choice has no tokens.
  std::optional<float> score;
  std::optional<Error> error;  // with kError
  bool last = false;
  Receipt receipt;                 // complete only when last
  uint32_t completion_tokens = 0;  // of all choices, when last
  // Tokens of the prompt, when last: those that steps computed, once each. At most
  // receipt.computed, which counts those of a prompt that never ran too.
  uint32_t prefilled_tokens = 0;
  std::optional<Progress> progress;
  // GenerateRequest::scores_prompt: the next tokens of the prompt, without text.
  std::vector<GeneratedToken> scored;
};

// What a request may reuse from the cache.
enum class Reuse {
  kAll,
  kBlocks,  // no Cursor: the last prompt token is computed even if all tokens are cached
  kNothing  // all tokens are computed, and none is shared
};

// What only clients of llama.cpp's server ask for.
struct LlamaQuirks {
  // Logprobs are of the distribution that the token was drawn from, after all of SamplingParams;
  // alternatives that cannot be drawn are left out.
  bool sampled_logprobs = false;
  // From the first token on: after it, a choice whose text has a line end finishes with kLength.
  std::optional<uint64_t> line_timeout_ms;
  // After the answer's first line end, a line with fewer spaces and tabs ends the choice (kLength);
  // its text ends with them. 0: no limit.
  uint32_t min_indent = 0;
};

struct CompiledFormat;  // of the engine alone

struct GenerateRequest {
  std::string tenant = "default";  // who is charged
  // The owner of the cache that it uses, if not the tenant: a group of tenants.
  std::optional<std::string> cache_owner;
  // Each text: a separate cache of that owner (KvCache::OpenNamespace). Absent: the owner's main
  // one.
  std::optional<std::string> cache_salt;
  // What an encoder-decoder model reads, and its answers depend on: at least one token, at most the
  // context. `prompt` is then what its decoder begins with: ModelCard::decoder_start, and mostly a
  // language. Empty for all other models.
  std::vector<TokenId> source;
  std::vector<TokenId> prompt;
  // Prompt index where message i ends, ascending; Miss::message_index comes from it, and layers
  // with a window keep what a prompt needs that goes on from there.
  std::vector<uint32_t> message_ends;
  SamplingParams sampling;
  uint32_t max_tokens = std::numeric_limits<uint32_t>::max();  // clipped to the context; may be 0
  int32_t priority = 0;  // among the tenant's requests; lower first
  // From submission. Passed before the first token: kDeadlineExceeded. Passed later: the answer
  // ends with kLength and what it has.
  std::optional<uint64_t> timeout_ms;
  uint32_t n = 1;  // choices: forks that share the prompt's blocks
  // Instead of sampling: the choices are the n best hypotheses, the best first, and all come at the
  // end. Of SamplingParams only repetition_penalty counts, over log probabilities. Tokens of the
  // prompt after the first one have log probability 0. REQUIRES: the model has an encoder; a
  // prompt of 1 or 2 tokens; n <= beams; no stop strings, format or logprobs.
  std::optional<BeamParams> beams;
  uint32_t min_tokens = 0;            // of the answer, before which no end token comes
  uint32_t no_repeat_ngram_size = 0;  // no so many tokens come twice in prompt and answer; 0: any
  std::vector<std::string> stop;
  std::vector<TokenId> stop_ids;
  // What the answers may be. They end with kStop where nothing may follow, and with an error where
  // no token leads on. Where the most likely token is not legal, another one is taken; what a
  // sampled token is chosen by is the model's distribution over the legal ones.
  std::optional<AnswerFormat> format;
  std::shared_ptr<const CompiledFormat> compiled_format;  // Engine::CompileFormats
  bool ignore_eos = false;
  bool echo_special = false;           // the text includes special tokens
  std::vector<TokenId> shown_special;  // else these only
  std::optional<uint32_t> logprobs;    // number of top alternatives, 0..20; absent: none
  // Event::scored has the prompt's tokens but the first, each once, with their logprobs, before or
  // with the first token of the answer. REQUIRES: logprobs, and Reuse::kNothing.
  bool scores_prompt = false;
  // Events of choice 0 have `progress`, from the prompt's first step on.
  bool reports_progress = false;
  LlamaQuirks llama_quirks;
  Reuse reuse = Reuse::kAll;
  bool use_disk = true;                  // false: the disk is neither read nor written for it
  std::optional<uint32_t> chunk_tokens;  // prefill at most this many rows a step; at least 1
  // Work for later, which no client waits for: it runs while no other request waits or runs, and
  // ends with kCancelled as soon as one comes. It has no place in queues, takes nothing from what
  // its tenant may have, and statistics count its tokens alone (EngineStats::prepared_tokens).
  // REQUIRES: max_tokens is 0.
  bool only_when_idle = false;
  // Its prompt was read under another Identity before: a miss without another known reason has
  // kIdentityChanged in the receipt.
  bool identity_changed = false;
  // A miss of reason kDiverged is not counted: the caller finds out more and calls CountMiss.
  bool caller_explains = false;
  // Receives raw logits [vocab] before sampling: one call for each computed row at a position >=
  // logits_from, on the engine's thread. Position p holds the logits after token p. Rows that came
  // from the cache have no logits, except the last row of a prompt that a Cursor answers. Each
  // choice gets each position once; choice 0 gets the prompt's rows.
  std::function<void(uint32_t choice, uint32_t position, std::span<const float>)> on_logits;
  uint32_t logits_from = 0;
  std::vector<std::string> ignored;  // copied into the receipt
  bool clock_in_prompt = false;      // the same
  std::optional<std::string> id;     // what a server calls it, for SequenceState
  // Absent: no trace is kept. Called once, after the last event, as a sink is; must not throw.
  std::function<void(RequestTrace trace)> on_trace;
};

// Called on the engine's thread, like on_logits. A sink must not block or wait for that thread:
// Drain, Erase without a callback, CheckInvariants and the engine's destructor abort when a sink
// calls them, and Generate never returns. A sink may call Submit, Cancel, Stats, Forget and Erase
// with a callback. A sink that has no memory for an event may throw: the engine sends the event
// again soon, joined with what has come since.
using EventSink = std::function<void(const Event&)>;
// A sink of several requests; `index` says which of them the event is about.
using IndexedSink = std::function<void(size_t index, const Event& event)>;
enum class RequestId : uint64_t {};

// What an erasure removed from the cache. Blocks that running requests use can no longer be found;
// they are zeroed when these requests release them.
struct Erasure {
  uint64_t blocks = 0, tokens = 0, cursors = 0;
  uint64_t kept_shared = 0;  // blocks that stayed because ForgetRequest::kept has all their tokens
  // Erased on the disk, where there is one; stores that other processes use keep theirs.
  uint64_t disk_blocks = 0, disk_bytes = 0;
  uint32_t locked_stores = 0;
  std::optional<Error> error = {};  // why the disk may still have some; the next start goes on
};
using ErasureSink = std::function<void(const Erasure&)>;  // called as an EventSink is

// A text in a prompt that the cache is to forget: its tokens [first, last], both included.
struct ForgetRequest {
  std::string owner;                      // GenerateRequest::cache_owner, else its tenant
  std::optional<std::string> cache_salt;  // GenerateRequest::cache_salt
  std::vector<TokenId> ids;               // of the prompt, up to token `last` or longer
  uint32_t first = 0, last = 0;
  // Other prompts of the same owner and salt: a block stays if one of them has all its tokens from
  // the first one on.
  std::vector<std::vector<TokenId>> kept;
};

// What one choice of a request that waits or runs has now.
struct SequenceState {
  std::optional<std::string> id;  // GenerateRequest::id
  std::string tenant;
  uint32_t choice = 0;
  const char* state = "";             // "waiting", "following", "loading", "prefill", ...
  uint32_t tokens = 0, computed = 0;  // known of prompt and answer; those with KV
  uint32_t prompt_tokens = 0;
  uint32_t cached_tokens = 0;              // of the prompt: not computed, as the receipt counts
  uint32_t blocks = 0, shared_blocks = 0;  // pinned; those that others pin too
  int32_t priority = 0;
  uint32_t preemptions = 0;
  uint64_t age_ns = 0;  // since submission
};
using PrefixesSink = std::function<void(PrefixList)>;  // called as an EventSink is

// Called by another thread than the engine's; must not block.
using FlushSink = std::function<void(Result<TierFlushed>)>;
using SequencesSink = std::function<void(std::vector<SequenceState>)>;  // called as an EventSink is

// A snapshot of counters and gauges, with those of the cache; each name's unit is in its comment.
struct EngineStats : CacheCounters {
  uint64_t computed_tokens = 0, generated_tokens = 0;  // tokens; computed: of prompts
  uint64_t requests_finished = 0, requests_cancelled = 0, requests_failed = 0;
  uint64_t requests_past_deadline = 0;  // with and without an answer; not among the other three
  uint64_t running = 0, queued = 0;     // sequences, requests
  uint64_t steps = 0, decode_steps = 0, decode_rows = 0, prefill_rows = 0;
  uint64_t step_ns = 0, cache_ns = 0;  // time in steps; time inside Match, Extend and Commit
  uint64_t weight_read_bytes = 0;      // by products: a matrix once a step, chosen experts only
  uint64_t kv_read_bytes = 0;  // by attention; a prefix that a step's rows share counts once
  uint64_t free_blocks = 0, idle_blocks = 0, pinned_blocks = 0;
  uint64_t cached_tokens = 0, live_tokens = 0, cursors = 0;
  uint64_t preemptions[kNumCountedCauses] = {};  // of requests, by PreemptCause
  uint64_t prepared_tokens = 0;                  // computed for requests with only_when_idle
  // Sources that an encoder read, and tokens of those whose KV was in the cache.
  uint64_t encoder_passes = 0, reused_source_tokens = 0;
  uint64_t hypotheses = 0;  // that are alive: beams of searches that run
  // Receipt::recomputed, not among prompt_tokens: of all causes, and of sequences that outgrew RoPE
  // longrope's short factors.
  uint64_t recomputed_tokens = 0, recomputed_rope_tokens = 0;
  uint64_t ttft_ns_sum = 0, queue_ns_sum = 0;  // over finished requests
  // Over finished requests; token_seconds: over all tokens of answers except the first.
  Histogram ttft_seconds{kFirstTokenBounds}, token_seconds{kTokenTimeBounds};
  Histogram request_seconds{kRequestTimeBounds}, queue_seconds{kRequestTimeBounds};
  Histogram prompt_lengths{kTokenCountBounds}, answer_lengths{kTokenCountBounds};
  RequestStats requests;
  StepCostStats cost;
  std::vector<TenantStats> tenants;  // in the order in which they came; [0]: of those without room
  std::vector<CacheOwnerStats> cache_owners;  // those of the tenants
  double waste = 0;  // (bytes of non-free blocks - bytes of live or cached tokens) / the former
  double worst_waste = 0;  // largest at any step whose pool was at least 90% full
};

struct ModelCard {
  std::string id, architecture, path, dtype;
  uint64_t parameters = 0;
  uint32_t vocab_size = 0, max_positions = 0, ctx_size = 0, num_layers = 0;
  // RoPE longrope: sequences of more tokens are rotated by other factors, and a sequence that grows
  // past it is computed again. Absent: the rotation does not depend on the length.
  std::optional<uint32_t> long_rope_after;
  // The first token of an encoder-decoder model's decoder. Such a model needs a
  // GenerateRequest::source. Absent: the model has no encoder.
  std::optional<TokenId> decoder_start;
  uint32_t source_vocab_size = 0;             // of such a model; others: 0
  std::optional<LanguagePair> language_pair;  // of a model that translates one pair of languages
  std::vector<TokenId> bos, eos;
  FimTokens fim;  // those that the model's files name
  SamplingDefaults sampling;
  // Digest in hex digits of everything that decides a logit, except the KV format: weights in the
  // format that computes, config, tokenizer, numerics version. It does not depend on file names.
  std::string content;
  // Why the model reads no text, and what to do: "tokenizer.model: ...". Absent: it has a
  // tokenizer.
  std::optional<std::string> no_text;
  // The model's chat template, where it is a bare word that names no built-in one: then there is
  // none.
  std::optional<std::string> unknown_template;
  // A sentence for each part of text that the model lacks (tokenizer, chat template): what to do.
  std::vector<std::string> text_notes;
  // The weights are mapped from a model image, so other engines of the model share their memory.
  bool weights_shared = false;
};

// Thread-safe. One engine thread runs all steps; callers only queue and read snapshots.
class Engine {
 public:
  // Reads the model of options.model, packs its weights (or maps their image), allocates all memory
  // of the plan and starts the engine thread. kInvalidArgument: an option out of range, a model
  // that Kvasir does not run, or a pool too small for one sequence; kNotFound, kPermissionDenied,
  // kIoError: a file; kCorruption: damaged content of a file. The message names what is wrong and
  // what would be right. O(bytes of weights), O(1) in bytes where an image lies ready.
  static Result<std::unique_ptr<Engine>> Load(const EngineOptions& options);
  // The memory that Load would take, by the same arithmetic; nothing is allocated. The model may
  // lack its weights: a Hugging Face folder with its config.json alone, that file, or the header of
  // a GGUF file. sequence_tokens: of the sequences that the plan counts; absent: the context.
  // Errors as Load's that concern options, headers and configuration. O(tensors).
  static Result<MemoryPlan> PlanMemory(const EngineOptions& options,
                                       std::optional<uint32_t> sequence_tokens = std::nullopt);
  // Plans the memory with KV in each format, in the order of KvFormat.
  static Result<std::vector<MemoryPlan>> PlanFormats(
      EngineOptions options, std::optional<uint32_t> sequence_tokens = std::nullopt);
  virtual ~Engine() = default;  // cancels what runs, joins

  // Compiles the formats of these requests, which SubmitAll does otherwise: that may take a
  // fraction of a second, so a caller that must answer others does it on a thread that may wait.
  // Errors as SubmitAll's.
  virtual Status CompileFormats(std::span<GenerateRequest>) { return {}; }
  // Queues requests, all of them or none; EngineOptions::schedule says who runs first.
  // kInvalidArgument when one can never fit (the message has the numbers), kExhausted when the
  // queue has no room for all of them or one would start too late, kUnavailable while draining and
  // (Cause::kDeadline) when a request is not expected to end within its timeout_ms. After success
  // `sink` gets the events of each request, up to its last one.
  virtual Result<std::vector<RequestId>> SubmitAll(std::vector<GenerateRequest> requests,
                                                   IndexedSink sink) = 0;
  Result<RequestId> Submit(GenerateRequest request, EventSink sink);  // one request
  // Ends a request and releases its blocks; the sink still gets the last event. Does nothing when
  // the request is done.
  virtual void Cancel(RequestId id) = 0;
  // Refuses new requests and waits for the running ones and for erasures; a second call cancels the
  // requests.
  virtual void Drain() = 0;
  // Erases what is cached for an owner (GenerateRequest::cache_owner), under all salts. Between two
  // steps the engine's thread removes it from the index; from then on no request finds it. Then the
  // thread zeroes the blocks, a part after each step, so that no other request waits long. Blocks
  // in use are zeroed when their requests release them. `done` is called once, when all blocks that
  // are not in use are zeroed. Requests that came before share nothing from then on.
  virtual void Erase(std::string_view owner, ErasureSink done) = 0;
  // Erases, and waits until that is done.
  virtual void Erase(std::string_view owner) = 0;
  // Erases every block whose tokens begin with ids[0, last], other continuations than this one
  // included, with their tails and Cursors. Then, from there back to the block that holds token
  // `first`, each block of `ids` after which nothing is left: a prompt that parts from `ids` before
  // token `last`, cached or being computed, stays, and so do the blocks that it needs. Memory and
  // disk each look at what they have. What comes before token `first` in its block is computed
  // again by the next request, at most block_tokens - 1 tokens. The steps are those of Erase; the
  // disk forgets its blocks before `done` is called, and where it cannot, Erasure::error says why
  // and it is tried again each minute. Requests that came before and have the tokens up to `last`
  // go on, and share nothing from then on. O(tokens of `kept`) on the caller's thread. REQUIRES:
  // request.first <= request.last < request.ids.size().
  virtual void Forget(ForgetRequest request, ErasureSink done) = 0;
  // Calls `done` when all that the cache was given before is on the disk. kUnsupported: there is no
  // disk tier; kUnavailable: it cannot be written.
  virtual void Flush(FlushSink done) = 0;
  // Absent: there is no disk tier.
  virtual std::optional<TierStats> DiskStats() const = 0;
  // The disk tier leaves so many bytes of its cap to sessions, which lie in its folder too.
  virtual void ReserveDisk(uint64_t bytes) = 0;
  // The choices of requests that wait or run: the oldest running request first, then those that
  // wait. Absent: of all tenants.
  virtual void ListSequences(std::optional<std::string> tenant, SequencesSink done) = 0;
  // What the cache holds of an owner (GenerateRequest::cache_owner, else its tenant): at most 512
  // runs and 65,536 tokens, those near the beginning of prompts first.
  virtual void ListPrefixes(std::string owner, PrefixesSink done) = 0;
  // kExhausted while a request of this tenant would be refused, whatever it asks for; retry_ms says
  // when there may be room. Cause::kMaxQueued: because of the tenant's own limit.
  virtual Status CheckRoom(const std::string& tenant) const = 0;
  // Counts a request that the caller refused before submission, in RequestStats::rejected and for
  // its tenant. Absent: none is known.
  virtual void CountRejection(RejectReason reason, const std::optional<std::string>& tenant) = 0;
  // Counts a miss of a request with GenerateRequest::caller_explains. `computed_tokens`: of its
  // receipt.
  virtual void CountMiss(MissReason reason, uint32_t computed_tokens) = 0;
  // Sets the rules of all tenants, at once: those that are not in the table have the default ones.
  // Running requests keep what they have.
  virtual Status SetTenants(const TenantTable& tenants) = 0;
  // kModelChanged, naming the file, after somebody wrote to, truncated or removed a file of the
  // model: then all requests end with this error, and nothing computed since is kept. The answer is
  // at most 100 ms old.
  virtual Status CheckModel() = 0;
  virtual uint64_t GrammarBytes() const = 0;  // in use for formats of answers
  virtual EngineStats Stats() const = 0;
  virtual const MemoryPlan& plan() const = 0;
  virtual const ModelCard& card() const = 0;
  virtual const EngineOptions& options() const = 0;
  virtual const Tokenizer* tokenizer() const = 0;         // nullptr: ids only
  virtual const ChatTemplate* chat_template() const = 0;  // nullptr: none
  virtual const char* target() const = 0;
  // Aborts on a broken invariant of the cache; O(everything). Tests and selftest.
  virtual void CheckInvariants() = 0;
};

// Runs one request to its end and joins its text and tokens. A convenience over Submit.
struct Generation {
  std::vector<TokenId> tokens;
  std::string text;
  FinishReason finish_reason = FinishReason::kNone;
  Receipt receipt;
};
Result<Generation> Generate(Engine& engine, GenerateRequest request);

}  // namespace kvasir
