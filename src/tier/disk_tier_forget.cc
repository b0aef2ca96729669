// DiskTier: forgetting what was computed after a part of a prompt.
//
// Nothing but the headers says what is stored, so a record is forgotten only when no header of it
// is left anywhere: not that of its slot, and no copy in a free slot either, which a start would
// find again. Copies lie where a record was evicted, or where a write failed. So all free slots are
// zeroed that are not known to be zeros.
#include <openssl/crypto.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ranges>
#include <utility>

#include "base/fault.h"
#include "base/hex.h"
#include "base/result.h"
#include "tier/disk_tier.h"
#include "tier/set_aside.h"

namespace kvasir {
namespace {

bool BeginsWith(std::span<const std::byte> tokens, const std::vector<TokenId>& with) {
  const size_t bytes = std::min(tokens.size(), with.size() * sizeof(TokenId));
  return std::memcmp(tokens.data(), with.data(), bytes) == 0;
}

}  // namespace

DiskTier::EraseJob::~EraseJob() {
  if (path) OPENSSL_cleanse(path->tokens.data(), path->tokens.size() * sizeof(TokenId));
}

// Hides the owner here; the writer does the rest, after the group that it writes.
void DiskTier::Forget(ForgetFacts facts, std::function<void(Result<TierErased>)> done) {
  std::list<EraseJob> jobs(1);
  EraseJob& job = jobs.front();
  job.owner = facts.owner;
  job.folder = options_.folder;
  job.path = std::move(facts);
  job.done = std::move(done);
  {
    MutexLock lock(mutex_);
    forgetting_.reserve(forgetting_.size() + 1);  // if this throws, nothing has changed yet
    if (!is_stopping_) {
      if (const auto id = keys_.Find(job.owner)) CancelReadsOf(*id);
      forgetting_.push_back(job.owner);
      erases_.splice(erases_.end(), jobs);
      writer_has_news_ = true;
      writer_wake_.notify_one();
      return;
    }
  }
  job.done(Fail(Code::kUnavailable, "disk tier: it is being closed"));
}

// Intent, slots, end of the intent; each durable before the next.
IoStatus DiskTier::RunForget(EraseJob& job) {
  if (writing_files_ == nullptr) return IoFailed(EBUSY);
  const FileId folder = writing_files_->folder.id();
  if (FaultActive(Fault::kForgottenBeforeSync) && job.done) {
    std::exchange(job.done, nullptr)(job.erased);
  }
  if (const IoStatus noted = NoteLinks(writing_files_->root.id(), &job); !noted) return noted;
  if (const IoStatus removed = RemoveUnusableFiles(&job); !removed) return removed;
  if (HasUnreadKeys()) {
    // What the owner's own damaged key has sealed may be of the forgotten text.
    IoStatus removed = RemoveUnreadKeysOf(storage_, writing_files_->keys.id(), options_.secret,
                                          store_, KeyFileName(options_.secret, job.owner));
    if (removed) removed = CondemnOrphans();
    if (!removed) return removed;
  }
  const std::vector<RecordName> firsts = FirstForgotten(*job.path);
  std::vector<BlockKey> kept = job.path->kept ? job.path->kept() : std::vector<BlockKey>();
  std::ranges::sort(kept);
  ForgetIntent intent;
  {
    MutexLock lock(mutex_);
    CondemnForgotten(*job.path, firsts, kept, &job.erased);
    intent = CondemnedSlots();
  }
  if (!intent.segments.empty()) {
    const IoStatus written = WriteForgetIntent(storage_, folder, options_.secret, store_, intent);
    if (!written) return written;
    const IoStatus zeroed = ZeroAllCondemned(AbandonedSegments::kRemoved);
    if (!zeroed) return zeroed;
  }
  return RemoveForgetIntent(storage_, folder);
}

// The records of the owner that begin with the forgotten tokens, stored or on their way; also those
// of which that cannot be found out.
std::vector<RecordName> DiskTier::FirstForgotten(const ForgetFacts& facts) {
  struct Candidate {
    RecordName name;
    SlotRef slot;
  };
  std::vector<Candidate> candidates;
  std::vector<RecordName> firsts;
  OwnerKey key;
  {
    MutexLock lock(mutex_);
    const std::optional<OwnerId> owner = keys_.Find(facts.owner);
    if (!owner || !facts.has_chains) return {};
    const auto is_below = [&](const RecordIndex::Record& record) KV_REQUIRES(mutex_) {
      const bool is_first = record.after == RecordIndex::kNoEntry;
      if (is_first != facts.is_first) return false;
      // A record of windows comes after the record of the same block.
      return is_first || (memory_.records.entry(record.after).name.key == facts.parent &&
                          record.name.key != facts.parent);
    };
    for (uint32_t i = 0; i < memory_.records.num_entries(); ++i) {
      const RecordIndex::Record& record = memory_.records.entry(i);
      if (record.state != RecordIndex::State::kStored || record.owner != *owner) continue;
      if (is_below(record)) candidates.push_back({record.name, record.slot});
    }
    for (uint32_t i = 0; i < num_buffers_; ++i) {
      const Buffer& one = buffer(i);
      if (!one.is_write() || one.owner != *owner || one.parent != facts.parent) continue;
      const std::span<std::byte> tokens = HeaderOf(i).subspan(kPublicBytes, TokenBytes());
      if (is_below(memory_.records.at(one.entry)) && BeginsWith(tokens, facts.tokens)) {
        firsts.push_back(one.name);
      }
    }
    key = keys_.KeyOf(*owner);
  }
  for (const Candidate& one : candidates) {
    if (Begins(one.slot, one.name, key, facts)) firsts.push_back(one.name);
  }
  OPENSSL_cleanse(static_cast<void*>(&key), sizeof(key));
  if (FaultActive(Fault::kEraseOwnOnly) && firsts.size() > 1) firsts.resize(1);
  return firsts;
}

bool DiskTier::Begins(const SlotRef& slot, const RecordName& name, const OwnerKey& key,
                      const ForgetFacts& facts) {
  SegmentShape shape;
  uint32_t number;
  {
    MutexLock lock(mutex_);
    const SegmentTable::Segment& segment = memory_.segments.at(slot.segment);
    shape = segment.shape;
    number = segment.number;
  }
  const IoResult<OpenedFile> file =
      Own(storage_,
          storage_.OpenFile(writing_files_->folder.id(), SegmentFileName(number), OpenMode::kRead));
  std::vector<std::byte> header(shape.record.header_bytes());
  const bool is_read =
      file && ReadAll(storage_, file->id(), header, shape.header_at(slot.slot)).has_value();
  const auto record = DecodePublic(std::span(header).first<kPublicBytes>());
  if (!is_read || !record || record->name != name) return true;
  std::vector<std::byte> tokens(uint64_t{4} * shape.record.block_tokens);
  AesKey record_key = RecordKeyOf(key.key, record->salt);
  const bool opens =
      OpenHeader(record_key, record->placings, shape.record.block_tokens, header, tokens);
  const bool begins =
      !opens || (record->parent == facts.parent && BeginsWith(tokens, facts.tokens));
  OPENSSL_cleanse(record_key.data(), record_key.size());
  OPENSSL_cleanse(tokens.data(), tokens.size());
  return begins;
}

// Takes what is forgotten out of the index. Its slots, and all free ones that may have a copy, are
// condemned.
void DiskTier::CondemnForgotten(const ForgetFacts& facts, std::span<const RecordName> firsts,
                                std::span<const BlockKey> kept, TierErased* erased) {
  RecordIndex& records = memory_.records;
  std::vector<bool> is_first(records.num_entries());
  for (const RecordName& name : firsts) {
    if (const auto entry = records.Find(name)) is_first[static_cast<size_t>(*entry)] = true;
  }
  const std::optional<OwnerId> owner = keys_.Find(facts.owner);
  records.MarkLeaving([&](const RecordIndex& all, EntryId entry) {
    if (!owner || all.at(entry).owner != *owner) return false;
    if (!facts.has_chains || is_first[static_cast<size_t>(entry)]) return true;
    if (all.at(entry).state == RecordIndex::State::kStored) return !all.IsAnchored(entry);
    const uint32_t after = all.at(entry).after;  // one on its way, too, is a whole chain
    return after != RecordIndex::kNoEntry && all.entry(after).state == RecordIndex::State::kMissing;
  });
  for (uint32_t i = 0; i < records.num_entries(); ++i) {
    const EntryId entry{i};
    if (!records.IsLeaving(entry) || std::ranges::binary_search(kept, records.at(entry).name.key)) {
      continue;
    }
    Condemn(entry, erased);
  }
  if (owner) CondemnPath(facts, kept, erased);
  if (FaultActive(Fault::kKeptCopies)) return;
  for (uint32_t i = 0; i < memory_.segments.max_segments(); ++i) {
    for (uint32_t slot = 0; slot < memory_.segments.at(i).shape.slots; ++slot) {
      const SlotRef ref{i, slot};
      const bool is_free = memory_.segments.state(ref) == SegmentTable::SlotState::kFree;
      if (is_free && !memory_.segments.is_zero(ref)) memory_.segments.Condemn(ref);
    }
  }
}

// From the last block of the path on: a block stays with all its records when a record of another
// block depends on one of them.
void DiskTier::CondemnPath(const ForgetFacts& facts, std::span<const BlockKey> kept,
                           TierErased* erased) {
  const RecordIndex& records = memory_.records;
  for (const BlockKey& key : std::views::reverse(facts.path)) {
    if (std::ranges::binary_search(kept, key)) continue;
    std::vector<EntryId> block;
    for (RecordName name : facts.parts) {
      name.key = key;
      if (const auto entry = records.Find(name)) block.push_back(*entry);
    }
    uint32_t dependents = 0, own = 0;
    for (const EntryId entry : block) {
      const uint32_t after = records.at(entry).after;
      dependents += records.at(entry).dependents;
      own += after != RecordIndex::kNoEntry && records.entry(after).name.key == key;
    }
    if (dependents > own) continue;
    for (const EntryId entry : std::views::reverse(block)) Condemn(entry, erased);
  }
}

void DiskTier::Condemn(EntryId entry, TierErased* erased) {
  if (memory_.records.at(entry).state == RecordIndex::State::kWriting) {
    CancelWrite(entry);
    return;
  }
  const SlotRef slot = memory_.records.at(entry).slot;
  ++erased->blocks;
  erased->bytes += options_.shape.slot_bytes();
  ++stats_.evicted_erase;
  DropRecord(entry);
  memory_.segments.Condemn(slot);
}

// The record is not on the disk, so no slot has it. REQUIRES: no group is being written.
void DiskTier::CancelWrite(EntryId entry) {
  for (uint32_t i = 0; i < num_buffers_; ++i) {
    Buffer& one = buffer(i);
    if (!one.is_write() || one.entry != entry) continue;
    one.Cancel();
    const std::span<std::byte> tokens = HeaderOf(i).subspan(kPublicBytes, TokenBytes());
    OPENSSL_cleanse(tokens.data(), tokens.size());
  }
  DropRecord(entry);
}

ForgetIntent DiskTier::CondemnedSlots() const {
  ForgetIntent intent;
  for (uint32_t i = 0; i < memory_.segments.max_segments(); ++i) {
    const SegmentTable::Segment& segment = memory_.segments.at(i);
    std::vector<bool> slots(segment.shape.slots);
    for (uint32_t slot = 0; slot < segment.shape.slots; ++slot) {
      slots[slot] = memory_.segments.state({i, slot}) == SegmentTable::SlotState::kCondemned;
    }
    if (std::ranges::find(slots, true) == slots.end()) continue;
    intent.segments.push_back({segment.number, segment.generation, std::move(slots)});
  }
  return intent;
}

// Files of segments that are damaged may be read by the next start. Those of another version or
// shape have blocks of others too, which another build reads: they stay, and the answer names them.
IoStatus DiskTier::RemoveUnusableFiles(EraseJob* job) {
  for (const Unusable& one : unusable_) {
    if (one.opens_elsewhere) {
      job->not_reached.push_back(ToHex(store_) + "/" + one.name);
      continue;
    }
    const auto removed = RemoveFile(storage_, writing_files_->folder.id(), one.name);
    if (!removed) return IoFailed(removed.error());
  }
  std::erase_if(unusable_, [](const Unusable& one) { return !one.opens_elsewhere; });
  return {};  // writing the intent and removing it make that durable
}

// Before the store is read. What a forget had condemned cannot have been taken since.
IoStatus DiskTier::FinishForget() {
  const FileId folder = writing_files_->folder.id();
  const auto intent = ReadForgetIntent(storage_, folder, options_.secret, store_);
  if (!intent) return IoFailed(intent.error());
  if (!*intent) {
    // One that does not open, of a newer version or damaged, must not be overwritten.
    if (!storage_.FactsOf(folder, "forget")) return {};
    const auto aside = SetAside(storage_, folder, "forget");
    return aside ? IoStatus() : IoFailed(aside.error());
  }
  for (const ForgetIntent::Segment& listed : (*intent)->segments) {
    const std::string name = SegmentFileName(listed.number);
    const IoResult<OpenedFile> file =
        Own(storage_, storage_.OpenFile(folder, name, OpenMode::kWrite));
    if (!file && (file.error() == ENOENT || IsNoFile(file.error()))) continue;
    if (!file) return IoFailed(file.error());
    const auto head = ReadHead(storage_, file->id(), head_key_, store_, listed.number);
    if (!head) return IoFailed(head.error());
    if (!*head) {  // where its slots lie is not known
      if (const IoStatus removed = storage_.Unlink(folder, name); !removed) return removed;
      continue;
    }
    const SegmentShape& shape = (*head)->shape;
    if ((*head)->generation != listed.generation || shape.slots != listed.slots.size()) continue;
    std::vector<uint32_t> slots;
    for (uint32_t slot = 0; slot < shape.slots; ++slot) {
      if (listed.slots[slot]) slots.push_back(slot);
    }
    const IoStatus zeroed = EraseSlots(storage_, file->id(), shape, slots);
    if (!zeroed) return zeroed;
    if (const IoStatus synced = storage_.SyncData(file->id()); !synced) return synced;
  }
  return RemoveForgetIntent(storage_, folder);
}

}  // namespace kvasir
