// DiskTier: opening a store, reading what it has, leaving it.
#include <openssl/crypto.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/fault.h"
#include "base/hex.h"
#include "base/log.h"
#include "base/result.h"
#include "base/system_error.h"
#include "tier/disk_tier.h"
#include "tier/set_aside.h"
#include "tier/unread_files.h"

namespace kvasir {
namespace {

constexpr uint64_t kRetryBrokenNs = 60'000'000'000, kRetryWaitingNs = 1'000'000'000;

}  // namespace

// On success the state is on or waiting. REQUIRES: it is not on.
Status DiskTier::OpenStore() {
  KV_ASSIGN(OpenedFile root, OpenTierFolder(store_.storage, store_.options.folder));
  const IoResult<SpaceFacts> space = store_.storage.Space(root.id());
  if (!space) return FailErrno(space.error(), "cannot inspect {}", store_.options.folder);
  if (store_.options.needs_durable && !space->is_durable) {
    return Fail(Code::kUnsupported,
                "{} lies on a file system that does not promise to keep what is synced; "
                "name the folder by --disk to use it all the same",
                store_.options.folder);
  }
  has_folder_ = true;
  const IoResult<TreeFacts> tree = store_.storage.TreeBytes(root.id(), kSegmentPrefix);
  if (!tree) return FailErrno(tree.error(), "cannot measure {}", store_.options.folder);
  uint64_t cap = store_.options.planned_cap_bytes();
  if (!store_.options.cap_bytes) {
    cap = std::min(cap, (space->free_bytes + tree->whole_bytes + tree->other_bytes) / 10);
  }
  KV_TRY(FinishErases(root.id()));
  KV_ASSIGN(std::optional<StoreFiles> files,
            OpenStoreFiles(store_.storage, std::move(root), store_.id));
  {
    MutexLock lock(store_.mutex);
    store_.state.is_durable = space->is_durable;
    store_.state.cap_bytes = cap;
    store_.state.now = files ? State::kBroken : State::kWaiting;  // broken until it has been read
    store_.state.reason = files ? "the store is being opened" : "another process uses the store";
    retry_ns_ = store_.storage.MonotonicNs() + kRetryWaitingNs;
  }
  if (!files) return {};
  store_.writing_files = std::make_shared<const StoreFiles>(std::move(*files));
  Status scanned;
  if (const IoStatus finished = FinishForget(); finished) {
    scanned = ScanStore();
  } else {
    scanned = FailErrno(finished.error(), "cannot finish a forget in {}", store_.options.folder);
  }
  if (!scanned) {
    LeaveStore(State::kBroken, scanned.error().message);
    return scanned;
  }
  TellUnread();
  RemoveUnusedKeys();
  FitCap();
  KeepRoomToErase(store_.writing_files->root.id());
  NoteRoom();
  {
    MutexLock lock(store_.mutex);
    store_.state.now = State::kOn;
    store_.state.reason.clear();
    store_.state.files = store_.writing_files;
    store_.figures.errors.Clear();
    is_failure_logged_ = false;
    store_.state.must_leave = false;
  }
  ExpireOld();
  (void)ZeroAllCondemned(AbandonedSegments::kLeft);
  return {};
}

// Until it is tried again, in 60 s.
void DiskTier::StayOff(const Error& why) {
  if (!std::exchange(is_failure_logged_, true)) {
    Log(LogLevel::kWarning, "disk tier: off until its folder can be used",
        LogField("reason", why.message));
  }
  MutexLock lock(store_.mutex);
  store_.state.now = State::kBroken;
  store_.state.reason = why.message;
  retry_ns_ = store_.storage.MonotonicNs() + kRetryBrokenNs;
}

// Once: what stays as it is because this secret does not open it.
void DiskTier::TellUnread() {
  if (std::exchange(has_told_unread_, true)) return;
  const auto unread =
      ListUnread(store_.storage, store_.writing_files->root.id(), store_.options.secret);
  const auto segments =
      std::ranges::count_if(unusable_, [](const Unusable& one) { return one.opens_elsewhere; });
  if (!unread || (unread->empty() && segments == 0)) return;
  Log(LogLevel::kWarning,
      "disk tier: what the secret of this state folder does not open stays as it is; the secret "
      "that made it opens it (or a newer Kvasir, if that made it), and 'kvasir fsck "
      "--remove-unreadable' removes it",
      LogField("folder", store_.options.folder), LogField("stores", unread->stores.size()),
      LogField("keys", unread->keys.size()), LogField("names", unread->names.size()),
      LogField("segments", segments), LogField("bytes", unread->bytes));
}

// Builds keys, segments and index from the files.
Status DiskTier::ScanStore() {
  const StoreFiles& files = *store_.writing_files;
  IoResult<std::vector<OwnerKey>> keys =
      LoadKeys(store_.storage, files.keys.id(), store_.options.secret, store_.id);
  if (!keys) return FailErrno(keys.error(), "cannot read the keys of {}", ToHex(store_.id));
  const auto unread = UnreadKeys(store_.storage, files.keys.id(), store_.options.secret, store_.id);
  if (!unread) return FailErrno(unread.error(), "cannot read the keys of {}", ToHex(store_.id));
  const IoResult<bool> has_links = HasLinkedKeys(store_.storage, files.folder.id());
  if (!has_links) return FailErrno(has_links.error(), "cannot list {}", ToHex(store_.id));
  const IoResult<std::string> text =
      ReadSmallFile(store_.storage, files.folder.id(), std::string(kAboutFileName), kMaxAboutBytes);
  const StoreAbout about = text ? ParseAbout(*text) : StoreAbout{};
  {
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
    store_.clock.NotBefore(static_cast<uint32_t>(about.last_hour));
    (void)store_.clock.NowHour();
    // Of two figures of one day, the higher one is right: this one may be from before a crash.
    // One of a later day is a lie, or of a clock that was wrong.
    const bool is_lie = about.written_day > static_cast<uint64_t>(store_.storage.UnixS() / 86400);
    if (!is_lie && about.written_day > store_.figures.written_day)
      store_.figures.stats.written_today_bytes = 0;
    if (!is_lie && about.written_day >= store_.figures.written_day) {
      store_.figures.written_day = about.written_day;
      store_.figures.stats.written_today_bytes =
          std::max(store_.figures.stats.written_today_bytes, about.written_bytes);
    }
    store_.figures.hits = std::max(store_.figures.hits, about.hits);
    store_.figures.kept_bytes_per_s = about.load_bytes_per_s;
  }
  about_written_ = about;
  KV_TRY(AddSegments());
  {
    MutexLock lock(store_.mutex);
    scan_error_.reset();
    scan_next_ = 0;
    scan_end_ = store_.segments.max_segments();
  }
  store_.reader_wake.notify_one();
  ScanSegments(0);
  MutexLock lock(store_.mutex);
  while (scan_helpers_ > 0) lock.Wait(scan_done_);
  scan_end_ = 0;
  if (scan_error_) {
    return FailErrno(*scan_error_, "cannot read the segments of {}", ToHex(store_.id));
  }
  DropOrphans();
  return {};
}

Status DiskTier::AddSegments() {
  const FileId folder = store_.writing_files->folder.id();
  IoResult<std::vector<std::string>> names = store_.storage.List(folder);
  if (!names) return FailErrno(names.error(), "cannot list {}", ToHex(store_.id));
  std::ranges::sort(*names);
  unusable_.clear();
  next_segment_ = 0;
  for (const std::string& name : *names) {
    const std::optional<uint32_t> number = ParseSegmentFileName(name);
    if (!number) continue;
    next_segment_ = std::max(next_segment_, *number == UINT32_MAX ? *number : *number + 1);
    const IoResult<OpenedFile> file =
        Own(store_.storage, store_.storage.OpenFile(folder, name, OpenMode::kRead));
    if (!file && file.error() == EISDIR) continue;
    if (!file && file.error() == ELOOP) {
      unusable_.push_back({name, true});
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
    if (!is_ours || !store_.segments.Add(**head)) unusable_.push_back({name, opens_elsewhere});
  }
  return {};
}

// Takes segments until none is left. Both threads may do so at once.
void DiskTier::ScanSegments(uint32_t thread) noexcept {
  for (;;) {
    uint32_t segment;
    {
      MutexLock lock(store_.mutex);
      while (scan_next_ < scan_end_ && !store_.segments.at(scan_next_).is_open) ++scan_next_;
      if (scan_next_ >= scan_end_) return;
      segment = scan_next_++;
    }
    try {
      ScanSegment(segment, store_.buffers.ScratchOf(thread));
    } catch (...) {
      MutexLock lock(store_.mutex);
      scan_error_ = ENOMEM;
    }
  }
}

void DiskTier::ScanSegment(uint32_t index, std::span<std::byte> scratch) {
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
  const auto failed = [&](int error) {
    MutexLock lock(store_.mutex);
    scan_error_ = error;
  };
  const IoResult<OpenedFile> file = Own(
      store_.storage,
      store_.storage.OpenFile(files->folder.id(), SegmentFileName(place.segment), OpenMode::kRead));
  if (!file) return failed(file.error());
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
    if (!read) return failed(read.error());
    for (uint32_t i = 0; i < count; ++i) {
      uint32_t hour;
      std::memcpy(&hour, hours.data() + 4 * i, sizeof(hour));
      place.slot = first + i;
      ScanHeader({index, first + i}, place, hour, headers.subspan(i * header_bytes, header_bytes),
                 tokens, &owner);
    }
    OPENSSL_cleanse(headers.data(), headers.size());
  }
}

DiskTier::ScannedOwner::~ScannedOwner() {
  OPENSSL_cleanse(static_cast<void*>(&key), sizeof(key));
  if (sealing) OPENSSL_cleanse(static_cast<void*>(&*sealing), sizeof(*sealing));
}

// Takes the lock once, since two threads do this for each record of a store. `expected`: where it
// lies; `owner`: of the record before, or nobody.
void DiskTier::ScanHeader(SlotRef slot, const RecordPlace& expected, uint32_t hour,
                          std::span<const std::byte> header, std::span<std::byte> tokens,
                          ScannedOwner* owner) {
  const auto record = DecodePublic(header.first<kPublicBytes>());
  if (!record) return;
  if (!owner->id || owner->key.namespace_id != record->namespace_id) {
    MutexLock lock(store_.mutex);
    owner->id = store_.keys.FindNamespace(record->namespace_id);
    if (!owner->id) {
      const bool is_free =
          std::ranges::find(free_namespaces_, record->namespace_id) != free_namespaces_.end();
      if (store_.state.has_unread_keys && !is_free) store_.segments.SetUnread(slot);
      return;
    }
    owner->key = store_.keys.KeyOf(*owner->id);
    owner->sealing.emplace(owner->key.key);
  }
  RecordPlace found = record->place;
  if (FaultActive(Fault::kUncheckedGeneration)) found.generation = expected.generation;
  if (FaultActive(Fault::kUncheckedSlot)) found.slot = expected.slot;
  AesKey record_key = RecordKeyOf(*owner->sealing, record->salt);
  const bool opens =
      found == expected && record->identity == store_.options.identity &&
      record->payload_bytes == store_.options.shape.payload_bytes &&
      OpenHeader(record_key, record->placings, store_.options.shape.block_tokens, header, tokens);
  OPENSSL_cleanse(record_key.data(), record_key.size());
  OPENSSL_cleanse(tokens.data(), tokens.size());
  // A record that was written twice: its first writing may have failed. The payload decides.
  const auto place_it = [&](bool payload_opens) {
    MutexLock lock(store_.mutex);
    // Absent: an erase has begun since.
    if (store_.keys.FindNamespace(record->namespace_id) != owner->id) return true;
    store_.segments.set_owner(slot, *owner->id);
    if (!opens) return true;
    const uint32_t used = std::max(record->hour, hour <= store_.clock.latest_hour() ? hour : 0);
    const uint64_t order = uint64_t{std::min(used, store_.clock.latest_hour())} << 32;
    const std::optional<EntryId> known = store_.records.Find(record->name);
    if (known && !payload_opens) return false;
    if (!store_.segments.TakeThis(slot)) return true;
    if (known) {
      store_.segments.FreeSlot(store_.records.at(*known).slot);
      store_.records.Move(*known, slot);
      store_.records.Touch(*known, order);
      store_.segments.SetEntry(slot, *known);
      return true;
    }
    const auto entry = store_.records.Add(record->name, *owner->id, record->after, order);
    if (!entry) {
      store_.segments.FreeSlot(slot);
      return true;
    }
    store_.keys.AddUse(*owner->id);
    store_.records.SetStored(*entry, slot);
    store_.segments.SetEntry(slot, *entry);
    return true;
  };
  if (!place_it(false) && PayloadOpens(slot, *record, owner->key)) (void)place_it(true);
}

bool DiskTier::PayloadOpens(SlotRef slot, const RecordPublic& record, const OwnerKey& key) {
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
  const bool opens = OpenPayload(record_key, payload, record.payload_tag, payload);
  OPENSSL_cleanse(record_key.data(), record_key.size());
  OPENSSL_cleanse(payload.data(), payload.size());
  return opens;
}

// Frees the records that depend, over any number of links, on one that is missing.
void DiskTier::DropOrphans() {
  store_.records.MarkLeaving(
      [](const RecordIndex& records, EntryId entry) { return !records.IsAnchored(entry); });
  for (uint32_t i = 0; i < store_.records.num_entries(); ++i) {
    if (store_.records.IsLeaving(EntryId{i})) store_.DropRecord(EntryId{i});
  }
}

// Key files of owners that have no record: they would become more and more. Not where segments
// could not be read, which may be of another version.
void DiskTier::RemoveUnusedKeys() {
  if (!unusable_.empty()) return;
  for (;;) {
    std::string name;
    {
      MutexLock lock(store_.mutex);
      const std::optional<OwnerId> unused = store_.keys.Unused();
      if (!unused) return;
      name = KeyFileName(store_.options.secret, store_.keys.KeyOf(*unused).owner);
      store_.keys.Release(*unused);
    }
    (void)store_.storage.Unlink(store_.writing_files->keys.id(), name);
  }
}

Status DiskTier::FinishErases(FileId root) {
  const IoResult<std::vector<EraseIntent>> intents =
      ListIntents(store_.storage, root, store_.options.secret);
  if (!intents) return FailErrno(intents.error(), "cannot list {}", store_.options.folder);
  for (const EraseIntent& intent : *intents) {
    const IoResult<bool> locked = IsStoreLocked(store_.storage, root, intent.store);
    if (locked && *locked) continue;  // who began it is still at it
    IoStatus done = locked ? IoStatus() : IoFailed(locked.error());
    IoResult<StoresErased> erased;
    if (done) {
      erased = EraseInStores(store_.storage, root, store_.options.secret, intent.key_file_name, "",
                             EraseScope::kAllStores);
      if (!erased) done = IoFailed(erased.error());
    }
    if (done) {
      done = AppendAudit(
          store_.storage, root,
          AuditLine(intent.key_file_name, store_.storage.UnixS(), *erased, EraseFinish::kLater));
    }
    if (done) done = RemoveIntent(store_.storage, root, intent);
    if (!done) {
      return FailErrno(done.error(), "cannot finish an erase in {}", store_.options.folder);
    }
  }
  return {};
}

// Forgets the store: nothing is found any more, what is under way comes to nothing.
void DiskTier::LeaveStore(State state, std::string reason) {
  {
    MutexLock lock(store_.mutex);
    store_.Leave(state, std::move(reason));
    group_.clear();
    for (EraseJob& job : erases_) job.id.reset();
    retry_ns_ = store_.storage.MonotonicNs() +
                (state == State::kWaiting ? kRetryWaitingNs : kRetryBrokenNs);
  }
  touched_.clear();
  store_.writing_files.reset();
  FindAnswers();  // of all: none can be stored any more
  progress_.Call();
}

void DiskTier::LeaveFailed(std::string reason) {
  Log(LogLevel::kWarning, "disk tier: it is off for 60 s",
      LogField("folder", store_.options.folder), LogField("reason", reason));
  LeaveStore(State::kBroken, std::move(reason));
}

// What lies in a folder that was removed or moved, no later start finds. REQUIRES: the store is
// open.
bool DiskTier::LeaveIfGone() {
  if (store_.storage.IsAt(store_.writing_files->folder.id(),
                          store_.options.folder + "/" + ToHex(store_.id))) {
    return false;
  }
  LeaveFailed("the folder was removed or moved");
  return true;
}

}  // namespace kvasir
