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
constexpr uint64_t kMinuteNs = 60'000'000'000;

}  // namespace

// On success the state is on or waiting. REQUIRES: it is not on.
Status DiskTier::OpenStore() {
  KV_ASSIGN(OpenedFile root, OpenTierFolder(storage_, options_.folder));
  const IoResult<SpaceFacts> space = storage_.Space(root.id());
  if (!space) return FailErrno(space.error(), "cannot inspect {}", options_.folder);
  if (options_.needs_durable && !space->is_durable) {
    return Fail(Code::kUnsupported,
                "{} lies on a file system that does not promise to keep what is synced; "
                "name the folder by --disk to use it all the same",
                options_.folder);
  }
  has_folder_ = true;
  const IoResult<TreeFacts> tree = storage_.TreeBytes(root.id(), kSegmentPrefix);
  if (!tree) return FailErrno(tree.error(), "cannot measure {}", options_.folder);
  uint64_t cap = index_cap_bytes_;
  if (!options_.cap_bytes) {
    cap = std::min(cap, (space->free_bytes + tree->whole_bytes + tree->other_bytes) / 10);
  }
  KV_TRY(FinishErases(root.id()));
  KV_ASSIGN(std::optional<StoreFiles> files, OpenStoreFiles(storage_, std::move(root), store_));
  {
    MutexLock lock(mutex_);
    is_durable_ = space->is_durable;
    cap_bytes_ = cap;
    // Of the option alone, so that free space does not change the size of segments.
    segment_bytes_ =
        options_.segment_bytes.value_or(SegmentBytesFor(options_.shape, index_cap_bytes_));
    state_ = files ? State::kBroken : State::kWaiting;  // broken until it has been read
    reason_ = files ? "the store is being opened" : "another process uses the store";
    retry_ns_ = storage_.MonotonicNs() + kRetryWaitingNs;
  }
  if (!files) return {};
  writing_files_ = std::make_shared<const StoreFiles>(std::move(*files));
  Status scanned;
  if (const IoStatus finished = FinishForget(); finished) {
    scanned = ScanStore();
  } else {
    scanned = FailErrno(finished.error(), "cannot finish a forget in {}", options_.folder);
  }
  if (!scanned) {
    LeaveStore(State::kBroken, scanned.error().message);
    return scanned;
  }
  TellUnread();
  RemoveUnusedKeys();
  FitCap();
  KeepRoomToErase(writing_files_->root.id());
  NoteRoom();
  {
    MutexLock lock(mutex_);
    state_ = State::kOn;
    reason_.clear();
    files_ = writing_files_;
    ++epoch_;
    error_ns_ = {};
    stall_ns_ = {};
    is_failure_logged_ = false;
    leaves_when_idle_ = false;
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
  MutexLock lock(mutex_);
  state_ = State::kBroken;
  reason_ = why.message;
  retry_ns_ = storage_.MonotonicNs() + kRetryBrokenNs;
}

// Once: what stays as it is because this secret does not open it.
void DiskTier::TellUnread() {
  if (std::exchange(has_told_unread_, true)) return;
  const auto unread = ListUnread(storage_, writing_files_->root.id(), options_.secret);
  const auto segments =
      std::ranges::count_if(unusable_, [](const Unusable& one) { return one.opens_elsewhere; });
  if (!unread || (unread->empty() && segments == 0)) return;
  Log(LogLevel::kWarning,
      "disk tier: what the secret of this state folder does not open stays as it is; the secret "
      "that made it opens it (or a newer Kvasir, if that made it), and 'kvasir fsck "
      "--remove-unreadable' removes it",
      LogField("folder", options_.folder), LogField("stores", unread->stores.size()),
      LogField("keys", unread->keys.size()), LogField("names", unread->names.size()),
      LogField("segments", segments), LogField("bytes", unread->bytes));
}

// Builds keys, segments and index from the files.
Status DiskTier::ScanStore() {
  const StoreFiles& files = *writing_files_;
  IoResult<std::vector<OwnerKey>> keys =
      LoadKeys(storage_, files.keys.id(), options_.secret, store_);
  if (!keys) return FailErrno(keys.error(), "cannot read the keys of {}", ToHex(store_));
  const auto unread = UnreadKeys(storage_, files.keys.id(), options_.secret, store_);
  if (!unread) return FailErrno(unread.error(), "cannot read the keys of {}", ToHex(store_));
  const IoResult<bool> has_links = HasLinkedKeys(storage_, files.folder.id());
  if (!has_links) return FailErrno(has_links.error(), "cannot list {}", ToHex(store_));
  const IoResult<std::string> text =
      ReadSmallFile(storage_, files.folder.id(), std::string(kAboutFileName), kMaxAboutBytes);
  const StoreAbout about = text ? ParseAbout(*text) : StoreAbout{};
  {
    MutexLock lock(mutex_);
    keys_.Clear();
    memory_.records.Clear();
    memory_.segments.Clear();
    has_unread_keys_ = !unread->empty() || *has_links;
    free_namespaces_.clear();
    for (const OwnerKey& key : *keys) {
      // Without their keys the records of an owner whose erase has not ended are free slots.
      const bool is_new = !IsErasing(key.owner) && !keys_.Find(key.owner);
      const auto added = is_new ? keys_.Add(key) : std::nullopt;
      if (added) {
        keys_.set_has_file(*added);
      } else {
        free_namespaces_.push_back(key.namespace_id);
      }
    }
    WipeKeys(*keys);
    latest_hour_ = std::max(latest_hour_, static_cast<uint32_t>(about.last_hour));
    (void)NowHour();
    // Of two figures of one day, the higher one is right: this one may be from before a crash.
    // One of a later day is a lie, or of a clock that was wrong.
    const bool is_lie = about.written_day > static_cast<uint64_t>(storage_.UnixS() / 86400);
    if (!is_lie && about.written_day > written_day_) stats_.written_today_bytes = 0;
    if (!is_lie && about.written_day >= written_day_) {
      written_day_ = about.written_day;
      stats_.written_today_bytes = std::max(stats_.written_today_bytes, about.written_bytes);
    }
    hits_ = std::max(hits_, about.hits);
    kept_bytes_per_s_ = about.load_bytes_per_s;
  }
  about_written_ = about;
  KV_TRY(AddSegments());
  {
    MutexLock lock(mutex_);
    scan_error_.reset();
    scan_next_ = 0;
    scan_end_ = memory_.segments.max_segments();
  }
  reader_wake_.notify_one();
  ScanSegments(0);
  MutexLock lock(mutex_);
  while (scan_helpers_ > 0) lock.Wait(scan_done_);
  scan_end_ = 0;
  if (scan_error_) {
    return FailErrno(*scan_error_, "cannot read the segments of {}", ToHex(store_));
  }
  DropOrphans();
  return {};
}

Status DiskTier::AddSegments() {
  const FileId folder = writing_files_->folder.id();
  IoResult<std::vector<std::string>> names = storage_.List(folder);
  if (!names) return FailErrno(names.error(), "cannot list {}", ToHex(store_));
  std::ranges::sort(*names);
  unusable_.clear();
  next_segment_ = 0;
  for (const std::string& name : *names) {
    const std::optional<uint32_t> number = ParseSegmentFileName(name);
    if (!number) continue;
    next_segment_ = std::max(next_segment_, *number == UINT32_MAX ? *number : *number + 1);
    const IoResult<OpenedFile> file =
        Own(storage_, storage_.OpenFile(folder, name, OpenMode::kRead));
    if (!file && file.error() == EISDIR) continue;
    if (!file && file.error() == ELOOP) {
      unusable_.push_back({name, true});
      continue;
    }
    IoResult<std::optional<SegmentHead>> head = std::optional<SegmentHead>();
    if (file) head = ReadHead(storage_, file->id(), head_key_, store_, *number);
    if (!file || !head) {  // it may be a segment
      return FailErrno(file ? head.error() : file.error(), "cannot read {}/{}", ToHex(store_),
                       name);
    }
    const bool is_ours = *head && (*head)->shape.record == options_.shape;
    const bool opens_elsewhere = *head ? !is_ours : HasOtherVersion(storage_, file->id());
    MutexLock lock(mutex_);
    if (!is_ours || !memory_.segments.Add(**head)) unusable_.push_back({name, opens_elsewhere});
  }
  return {};
}

// Takes segments until none is left. Both threads may do so at once.
void DiskTier::ScanSegments(uint32_t thread) noexcept {
  for (;;) {
    uint32_t segment;
    {
      MutexLock lock(mutex_);
      while (scan_next_ < scan_end_ && !memory_.segments.at(scan_next_).is_open) ++scan_next_;
      if (scan_next_ >= scan_end_) return;
      segment = scan_next_++;
    }
    try {
      ScanSegment(segment, ScratchOf(thread));
    } catch (...) {
      MutexLock lock(mutex_);
      scan_error_ = ENOMEM;
    }
  }
}

void DiskTier::ScanSegment(uint32_t index, std::span<std::byte> scratch) {
  SegmentShape shape;
  RecordPlace place{.store = store_};
  std::shared_ptr<const StoreFiles> files = writing_files_;
  {
    MutexLock lock(mutex_);
    const SegmentTable::Segment& segment = memory_.segments.at(index);
    shape = segment.shape;
    place.segment = segment.number;
    place.generation = segment.generation;
  }
  const auto failed = [&](int error) {
    MutexLock lock(mutex_);
    scan_error_ = error;
  };
  const IoResult<OpenedFile> file =
      Own(storage_,
          storage_.OpenFile(files->folder.id(), SegmentFileName(place.segment), OpenMode::kRead));
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
    IoStatus read = ReadAll(storage_, file->id(), headers, shape.header_at(first));
    if (read) read = ReadAll(storage_, file->id(), hours, shape.hour_at(first));
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
    MutexLock lock(mutex_);
    owner->id = keys_.FindNamespace(record->namespace_id);
    if (!owner->id) {
      const bool is_free =
          std::ranges::find(free_namespaces_, record->namespace_id) != free_namespaces_.end();
      if (has_unread_keys_ && !is_free) memory_.segments.SetUnread(slot);
      return;
    }
    owner->key = keys_.KeyOf(*owner->id);
    owner->sealing.emplace(owner->key.key);
  }
  RecordPlace found = record->place;
  if (FaultActive(Fault::kUncheckedGeneration)) found.generation = expected.generation;
  if (FaultActive(Fault::kUncheckedSlot)) found.slot = expected.slot;
  AesKey record_key = RecordKeyOf(*owner->sealing, record->salt);
  const bool opens =
      found == expected && record->identity == options_.identity &&
      record->payload_bytes == options_.shape.payload_bytes &&
      OpenHeader(record_key, record->placings, options_.shape.block_tokens, header, tokens);
  OPENSSL_cleanse(record_key.data(), record_key.size());
  OPENSSL_cleanse(tokens.data(), tokens.size());
  // A record that was written twice: its first writing may have failed. The payload decides.
  const auto place_it = [&](bool payload_opens) {
    MutexLock lock(mutex_);
    // Absent: an erase has begun since.
    if (keys_.FindNamespace(record->namespace_id) != owner->id) return true;
    memory_.segments.set_owner(slot, *owner->id);
    if (!opens) return true;
    const uint32_t used = std::max(record->hour, hour <= latest_hour_ ? hour : 0);
    const uint64_t order = uint64_t{std::min(used, latest_hour_)} << 32;
    const std::optional<EntryId> known = memory_.records.Find(record->name);
    if (known && !payload_opens) return false;
    if (!memory_.segments.TakeThis(slot)) return true;
    if (known) {
      memory_.segments.FreeSlot(memory_.records.at(*known).slot);
      memory_.records.Move(*known, slot);
      memory_.records.Touch(*known, order);
      memory_.segments.SetEntry(slot, *known);
      return true;
    }
    const auto entry = memory_.records.Add(record->name, *owner->id, record->after, order);
    if (!entry) {
      memory_.segments.FreeSlot(slot);
      return true;
    }
    keys_.AddUse(*owner->id);
    memory_.records.SetStored(*entry, slot);
    memory_.segments.SetEntry(slot, *entry);
    return true;
  };
  if (!place_it(false) && PayloadOpens(slot, *record, owner->key)) (void)place_it(true);
}

bool DiskTier::PayloadOpens(SlotRef slot, const RecordPublic& record, const OwnerKey& key) {
  SegmentShape shape;
  {
    MutexLock lock(mutex_);
    shape = memory_.segments.at(slot.segment).shape;
  }
  const IoResult<OpenedFile> file =
      Own(storage_, storage_.OpenFile(writing_files_->folder.id(),
                                      SegmentFileName(record.place.segment), OpenMode::kRead));
  if (!file) return false;
  std::vector<std::byte> payload(shape.record.payload_bytes);
  if (!ReadAll(storage_, file->id(), payload, shape.payload_at(slot.slot))) return false;
  AesKey record_key = RecordKeyOf(key.key, record.salt);
  const bool opens = OpenPayload(record_key, payload, record.payload_tag, payload);
  OPENSSL_cleanse(record_key.data(), record_key.size());
  OPENSSL_cleanse(payload.data(), payload.size());
  return opens;
}

// Frees the records that depend, over any number of links, on one that is missing.
void DiskTier::DropOrphans() {
  memory_.records.MarkLeaving(
      [](const RecordIndex& records, EntryId entry) { return !records.IsAnchored(entry); });
  for (uint32_t i = 0; i < memory_.records.num_entries(); ++i) {
    if (memory_.records.IsLeaving(EntryId{i})) DropRecord(EntryId{i});
  }
}

// Key files of owners that have no record: they would become more and more. Not where segments
// could not be read, which may be of another version.
void DiskTier::RemoveUnusedKeys() {
  if (!unusable_.empty()) return;
  for (;;) {
    std::string name;
    {
      MutexLock lock(mutex_);
      const std::optional<OwnerId> unused = keys_.Unused();
      if (!unused) return;
      name = KeyFileName(options_.secret, keys_.KeyOf(*unused).owner);
      keys_.Release(*unused);
    }
    (void)storage_.Unlink(writing_files_->keys.id(), name);
  }
}

Status DiskTier::FinishErases(FileId root) {
  const IoResult<std::vector<EraseIntent>> intents = ListIntents(storage_, root, options_.secret);
  if (!intents) return FailErrno(intents.error(), "cannot list {}", options_.folder);
  for (const EraseIntent& intent : *intents) {
    const IoResult<bool> locked = IsStoreLocked(storage_, root, intent.store);
    if (locked && *locked) continue;  // who began it is still at it
    IoStatus done = locked ? IoStatus() : IoFailed(locked.error());
    IoResult<StoresErased> erased;
    if (done) {
      erased = EraseInStores(storage_, root, options_.secret, intent.key_file_name, "",
                             EraseScope::kAllStores);
      if (!erased) done = IoFailed(erased.error());
    }
    if (done) {
      done = AppendAudit(
          storage_, root,
          AuditLine(intent.key_file_name, storage_.UnixS(), *erased, EraseFinish::kLater));
    }
    if (done) done = RemoveIntent(storage_, root, intent);
    if (!done) {
      return FailErrno(done.error(), "cannot finish an erase in {}", options_.folder);
    }
  }
  return {};
}

// Forgets the store: nothing is found any more, what is under way comes to nothing.
void DiskTier::LeaveStore(State state, std::string reason) {
  {
    MutexLock lock(mutex_);
    state_ = state;
    reason_ = std::move(reason);
    ++epoch_;
    memory_.write_queue.Clear();
    memory_.read_queue.Clear();
    queued_bytes_ = 0;
    for (uint32_t i = 0; i < num_buffers_; ++i) {
      using Use = Buffer::Use;
      Buffer& one = buffer(i);
      if (one.use == Use::kFree) continue;
      one.is_cancelled = true;
      one.has_entry = one.has_owner = one.has_slot = false;
      if (one.use == Use::kQueued || one.use == Use::kWriting) {
        ++stats_.dropped_failed;
        FreeBufferOf(i);
      } else if (one.use == Use::kSealing) {
        ++stats_.dropped_failed;
      } else if (one.use == Use::kReading && one.run_ns == 0) {
        one.use = Use::kFailed;
        if (one.refs == 0) FreeBufferOf(i);
      }
    }
    group_.clear();
    memory_.records.Clear();
    memory_.segments.Clear();
    keys_.Clear();
    for (EraseJob& job : erases_) job.id.reset();
    files_.reset();
    retry_ns_ =
        storage_.MonotonicNs() + (state == State::kWaiting ? kRetryWaitingNs : kRetryBrokenNs);
  }
  touched_.clear();
  writing_files_.reset();
  FindAnswers();  // of all: none can be stored any more
  CallProgress();
}

void DiskTier::LeaveFailed(std::string reason) {
  Log(LogLevel::kWarning, "disk tier: it is off for 60 s", LogField("folder", options_.folder),
      LogField("reason", reason));
  LeaveStore(State::kBroken, std::move(reason));
}

// What lies in a folder that was removed or moved, no later start finds. REQUIRES: the store is
// open.
bool DiskTier::LeaveIfGone() {
  if (storage_.IsAt(writing_files_->folder.id(), options_.folder + "/" + ToHex(store_))) {
    return false;
  }
  LeaveFailed("the folder was removed or moved");
  return true;
}

// ", last error: No such file or directory"; empty before the first.
std::string DiskTier::LastErrorText() const {
  return last_error_ == 0 ? "" : fmt::format(", last error: {}", std::strerror(last_error_));
}

// After eight in a minute the store is left, by the writer, when it has finished what it does.
// `error`: the errno.
void DiskTier::CountError(uint64_t TierStats::*counter, int error) {
  const uint64_t now_ns = storage_.MonotonicNs();
  MutexLock lock(mutex_);
  ++(stats_.*counter);
  last_error_ = error;
  const bool is_stall = counter == &TierStats::fault_stalled;
  uint64_t& oldest = is_stall ? stall_ns_[num_stalls_++ % stall_ns_.size()]
                              : error_ns_[num_errors_++ % error_ns_.size()];
  oldest = now_ns + 1;  // 0: none yet
  const auto all_recent = [&](const auto& times) {
    return std::ranges::all_of(times,
                               [&](uint64_t at) { return at > 0 && now_ns < at + kMinuteNs; });
  };
  if (all_recent(error_ns_) || all_recent(stall_ns_)) leaves_when_idle_ = true;
}

}  // namespace kvasir
