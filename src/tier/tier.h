// Tier: packed blocks by BlockKey, in something slower than the pool: memory, disk, a peer.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "index/block_key.h"
#include "kvasir/disk.h"
#include "kvasir/status.h"
#include "kvasir/types.h"

namespace kvasir {

// Names a record: one block of KV, of the tokens that the BlockKey stands for.
struct RecordName {
  BlockKey key{};
  uint16_t layer_group = 0;  // index of the layout's KvKind
  uint16_t part = 0;         // which of that kind's blocks

  bool operator==(const RecordName&) const = default;
};

// What a record's header says of it, beside its place.
struct RecordFacts {
  RecordName name;
  BlockKey parent{};  // of the block before; of a first block: the namespace's root
  Digest owner{};     // whose key seals it: digest of a tenant's or share group's name
  std::span<const TokenId> tokens{};  // block_tokens of them
  // The record without which this one is of no use: it must be stored before or with this one, and
  // leaves after it. Absent: this one stands alone.
  std::optional<RecordName> after = {};
  // Whether the block was used again after it was computed.
  bool used_again = false;
  // Which of the tier's stores it is sealed for (Tier::num_stores).
  uint8_t store = 0;
};

// Which records Tier::Forget forgets: those of the blocks below `parent` that begin with `tokens`,
// and of all blocks below these; then, from the last one on, those of each block of `path` that no
// record of another block depends on any more.
struct ForgetFacts {
  Digest owner{};
  BlockKey parent{};                // of a block, or, where is_first, of the namespace's root
  bool is_first = false;            // the blocks below `parent` are first ones
  std::vector<TokenId> tokens{};    // 1 to block_tokens
  std::vector<BlockKey> path{};     // of blocks that follow each other; the last one is `parent`
  std::vector<RecordName> parts{};  // the records of a block, without its key
  // The blocks of the text's own paths that are forgotten, as far as `kept` does not name them: a
  // tier that cannot list its records forgets these.
  std::vector<BlockKey> keys{};
  // Whether records name those before them (RecordFacts::after). In a model of windows alone they
  // do not, so that all records of the owner are forgotten.
  bool has_chains = true;
  // Returns the keys of blocks whose records stay. It may take long: the thread that does the
  // forget calls it.
  std::function<std::vector<BlockKey>()> kept{};
};

// A buffer of the tier that holds one sealed record on its way out.
enum class WriteId : uint32_t {};
// A record on its way in; a second call for the same record meanwhile shares it.
enum class ReadId : uint32_t {};

enum class ReadState : uint8_t {
  kReading,
  kArrived,
  kFailed,  // it could not be read, or another reader found it damaged
  kErased,  // its owner's records were erased meanwhile
  kGone,    // the store had let it go
  kDown,    // the store does not answer any more
};
// What a record comes from.
enum class TierKind : uint8_t { kDisk, kRemote };
inline constexpr size_t kNumTierKinds = 2;

// What Tier::Look looks for: records of an owner, in the order in which they are written. Where
// they are a chain, the first one that is missing ends what is of use.
struct LookFor {
  Digest owner{};
  std::vector<RecordName> names;
  bool is_chain = true;
};
enum class ReadEnd : uint8_t {
  kUsed,     // its bytes were used
  kNotUsed,  // another read brought the block, or it is not wanted any more
  kDamaged,  // Unseal refused it: it leaves the tier
};
enum class WriteRefusal : uint8_t {
  kKnown,     // the record is stored or on its way
  kNoBuffer,  // all buffers are in use: ask again later
  kBudget,    // too much was written today
  kOff,       // the tier stores nothing now: broken, waiting, or the record cannot be kept
};

// One thread, the engine's, calls everything that is not marked; no such call waits for I/O, and
// none but ReadyOwner and Look allocates. The tier has its own threads. They never touch the pool
// and see payloads only sealed; where a record will lie is known late, so they seal its header.
//
// A record is *stored* once it would be found after a crash. Has() is true only for stored records.
class Tier {
 public:
  virtual ~Tier() = default;

  virtual bool Has(const RecordName& name) const = 0;  // thread-safe
  // Returns where BeginRead would read it. Thread-safe. REQUIRES: Has(name).
  virtual TierKind KindOf(const RecordName&) const { return TierKind::kDisk; }
  // Returns how many stores a record is sealed for, each apart: RecordFacts::store.
  virtual uint32_t num_stores() const { return 1; }
  // Returns what store that is.
  virtual TierKind KindOfStore(uint32_t) const { return TierKind::kDisk; }
  // Asks a store that is far away which of these records it has; Has knows them from when `done` is
  // called, by a thread of the tier. False, without a call: there is nothing to ask, or no sense in
  // it.
  virtual bool Look(LookFor, std::function<void()>) { return false; }
  // Returns how long Look usually takes, in nanoseconds. Thread-safe.
  virtual uint64_t LookNs() const { return 0; }
  // Returns the speed of reading and unsealing; 0: not known.
  virtual double LoadBytesPerS(TierKind) const { return Stats().load_bytes_per_s; }
  // Marks it as used now. Call it for a prefix from its last block to its first, so that those
  // before are never colder than those after.
  virtual void Touch(const RecordName& name) = 0;

  // Gets the owner's key ready, in memory; its file is written before the first record that needs
  // it is stored. False: no room for another owner, nothing of it can be written. After an erase
  // BeginWrite does it again by itself; until that erase has succeeded it refuses (kOff).
  virtual bool ReadyOwner(const Digest& owner) = 0;

  // Begins to write: BeginWrite takes a buffer, Seal fills it (any thread, each id once), EndWrite
  // hands it over. REQUIRES: ReadyOwner(facts.owner) was true.
  virtual tl::expected<WriteId, WriteRefusal> BeginWrite(const RecordFacts& facts) = 0;
  virtual void Seal(WriteId write, std::span<const std::byte> payload) = 0;
  virtual void EndWrite(WriteId write) = 0;
  // Counts a block that left the pool without being written to this store.
  virtual void CountDropped(WriteRefusal why, uint32_t store) = 0;

  // Begins to read: BeginRead asks for the bytes; absent: no buffer is free now (HasReadRoom
  // tells), or the record is gone. Reads are asked for in order of use; those that lie side by side
  // become one.
  virtual std::optional<ReadId> BeginRead(const RecordName& name) = 0;
  virtual bool HasReadRoom() const = 0;
  virtual ReadState StateOf(ReadId read) const = 0;
  // Unseals (on any thread) an arrived record into `payload`, if its header and payload are what
  // was sealed for exactly these facts (name, parent, owner, tokens) at exactly this place. False:
  // they are not; the payload's bytes have no meaning then. The caller still calls EndRead.
  virtual bool Unseal(ReadId read, const RecordFacts& facts,
                      std::span<std::byte> payload) const = 0;
  // Ends a read. Every BeginRead has one EndRead, whatever the state; kReading too.
  virtual void EndRead(ReadId read, ReadEnd end) = 0;

  // Sets what a thread of the tier calls when reads have arrived or failed, or writes have freed
  // buffers. Set once, before the first call of anything else.
  virtual void set_on_progress(std::function<void()> on_progress) = 0;

  // Calls `done` on a thread of the tier; thread-safe.
  // Answers when all that was handed over before is stored. kUnavailable: it cannot be, or some
  // of it has failed since an answer last told of that.
  virtual void Flush(std::function<void(Result<TierFlushed>)> done) = 0;
  // Answers when no record of the owner can be read any more, whatever happens to the machine. The
  // records are gone from Has when the call returns; writes and reads under way come to nothing.
  virtual void Erase(const Digest& owner, std::function<void(Result<TierErased>)> done) = 0;
  // Erases what this machine alone keeps of an owner, which another machine has erased in the store
  // that they share. The cache has forgotten its blocks.
  virtual void EraseHere(const Digest& owner, std::function<void(Result<TierErased>)> done) {
    Erase(owner, std::move(done));
  }
  // Answers when none of these records can be read any more, whatever happens to the machine. From
  // the call until it has succeeded nothing of the owner is found, read or written; writes and
  // reads under way come to nothing. A record of the owner whose chain to a first block is broken
  // is forgotten too: what came before it is not known. After a failure it is tried again each
  // minute.
  virtual void Forget(ForgetFacts facts, std::function<void(Result<TierErased>)> done) = 0;
  virtual TierStats Stats() const = 0;
};

}  // namespace kvasir
