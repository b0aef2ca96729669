#include "tier/path_forgetter.h"

#include <openssl/crypto.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ranges>
#include <utility>

#include "base/fault.h"
#include "base/hex.h"
#include "tier/erase_files.h"
#include "tier/key_files.h"
#include "tier/set_aside.h"

namespace kvasir {
namespace {

bool BeginsWith(std::span<const std::byte> tokens, const std::vector<TokenId>& with) {
  const size_t bytes = std::min(tokens.size(), with.size() * sizeof(TokenId));
  return std::memcmp(tokens.data(), with.data(), bytes) == 0;
}

}  // namespace

IoStatus PathForgetter::Run(EraseJob& job) {
  if (store_.writing_files == nullptr) return IoFailed(EBUSY);
  const FileId folder = store_.writing_files->folder.id();
  if (FaultActive(Fault::kForgottenBeforeSync) && job.done) {
    std::exchange(job.done, nullptr)(job.erased);
  }
  if (const IoStatus noted = NoteLinks(store_, store_.writing_files->root.id(), &job); !noted) {
    return noted;
  }
  if (const IoStatus removed = RemoveUnreadable(job); !removed) return removed;
  const std::vector<RecordName> firsts = FirstForgotten(*job.path);
  std::vector<BlockKey> kept = job.path->kept ? job.path->kept() : std::vector<BlockKey>();
  std::ranges::sort(kept);
  ForgetIntent intent;
  {
    MutexLock lock(store_.mutex);
    CondemnForgotten(*job.path, firsts, kept, &job.erased);
    intent = CondemnedNow();
  }
  if (!intent.segments.empty()) {
    const IoStatus written =
        WriteForgetIntent(store_.storage, folder, store_.options.secret, store_.id, intent);
    if (!written) return written;
    const IoStatus zeroed = condemned_.ZeroAll(AbandonedSegments::kRemoved);
    if (!zeroed) return zeroed;
  }
  return RemoveForgetIntent(store_.storage, folder);
}

// Removes files that the next start might read, and what the owner's own damaged key has sealed: it
// may be of the forgotten text. The intent makes that durable.
IoStatus PathForgetter::RemoveUnreadable(EraseJob& job) {
  for (const SegmentFiles::Unusable& one : segments_.unusable()) {
    if (one.opens_elsewhere) job.not_reached.push_back(ToHex(store_.id) + "/" + one.name);
  }
  if (const IoStatus removed = segments_.RemoveDamaged(); !removed) return removed;
  if (!condemned_.HasUnreadKeys()) return {};
  const IoStatus removed =
      RemoveUnreadKeysOf(store_.storage, store_.writing_files->keys.id(), store_.options.secret,
                         store_.id, KeyFileName(store_.options.secret, job.owner));
  return removed ? condemned_.CondemnOrphans() : removed;
}

// Returns the records of the owner that begin with the forgotten tokens, stored or on their way;
// also those of which that cannot be found out.
std::vector<RecordName> PathForgetter::FirstForgotten(const ForgetFacts& facts) {
  struct Candidate {
    RecordName name;
    SlotRef slot;
  };
  std::vector<Candidate> candidates;
  std::vector<RecordName> firsts;
  OwnerKey key;
  {
    MutexLock lock(store_.mutex);
    const std::optional<OwnerId> owner = store_.keys.Find(facts.owner);
    if (!owner || !facts.has_chains) return {};
    const auto is_below = [&](const RecordIndex::Record& record) KV_REQUIRES(store_.mutex) {
      const bool is_first = record.after == RecordIndex::kNoEntry;
      if (is_first != facts.is_first) return false;
      // A record of windows comes after the record of the same block.
      return is_first || (store_.records.entry(record.after).name.key == facts.parent &&
                          record.name.key != facts.parent);
    };
    for (uint32_t i = 0; i < store_.records.num_entries(); ++i) {
      const RecordIndex::Record& record = store_.records.entry(i);
      if (record.state != RecordIndex::State::kStored || record.owner != *owner) continue;
      if (is_below(record)) candidates.push_back({record.name, record.slot});
    }
    for (uint32_t i = 0; i < store_.buffers.size(); ++i) {
      const RecordBuffer& one = store_.buffers.at(i);
      if (!one.is_write() || one.owner != *owner || one.parent != facts.parent) continue;
      const std::span<std::byte> tokens = store_.buffers.TokensOf(i);
      if (is_below(store_.records.at(*one.entry)) && BeginsWith(tokens, facts.tokens)) {
        firsts.push_back(one.name);
      }
    }
    key = store_.keys.KeyOf(*owner);
  }
  for (const Candidate& one : candidates) {
    if (Begins(one.slot, one.name, key, facts)) firsts.push_back(one.name);
  }
  OPENSSL_cleanse(static_cast<void*>(&key), sizeof(key));
  if (FaultActive(Fault::kEraseOwnOnly) && firsts.size() > 1) firsts.resize(1);
  return firsts;
}

bool PathForgetter::Begins(const SlotRef& slot, const RecordName& name, const OwnerKey& key,
                           const ForgetFacts& facts) {
  SegmentShape shape;
  uint32_t number;
  {
    MutexLock lock(store_.mutex);
    const SegmentTable::Segment& segment = store_.segments.at(slot.segment);
    shape = segment.shape;
    number = segment.number;
  }
  const IoResult<OpenedFile> file =
      Own(store_.storage, store_.storage.OpenFile(store_.writing_files->folder.id(),
                                                  SegmentFileName(number), OpenMode::kRead));
  std::vector<std::byte> header(shape.record.header_bytes());
  const bool is_read =
      file && ReadAll(store_.storage, file->id(), header, shape.header_at(slot.slot)).has_value();
  const auto record = DecodePublic(std::span(header).first<kPublicBytes>());
  if (!is_read || !record || record->name != name) return true;
  std::vector<std::byte> tokens(uint64_t{4} * shape.record.block_tokens);
  AesKey record_key = RecordKeyOf(key.key, record->salt);
  const bool is_unsealed =
      UnsealHeader(record_key, record->placings, shape.record.block_tokens, header, tokens);
  const bool begins =
      !is_unsealed || (record->parent == facts.parent && BeginsWith(tokens, facts.tokens));
  OPENSSL_cleanse(record_key.data(), record_key.size());
  OPENSSL_cleanse(tokens.data(), tokens.size());
  return begins;
}

// Takes what is forgotten out of the index. Its slots, and all free ones that may have a copy, are
// condemned.
void PathForgetter::CondemnForgotten(const ForgetFacts& facts, std::span<const RecordName> firsts,
                                     std::span<const BlockKey> kept, TierErased* erased) {
  RecordIndex& records = store_.records;
  std::vector<bool> is_first(records.num_entries());
  for (const RecordName& name : firsts) {
    if (const auto entry = records.Find(name)) is_first[static_cast<size_t>(*entry)] = true;
  }
  const std::optional<OwnerId> owner = store_.keys.Find(facts.owner);
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
  if (!FaultActive(Fault::kKeptCopies)) CondemnCopies();
}

// Condemns all free slots that may hold a copy of a record.
void PathForgetter::CondemnCopies() {
  for (uint32_t i = 0; i < store_.segments.max_segments(); ++i) {
    for (uint32_t slot = 0; slot < store_.segments.at(i).shape.slots; ++slot) {
      const SlotRef ref{i, slot};
      const bool is_free = store_.segments.state(ref) == SegmentTable::SlotState::kFree;
      if (is_free && !store_.segments.is_zero(ref)) store_.segments.Condemn(ref);
    }
  }
}

// Condemns blocks of the path, from the last one on: a block stays with all its records when a
// record of another block depends on one of them.
void PathForgetter::CondemnPath(const ForgetFacts& facts, std::span<const BlockKey> kept,
                                TierErased* erased) {
  RecordIndex& records = store_.records;
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

void PathForgetter::Condemn(EntryId entry, TierErased* erased) {
  if (store_.records.at(entry).state == RecordIndex::State::kWriting) {
    store_.CancelWrite(entry);
    return;
  }
  const SlotRef slot = store_.records.at(entry).slot;
  ++erased->blocks;
  erased->bytes += store_.options.shape.slot_bytes();
  ++store_.figures.stats.evicted_erase;
  store_.DropRecord(entry);
  store_.segments.Condemn(slot);
}

ForgetIntent PathForgetter::CondemnedNow() const {
  ForgetIntent intent;
  for (uint32_t i = 0; i < store_.segments.max_segments(); ++i) {
    const SegmentTable::Segment& segment = store_.segments.at(i);
    std::vector<bool> slots(segment.shape.slots);
    for (uint32_t slot = 0; slot < segment.shape.slots; ++slot) {
      slots[slot] = store_.segments.state({i, slot}) == SegmentTable::SlotState::kCondemned;
    }
    if (std::ranges::find(slots, true) == slots.end()) continue;
    intent.segments.push_back({segment.number, segment.generation, std::move(slots)});
  }
  return intent;
}

IoStatus PathForgetter::Finish() {
  const FileId folder = store_.writing_files->folder.id();
  const auto intent = ReadForgetIntent(store_.storage, folder, store_.options.secret, store_.id);
  if (!intent) return IoFailed(intent.error());
  if (!*intent) {
    // One that cannot be unsealed, of a newer version or damaged, must not be overwritten.
    if (!store_.storage.FactsOf(folder, "forget")) return {};
    const auto aside = SetAside(store_.storage, folder, "forget");
    return aside ? IoStatus() : IoFailed(aside.error());
  }
  for (const ForgetIntent::Segment& listed : (*intent)->segments) {
    if (const IoStatus finished = FinishSegment(listed); !finished) return finished;
  }
  return RemoveForgetIntent(store_.storage, folder);
}

// Zeros the slots of an intent in one segment.
IoStatus PathForgetter::FinishSegment(const ForgetIntent::Segment& listed) {
  const FileId folder = store_.writing_files->folder.id();
  const std::string name = SegmentFileName(listed.number);
  const IoResult<OpenedFile> file =
      Own(store_.storage, store_.storage.OpenFile(folder, name, OpenMode::kWrite));
  if (!file && (file.error() == ENOENT || IsNoFile(file.error()))) return {};
  if (!file) return IoFailed(file.error());
  const auto head = ReadHead(store_.storage, file->id(), HeadKeyOf(store_.options.secret),
                             store_.id, listed.number);
  if (!head) return IoFailed(head.error());
  if (!*head) return store_.storage.Unlink(folder, name);  // where its slots lie is not known
  const SegmentShape& shape = (*head)->shape;
  if ((*head)->generation != listed.generation || shape.slots != listed.slots.size()) return {};
  std::vector<uint32_t> slots;
  for (uint32_t slot = 0; slot < shape.slots; ++slot) {
    if (listed.slots[slot]) slots.push_back(slot);
  }
  const IoStatus zeroed = EraseSlots(store_.storage, file->id(), shape, slots);
  return zeroed ? store_.storage.SyncData(file->id()) : zeroed;
}

}  // namespace kvasir
