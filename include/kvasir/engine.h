// Engine: model + KvCache + scheduler + threads. Servers and commands are built on it.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvasir/adapters.h"
#include "kvasir/disk.h"
#include "kvasir/engine_event.h"
#include "kvasir/engine_options.h"
#include "kvasir/engine_stats.h"
#include "kvasir/generate_request.h"
#include "kvasir/model_card.h"
#include "kvasir/plan.h"
#include "kvasir/prefix_list.h"
#include "kvasir/receipt.h"
#include "kvasir/status.h"
#include "kvasir/tenant.h"
#include "kvasir/types.h"

namespace kvasir {

class Tokenizer;
class ChatTemplate;

enum class RequestId : uint64_t {};

// What an erasure removed from the cache. Blocks that running requests use can no longer be found;
// they are zeroed when these requests release them.
struct Erasure {
  uint64_t blocks = 0, tokens = 0, cursors = 0;
  uint64_t kept_shared = 0;  // blocks that stayed because ForgetRequest::kept has all their tokens
  // Erased on the disk, where there is one; stores that other processes use keep theirs.
  uint64_t disk_blocks = 0, disk_bytes = 0;
  uint32_t locked_stores = 0;
  std::optional<RemoteErased> remote = {};  // where there is a remote tier
  std::optional<Error> error = {};  // why the disk may still have some; the next start goes on
};
using OwnerDigest = std::array<uint8_t, 32>;
// An owner whose cache another machine of the fleet has erased.
struct ErasedElsewhere {
  OwnerDigest owner{};  // SHA-256 of its name
  uint64_t epoch = 0;   // of the erase
};
using ErasureSink = std::function<void(const Erasure&)>;  // called as an EventSink is

// A text in a prompt that the cache is to forget: its tokens [first, last], both included.
struct ForgetRequest {
  // Token `last` of a text that prompts of others may go on from: no prompt has all of it, so only
  // what ends within the text goes.
  static constexpr TokenId kInNoPrompt{-1};

  std::string owner;                      // GenerateRequest::cache_owner, else its tenant
  std::optional<std::string> cache_salt;  // GenerateRequest::cache_salt
  std::vector<TokenId> ids;  // the prompt's, up to token `last` or longer; `last`: or kInNoPrompt
  uint32_t first = 0, last = 0;
  std::string adapters;  // Receipt::adapter_digest of the prompt; "": it was read without adapters
  // Other prompts of the same owner, salt and adapters: a block stays if one of them has all its
  // tokens from the first one on.
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

// Thread-safe. One engine thread runs all steps; callers only queue and read snapshots.
class Engine {
 public:
  // Reads the model of options.model, packs its weights (or maps their image), allocates all memory
  // of the plan and starts the engine thread. kInvalidArgument: an option out of range, a model
  // that Kvasir does not run, or a pool too small for one sequence; kNotFound, kPermissionDenied,
  // kIoError: a file; kCorruption: damaged content of a file. The message names what is wrong and
  // what would be right. O(bytes of weights), O(1) in bytes where an image lies ready.
  static Result<std::unique_ptr<Engine>> Load(const EngineOptions& options);
  // Returns the memory that Load would take, by the same arithmetic; nothing is allocated. The
  // model may lack its weights: a Hugging Face folder with its config.json alone, that file, or the
  // header of a GGUF file. sequence_tokens: of the sequences that the plan counts; absent: the
  // context. Errors as Load's that concern options, headers (of adapters too) and configuration.
  // O(tensors).
  static Result<MemoryPlan> PlanMemory(const EngineOptions& options,
                                       std::optional<uint32_t> sequence_tokens = std::nullopt);
  // Plans the memory with KV in each format, in the order of KvFormat.
  static Result<std::vector<MemoryPlan>> PlanFormats(
      EngineOptions options, std::optional<uint32_t> sequence_tokens = std::nullopt);
  // Reads the numbers of all adapters of the options, which a plan does not read. Errors as Load's
  // of adapters. O(bytes of adapters).
  static Status CheckAdapterNumbers(const EngineOptions& options);
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
  // Loads an adapter of the model, on the calling thread; steps go on meanwhile. kMayReplace: one
  // of this name goes, and its id is the new one's. What fails changes nothing: kInvalidArgument
  // for a name that is taken and for limits of EngineOptions::adapters, else as Load for a wrong
  // file. kUnsupported: the engine was started without room for adapters.
  enum class AdapterNames { kMustBeNew, kMayReplace };
  virtual Result<AdapterCard> LoadAdapter(const AdapterSource& source, AdapterNames names) = 0;
  // Unloads an adapter; requests that were submitted before keep it. kNotFound: no adapter has this
  // name.
  virtual Status UnloadAdapter(std::string_view name) = 0;
  // Sets AdapterCard::scale: as chosen, 0 for the others. Errors as for GenerateRequest::adapters.
  virtual Status SetAdapterScales(std::span<const AdapterChoice> choices) = 0;
  virtual std::vector<AdapterCard> Adapters() const = 0;  // by id
  // Fills in what a request is computed with: its adapters, where it says nothing, and their digest
  // ("": there are none). From then on SubmitAll takes it with these very numbers, or refuses it
  // (kUnavailable) where they were replaced. kInvalidArgument: as for GenerateRequest::adapters.
  virtual Status ChooseAdapters(GenerateRequest& request) const = 0;
  // Calls `done` when all that the cache was given before is on the disk. kUnsupported: there is no
  // disk tier; kUnavailable: it cannot be written.
  virtual void Flush(FlushSink done) = 0;
  // Absent: there is no disk tier.
  virtual std::optional<TierStats> DiskStats() const = 0;
  // Returns the same of the remote tier.
  virtual std::optional<RemoteStats> RemoteState() const { return std::nullopt; }
  // Absent: no KV events are published.
  virtual std::optional<KvEventsStats> EventStats() const { return std::nullopt; }
  // Returns the epoch of an owner (GenerateRequest::cache_owner, else its tenant) that this machine
  // last read from the store. Absent: it has no remote tier, or has read none yet.
  virtual std::optional<uint64_t> RemoteEpochOf(std::string_view) const { return std::nullopt; }
  // Returns the owners whose cache another machine of the fleet has erased: what else this process
  // keeps of them is the caller's to erase, and EndErasedElsewhere says that it is done. Until then
  // they are returned again, also after a restart. Thread-safe, as is the other.
  virtual std::vector<ErasedElsewhere> ListErasedElsewhere() const { return {}; }
  virtual void EndErasedElsewhere(const ErasedElsewhere&) {}
  // Makes the disk tier leave so many bytes of its cap to sessions, which lie in its folder too.
  virtual void ReserveDisk(uint64_t bytes) = 0;
  // Lists the choices of requests that wait or run: the oldest running request first, then those
  // that wait. Absent: of all tenants.
  virtual void ListSequences(std::optional<std::string> tenant, SequencesSink done) = 0;
  // Lists what the cache holds of an owner (GenerateRequest::cache_owner, else its tenant): at most
  // 512 runs and 65,536 tokens, those near the beginning of prompts first.
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
  // Counts tokens that a prompt repeats after lines that change (EngineStats::volatile_tokens).
  virtual void CountVolatile(uint32_t tokens) = 0;
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
