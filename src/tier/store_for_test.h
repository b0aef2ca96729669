// OpenStoreTest: an open Store on a simulated disk, with the records that a test puts there.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <vector>

#include "tier/key_files.h"
#include "tier/sim_storage_for_test.h"
#include "tier/store.h"
#include "tier/tier_driver_for_test.h"

namespace kvasir {

// Records of kSmallTokens and kSmallPayload. No threads: the test is writer and reader.
class OpenStoreTest : public testing::Test {
 protected:
  static constexpr uint64_t kSegmentBytes = 64 * 1024;

  explicit OpenStoreTest(uint32_t num_buffers = 8) {
    options_ = {.folder = "/sim/kv",
                .cap_bytes = Store::kBesideBytes + 8 * kSegmentBytes,
                .reserve_bytes = 0,
                .secret = Secret{1},
                .identity = Digest{2},
                .shape = {.block_tokens = kSmallTokens, .payload_bytes = kSmallPayload},
                .model = "test",
                .threads = 0,
                .segment_bytes = kSegmentBytes,
                .num_buffers = num_buffers};
    MakeStore();
    OpenFiles();
  }

  // Makes a store that knows nothing yet of what is on the disk.
  void MakeStore() {
    store_.reset();
    auto made = Store::Create(options_, storage_);
    ASSERT_TRUE(made);
    store_ = std::move(*made);
  }
  void OpenFiles() {
    auto root = OpenTierFolder(storage_, options_.folder);
    ASSERT_TRUE(root) << root.error().message;
    auto files = OpenStoreFiles(storage_, std::move(*root), store_->id);
    ASSERT_TRUE(files && *files);
    store_->writing_files = std::make_shared<const StoreFiles>(std::move(**files));
    MutexLock lock(store_->mutex);
    store_->state.now = TierStats::State::kOn;
    store_->state.cap_bytes = *options_.cap_bytes;
    store_->state.files = store_->writing_files;
  }
  FileId folder() const { return store_->writing_files->folder.id(); }

  // Adds a segment with free slots, on the disk and in the table.
  uint32_t AddSegment(uint32_t number) {
    const SegmentHead head{.shape = ShapeOfSegment(options_.shape, kSegmentBytes),
                           .store = store_->id,
                           .segment = number,
                           .generation = 100 + number};
    std::array<std::byte, kHeadBytes> bytes;
    EncodeHead(HeadKeyOf(options_.secret), head, bytes);
    const OpenedFile file(storage_,
                          *storage_.OpenFile(folder(), SegmentFileName(number), OpenMode::kCreate));
    EXPECT_TRUE(AllocateBytes(storage_, file.id(), head.shape.segment_bytes));
    EXPECT_TRUE(WriteAll(storage_, file.id(), bytes, 0));
    EXPECT_TRUE(storage_.SyncData(file.id()));
    EXPECT_TRUE(storage_.SyncFolder(folder()));
    MutexLock lock(store_->mutex);
    return *store_->segments.Add(head);
  }
  bool HasSegmentFile(uint32_t number) {
    return storage_.FactsOf(folder(), SegmentFileName(number)).has_value();
  }

  // Puts a stored record on the disk, in its slot and in the index.
  EntryId PutRecord(const TestRecord& record) {
    MutexLock lock(store_->mutex);
    const OwnerId owner = *store_->OwnerOf(record.facts.owner);
    const EntryId entry = *store_->records.Add(record.facts.name, owner, record.facts.after,
                                               store_->clock.NewOrder());
    const SlotRef slot = *store_->segments.TakeSlot();
    const SegmentTable::Segment& segment = store_->segments.at(slot.segment);
    OwnerKey key = store_->keys.KeyOf(owner);
    if (!store_->keys.has_file(owner)) {
      EXPECT_TRUE(WriteKeyFile(storage_, store_->writing_files->keys.id(), options_.secret,
                               store_->id, key));
      store_->keys.set_has_file(owner);
    }
    RecordPublic header{.place = {.store = store_->id,
                                  .segment = segment.number,
                                  .slot = slot.slot,
                                  .generation = segment.generation},
                        .name = record.facts.name,
                        .namespace_id = key.namespace_id,
                        .identity = options_.identity,
                        .parent = record.facts.parent,
                        .after = record.facts.after,
                        .payload_bytes = kSmallPayload,
                        .hour = store_->clock.NowHour()};
    EXPECT_TRUE(storage_.FillRandom(header.salt));
    const AesKey record_key = RecordKeyOf(key.key, header.salt);
    std::vector<std::byte> payload(record.payload.size());
    EXPECT_TRUE(SealPayload(record_key, record.payload, payload, &header.payload_tag));
    std::vector<std::byte> sealed(options_.shape.header_bytes());
    EXPECT_TRUE(SealHeader(record_key, header, kSmallTokens,
                           std::as_bytes(std::span(record.tokens)), sealed));
    const OpenedFile file(
        storage_, *storage_.OpenFile(folder(), SegmentFileName(segment.number), OpenMode::kWrite));
    EXPECT_TRUE(WriteAll(storage_, file.id(), payload, segment.shape.payload_at(slot.slot)));
    EXPECT_TRUE(WriteAll(storage_, file.id(), sealed, segment.shape.header_at(slot.slot)));
    EXPECT_TRUE(storage_.SyncData(file.id()));
    store_->keys.AddUse(owner);
    store_->segments.set_owner(slot, owner);
    store_->records.SetStored(entry, slot);
    store_->segments.SetEntry(slot, entry);
    return entry;
  }
  static TestRecord Small(uint32_t chain, uint32_t number = 0, uint32_t owner = 0) {
    return TestRecord(chain, number, owner, kSmallTokens, kSmallPayload);
  }
  std::optional<SlotRef> SlotOf(const TestRecord& record) const {
    MutexLock lock(store_->mutex);
    const auto entry = store_->records.Find(record.facts.name);
    return entry ? std::optional(store_->records.at(*entry).slot) : std::nullopt;
  }
  SegmentTable::SlotState StateOf(const SlotRef& slot) const {
    MutexLock lock(store_->mutex);
    return store_->segments.state(slot);
  }
  uint32_t slots_per_segment() const { return ShapeOfSegment(options_.shape, kSegmentBytes).slots; }
  uint32_t num_segments() const {
    MutexLock lock(store_->mutex);
    return store_->segments.num_open();
  }
  uint32_t num_stored() const {
    MutexLock lock(store_->mutex);
    return store_->records.num_stored();
  }
  // Returns whether the slot's header and payload are zeros on the disk.
  bool IsZeroOnDisk(const SlotRef& slot) {
    uint32_t number;
    SegmentShape shape;
    {
      MutexLock lock(store_->mutex);
      number = store_->segments.at(slot.segment).number;
      shape = store_->segments.at(slot.segment).shape;
    }
    const OpenedFile file(storage_,
                          *storage_.OpenFile(folder(), SegmentFileName(number), OpenMode::kRead));
    std::vector<std::byte> header(shape.record.header_bytes()), payload(kSmallPayload);
    EXPECT_TRUE(ReadAll(storage_, file.id(), header, shape.header_at(slot.slot)));
    EXPECT_TRUE(ReadAll(storage_, file.id(), payload, shape.payload_at(slot.slot)));
    const auto is_zero = [](std::byte byte) { return byte == std::byte{0}; };
    return std::ranges::all_of(header, is_zero) && std::ranges::all_of(payload, is_zero);
  }
  TierStats Stats() const {
    MutexLock lock(store_->mutex);
    return store_->figures.stats;
  }
  bool IsSound() const {
    MutexLock lock(store_->mutex);
    return store_->CheckInvariants();
  }

  SimStorage storage_{1};
  DiskTierOptions options_;
  std::unique_ptr<Store> store_;
};

}  // namespace kvasir
