#include "tier/store_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>

#include "base/result.h"
#include "base/system_error.h"
#include "tier/key_files.h"
#include "tier/owner_keys.h"
#include "tier/segment.h"
#include "tier/store_about.h"
#include "tier/store_files.h"

namespace kvasir {
namespace {

tl::unexpected<Error> Failed(int error, const std::string& what) {
  return FailErrno(error, "cannot read {}", what);
}

// The open folder of each store.
struct OpenStore {
  std::string name;
  OpenedFile folder;
};
struct OpenStores {
  OpenedFile root;
  std::vector<OpenStore> stores;
};

Result<OpenStores> OpenAll(Storage& storage, const std::string& path) {
  OpenStores all;
  auto root = Own(storage, storage.OpenRoot(path));
  if (!root) return Failed(root.error(), path);
  all.root = std::move(*root);
  auto names = storage.List(all.root.id());
  if (!names) return Failed(names.error(), path);
  std::ranges::sort(*names);
  for (const std::string& name : *names) {
    if (!ParseStoreName(name)) continue;
    auto folder = Own(storage, storage.OpenFolder(all.root.id(), name));
    if (folder) all.stores.push_back({name, std::move(*folder)});
  }
  return all;
}

std::vector<uint32_t> SegmentsOf(Storage& storage, FileId folder) {
  std::vector<uint32_t> segments;
  const auto names = storage.List(folder);
  if (!names) return segments;
  for (const std::string& name : *names) {
    if (const auto number = ParseSegmentFileName(name)) segments.push_back(*number);
  }
  std::ranges::sort(segments);
  return segments;
}

StoreAbout AboutOf(Storage& storage, FileId folder) {
  const auto text = ReadSmallFile(storage, folder, "about.json", kMaxAboutBytes);
  return text ? ParseAbout(*text) : StoreAbout();
}

// Calls `each` with the slots' headers in turn. False: the file cannot be read.
bool ForEachHeader(Storage& storage, FileId file, const SegmentShape& shape,
                   const std::function<void(uint32_t, std::span<const std::byte>)>& each) {
  std::vector<std::byte> header(shape.record.header_bytes());
  for (uint32_t slot = 0; slot < shape.slots; ++slot) {
    if (!ReadAll(storage, file, header, shape.header_at(slot))) return false;
    each(slot, header);
  }
  return true;
}

// Checks one store, whose lock is held.
class StoreChecker {
 public:
  StoreChecker(Storage& storage, const OpenStore& store, const Secret& secret, StoreCheck* check)
      : storage_(storage),
        store_(store),
        id_(*ParseStoreName(store.name)),
        head_key_(HeadKeyOf(secret)),
        check_(*check) {}

  Status Run(const Secret& secret, const DiskCheckProgress& progress) {
    auto folder = Own(storage_, storage_.OpenFolder(store_.folder.id(), "keys"));
    if (!folder) return Failed(folder.error(), store_.name + "/keys");
    const auto keys = LoadKeys(storage_, folder->id(), secret, id_);
    if (!keys) return Failed(keys.error(), store_.name + "/keys");
    for (const OwnerKey& key : *keys) keys_[key.namespace_id] = key.key;
    const std::vector<uint32_t> segments = SegmentsOf(storage_, store_.folder.id());
    for (size_t i = 0; i < segments.size(); ++i) {
      CheckSegment(segments[i]);
      if (progress) progress(store_.name, i + 1, segments.size());
    }
    if (num_heads_ == 0 && keys_.empty() && !segments.empty()) {
      check_.damaged.clear();
      check_.skipped = "it belongs to another secret";
    }
    return {};
  }

 private:
  void Damaged(uint32_t segment, const std::string& what) {
    check_.damaged.push_back(fmt::format("{} {}", SegmentFileName(segment), what));
  }

  void CheckSegment(uint32_t segment) {
    const auto file = Own(
        storage_, storage_.OpenFile(store_.folder.id(), SegmentFileName(segment), OpenMode::kRead));
    if (!file) return Damaged(segment, "cannot be opened");
    const auto head = ReadHead(storage_, file->id(), head_key_, id_, segment);
    if (!head) return Damaged(segment, "cannot be read");
    if (!*head) return Damaged(segment, "is not a segment of this store and version");
    ++num_heads_;
    const auto each = [&](uint32_t slot, std::span<const std::byte> header) {
      CheckSlot(file->id(), **head, slot, header);
    };
    if (!ForEachHeader(storage_, file->id(), (*head)->shape, each)) {
      Damaged(segment, "ends before its last slot");
    }
  }

  void CheckSlot(FileId file, const SegmentHead& head, uint32_t slot,
                 std::span<const std::byte> header) {
    const auto record = DecodePublic(header.first<kPublicBytes>());
    if (!record) {
      const bool is_free =
          std::ranges::all_of(header, [](std::byte b) { return b == std::byte{}; });
      if (!is_free) Damaged(head.segment, fmt::format("slot {}: header", slot));
      return;
    }
    const auto key = keys_.find(record->namespace_id);
    if (key == keys_.end()) return;  // erased: a free slot
    const RecordPlace place{
        .store = id_, .segment = head.segment, .slot = slot, .generation = head.generation};
    const AesKey record_key = RecordKeyOf(key->second, record->salt);
    std::vector<std::byte> tokens(size_t{4} * head.shape.record.block_tokens);
    if (record->place != place || !UnsealHeader(record_key, record->placings,
                                                head.shape.record.block_tokens, header, tokens)) {
      return Damaged(head.segment, fmt::format("slot {}: header", slot));
    }
    std::vector<std::byte> payload(head.shape.record.payload_bytes);
    if (record->payload_bytes != payload.size() ||
        !ReadAll(storage_, file, payload, head.shape.payload_at(slot)) ||
        !UnsealPayload(record_key, payload, record->payload_tag, payload)) {
      return Damaged(head.segment, fmt::format("slot {}: payload", slot));
    }
    ++check_.blocks;
    check_.bytes += head.shape.record.slot_bytes();
  }

  Storage& storage_;
  const OpenStore& store_;
  const StoreId id_;
  const HmacKey head_key_;
  StoreCheck& check_;
  std::map<OwnerTag, AesKey> keys_;
  uint32_t num_heads_ = 0;
};

}  // namespace

Result<std::vector<StoreListing>> ListStores(Storage& storage, const std::string& path) {
  KV_ASSIGN(const OpenStores all, OpenAll(storage, path));
  std::vector<StoreListing> listings;
  for (const OpenStore& store : all.stores) {
    const StoreAbout about = AboutOf(storage, store.folder.id());
    StoreListing listing{.store = store.name,
                         .model = about.model,
                         .kv_format = about.kv_format,
                         .hits = about.hits,
                         .last_use_unix_s = static_cast<int64_t>(about.last_hour) * 3600};
    for (const uint32_t segment : SegmentsOf(storage, store.folder.id())) {
      const auto file = Own(
          storage, storage.OpenFile(store.folder.id(), SegmentFileName(segment), OpenMode::kRead));
      std::array<std::byte, kHeadBytes> bytes;
      if (!file || !ReadAll(storage, file->id(), bytes, 0)) continue;
      const auto head = ParseHead(bytes);
      if (!head) continue;
      ++listing.segments;
      ForEachHeader(storage, file->id(), head->shape,
                    [&](uint32_t, std::span<const std::byte> header) {
                      if (!DecodePublic(header.first<kPublicBytes>())) return;
                      ++listing.blocks;
                      listing.bytes += head->shape.record.slot_bytes();
                    });
    }
    listings.push_back(std::move(listing));
  }
  return listings;
}

Result<std::vector<StoreCheck>> CheckStores(Storage& storage, const std::string& path,
                                            const Secret& secret,
                                            const DiskCheckProgress& progress) {
  KV_ASSIGN(const OpenStores all, OpenAll(storage, path));
  std::vector<StoreCheck> checks;
  for (const OpenStore& store : all.stores) {
    const StoreAbout about = AboutOf(storage, store.folder.id());
    StoreCheck check{.store = store.name, .model = about.model, .kv_format = about.kv_format};
    const auto lock =
        Own(storage, storage.OpenFile(store.folder.id(), "lock", OpenMode::kWriteOrNew));
    const IoResult<bool> locked =
        lock ? storage.TryLock(lock->id()) : IoResult<bool>(IoFailed(lock.error()));
    if (!locked) {
      check.damaged.push_back(fmt::format("lock: {}", std::strerror(locked.error())));
    } else if (!*locked) {
      check.skipped = "another process uses it";
    } else {
      KV_TRY(StoreChecker(storage, store, secret, &check).Run(secret, progress));
    }
    checks.push_back(std::move(check));
  }
  return checks;
}

}  // namespace kvasir
