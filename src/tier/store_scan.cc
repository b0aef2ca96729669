#include "tier/store_scan.h"

#include <openssl/crypto.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/fault.h"
#include "base/hex.h"
#include "base/result.h"
#include "base/system_error.h"
#include "tier/key_files.h"
#include "tier/set_aside.h"

namespace kvasir {

Status StoreScan::Run() {
  KV_TRY(ReadKeys());
  KV_TRY(AddSegments());
  {
    MutexLock lock(store_.mutex);
    error_.reset();
    next_ = 0;
    end_ = store_.segments.max_segments();
    store_.state.wants_help = true;
  }
  store_.reader_wake.notify_one();
  ScanSegments(0);
  MutexLock lock(store_.mutex);
  while (num_helpers_ > 0) lock.Wait(ended_);
  end_ = 0;
  if (error_) return FailErrno(*error_, "cannot read the segments of {}", ToHex(store_.id));
  DropOrphans();
  return {};
}

bool StoreScan::Help() {
  {
    MutexLock lock(store_.mutex);
    if (store_.is_stopping || !store_.state.wants_help) return false;
    ++num_helpers_;
  }
  ScanSegments(1);
  MutexLock lock(store_.mutex);
  --num_helpers_;
  ended_.notify_all();
  return true;
}

// Reads the keys of the owners.
Status StoreScan::ReadKeys() {
  const StoreFiles& files = *store_.writing_files;
  IoResult<std::vector<OwnerKey>> keys =
      LoadKeys(store_.storage, files.keys.id(), store_.options.secret, store_.id);
  if (!keys) return FailErrno(keys.error(), "cannot read the keys of {}", ToHex(store_.id));
  const auto unread = UnreadKeys(store_.storage, files.keys.id(), store_.options.secret, store_.id);
  if (!unread) return FailErrno(unread.error(), "cannot read the keys of {}", ToHex(store_.id));
  const IoResult<bool> has_links = HasLinkedKeys(store_.storage, files.folder.id());
  if (!has_links) return FailErrno(has_links.error(), "cannot list {}", ToHex(store_.id));
  notes_.ReadAbout();
  MutexLock lock(store_.mutex);
  store_.keys.Clear();
  store_.records.Clear();
  store_.segments.Clear();
  store_.state.has_unread_keys = !unread->empty() || *has_links;
  free_namespaces_.clear();
  for (const OwnerKey& key : *keys) {
    // Without their keys the records of an owner whose erase has not ended are free slots.
    const bool is_new = !store_.leaving.IsErasing(key.owner) && !store_.keys.Find(key.owner);
    const auto added = is_new ? store_.keys.Add(key) : std::nullopt;
    if (added) {
      store_.keys.set_has_file(*added);
    } else {
      free_namespaces_.push_back(key.namespace_id);
    }
  }
  WipeKeys(*keys);
  return {};
}

Status StoreScan::AddSegments() {
  const FileId folder = store_.writing_files->folder.id();
  IoResult<std::vector<std::string>> names = store_.storage.List(folder);
  if (!names) return FailErrno(names.error(), "cannot list {}", ToHex(store_.id));
  std::ranges::sort(*names);
  std::vector<SegmentFiles::Unusable> unusable;
  uint32_t next_number = 0;
  for (const std::string& name : *names) {
    const std::optional<uint32_t> number = ParseSegmentFileName(name);
    if (!number) continue;
    next_number = std::max(next_number, *number == UINT32_MAX ? *number : *number + 1);
    const IoResult<OpenedFile> file =
        Own(store_.storage, store_.storage.OpenFile(folder, name, OpenMode::kRead));
    if (!file && file.error() == EISDIR) continue;
    if (!file && file.error() == ELOOP) {
      unusable.push_back({name, true});
      continue;
    }
    IoResult<std::optional<SegmentHead>> head = std::optional<SegmentHead>();
    if (file)
      head = ReadHead(store_.storage, file->id(), HeadKeyOf(store_.options.secret), store_.id,
                      *number);
    if (!file || !head) {  // it may be a segment
      return FailErrno(file ? head.error() : file.error(), "cannot read {}/{}", ToHex(store_.id),
                       name);
    }
    const bool is_ours = *head && (*head)->shape.record == store_.options.shape;
    const bool opens_elsewhere = *head ? !is_ours : HasOtherVersion(store_.storage, file->id());
    MutexLock lock(store_.mutex);
    if (!is_ours || !store_.segments.Add(**head)) unusable.push_back({name, opens_elsewhere});
  }
  segments_.Begin(next_number, std::move(unusable));
  return {};
}

// Takes segments until none is left. Both threads may do so at once.
void StoreScan::ScanSegments(uint32_t thread) noexcept {
  for (;;) {
    uint32_t segment;
    {
      MutexLock lock(store_.mutex);
      while (next_ < end_ && !store_.segments.at(next_).is_open) ++next_;
      if (next_ >= end_) {
        store_.state.wants_help = false;
        return;
      }
      segment = next_++;
    }
    IoStatus scanned = IoFailed(ENOMEM);
    try {
      scanned = ScanSegment(segment, store_.buffers.ScratchOf(thread));
    } catch (...) {  // it had no memory
    }
    if (scanned) continue;
    MutexLock lock(store_.mutex);
    error_ = scanned.error();
  }
}

IoStatus StoreScan::ScanSegment(uint32_t index, std::span<std::byte> scratch) {
  SegmentShape shape;
  RecordPlace place{.store = store_.id};
  std::shared_ptr<const StoreFiles> files = store_.writing_files;
  {
    MutexLock lock(store_.mutex);
    const SegmentTable::Segment& segment = store_.segments.at(index);
    shape = segment.shape;
    place.segment = segment.number;
    place.generation = segment.generation;
  }
  const IoResult<OpenedFile> file = Own(
      store_.storage,
      store_.storage.OpenFile(files->folder.id(), SegmentFileName(place.segment), OpenMode::kRead));
  if (!file) return IoFailed(file.error());
  ScannedOwner owner;
  const uint64_t header_bytes = shape.record.header_bytes();
  // The scratch holds headers, the tokens of one, and the hours of use of the same slots.
  const uint64_t token_bytes = uint64_t{4} * shape.record.block_tokens;
  const auto per_read = static_cast<uint32_t>((scratch.size() - token_bytes) / (header_bytes + 4));
  for (uint32_t first = 0; first < shape.slots; first += per_read) {
    const uint32_t count = std::min(per_read, shape.slots - first);
    const auto headers = scratch.first(count * header_bytes);
    const auto hours = scratch.subspan(headers.size(), uint64_t{4} * count);
    const auto tokens = scratch.subspan(headers.size() + hours.size(), token_bytes);
    IoStatus read = ReadAll(store_.storage, file->id(), headers, shape.header_at(first));
    if (read) read = ReadAll(store_.storage, file->id(), hours, shape.hour_at(first));
    if (!read) return IoFailed(read.error());
    for (uint32_t i = 0; i < count; ++i) {
      uint32_t hour;
      std::memcpy(&hour, hours.data() + 4 * i, sizeof(hour));
      place.slot = first + i;
      const auto header = headers.subspan(i * header_bytes, header_bytes);
      ScanRecord({{index, first + i}, place, hour, header}, tokens, &owner);
    }
    OPENSSL_cleanse(headers.data(), headers.size());
  }
  return {};
}

StoreScan::ScannedOwner::~ScannedOwner() {
  OPENSSL_cleanse(static_cast<void*>(&key), sizeof(key));
  if (sealing) OPENSSL_cleanse(static_cast<void*>(&*sealing), sizeof(*sealing));
}

// Takes the lock once, since two threads do this for each record of a store. `owner`: that of the
// record before, or none yet.
void StoreScan::ScanRecord(const ScannedSlot& one, std::span<std::byte> tokens,
                           ScannedOwner* owner) {
  const auto record = DecodePublic(one.header.first<kPublicBytes>());
  if (!record || !FindOwner(*record, one.slot, owner)) return;
  RecordPlace found = record->place;
  if (FaultActive(Fault::kUncheckedGeneration)) found.generation = one.place.generation;
  if (FaultActive(Fault::kStaleSlot)) found.slot = one.place.slot;
  AesKey record_key = RecordKeyOf(*owner->sealing, record->salt);
  const RecordShape& shape = store_.options.shape;
  const bool is_unsealed =
      found == one.place && record->identity == store_.options.identity &&
      record->payload_bytes == shape.payload_bytes &&
      UnsealHeader(record_key, record->placings, shape.block_tokens, one.header, tokens);
  OPENSSL_cleanse(record_key.data(), record_key.size());
  OPENSSL_cleanse(tokens.data(), tokens.size());
  // A record that was written twice: its first writing may have failed. The payload decides.
  const bool is_placed = Place(one, *record, *owner->id, is_unsealed, Payload::kUnread);
  if (!is_placed && CanUnsealPayload(one.slot, *record, owner->key)) {
    (void)Place(one, *record, *owner->id, is_unsealed, Payload::kUnsealed);
  }
}

// Finds whose key seals the record. False: no key does.
bool StoreScan::FindOwner(const RecordPublic& record, SlotRef slot, ScannedOwner* owner) {
  if (owner->id && owner->key.namespace_id == record.namespace_id) return true;
  MutexLock lock(store_.mutex);
  owner->id = store_.keys.FindNamespace(record.namespace_id);
  if (!owner->id) {
    const bool is_free =
        std::ranges::find(free_namespaces_, record.namespace_id) != free_namespaces_.end();
    if (store_.state.has_unread_keys && !is_free) store_.segments.SetUnread(slot);
    return false;
  }
  owner->key = store_.keys.KeyOf(*owner->id);
  owner->sealing.emplace(owner->key.key);
  return true;
}

// Puts the record into its slot and the index. False: the index has one of the same name in another
// slot, and only the payload tells which of them is whole.
bool StoreScan::Place(const ScannedSlot& one, const RecordPublic& record, OwnerId owner,
                      bool is_unsealed, Payload payload) {
  MutexLock lock(store_.mutex);
  // Absent: an erase has begun since.
  if (store_.keys.FindNamespace(record.namespace_id) != owner) return true;
  store_.segments.set_owner(one.slot, owner);
  if (!is_unsealed) return true;
  const uint32_t latest = store_.clock.latest_hour();
  const uint32_t used = std::max(record.hour, one.hour <= latest ? one.hour : 0);
  const uint64_t order = uint64_t{std::min(used, latest)} << 32;
  const std::optional<EntryId> known = store_.records.Find(record.name);
  if (known && payload == Payload::kUnread) return false;
  if (!store_.segments.TakeThis(one.slot)) return true;
  if (known) {
    store_.segments.FreeSlot(store_.records.at(*known).slot);
    store_.records.Move(*known, one.slot);
    store_.records.Touch(*known, order);
    store_.segments.SetEntry(one.slot, *known);
    return true;
  }
  const auto entry = store_.records.Add(record.name, owner, record.after, order);
  if (!entry) {
    store_.segments.FreeSlot(one.slot);
    return true;
  }
  store_.keys.AddUse(owner);
  store_.records.SetStored(*entry, one.slot);
  store_.segments.SetEntry(one.slot, *entry);
  return true;
}

bool StoreScan::CanUnsealPayload(SlotRef slot, const RecordPublic& record, const OwnerKey& key) {
  SegmentShape shape;
  {
    MutexLock lock(store_.mutex);
    shape = store_.segments.at(slot.segment).shape;
  }
  const IoResult<OpenedFile> file =
      Own(store_.storage,
          store_.storage.OpenFile(store_.writing_files->folder.id(),
                                  SegmentFileName(record.place.segment), OpenMode::kRead));
  if (!file) return false;
  std::vector<std::byte> payload(shape.record.payload_bytes);
  if (!ReadAll(store_.storage, file->id(), payload, shape.payload_at(slot.slot))) return false;
  AesKey record_key = RecordKeyOf(key.key, record.salt);
  const bool is_unsealed = UnsealPayload(record_key, payload, record.payload_tag, payload);
  OPENSSL_cleanse(record_key.data(), record_key.size());
  OPENSSL_cleanse(payload.data(), payload.size());
  return is_unsealed;
}

// Frees the records that depend, over any number of links, on one that is missing.
void StoreScan::DropOrphans() {
  store_.records.MarkLeaving(
      [](const RecordIndex& records, EntryId entry) { return !records.IsAnchored(entry); });
  for (uint32_t i = 0; i < store_.records.num_entries(); ++i) {
    if (store_.records.IsLeaving(EntryId{i})) store_.DropRecord(EntryId{i});
  }
}

}  // namespace kvasir
