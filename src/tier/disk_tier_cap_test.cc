// The cap of DiskTier's folder while everything beside the segments is as large as it gets.
#include <gtest/gtest.h>

#include <memory>

#include "base/log.h"
#include "tier/disk_tier.h"
#include "tier/erase_files.h"
#include "tier/sim_storage_for_test.h"
#include "tier/store_files.h"
#include "tier/tier_driver_for_test.h"

namespace kvasir {
namespace {

constexpr uint64_t kCapSegment = 96 * 1024;

// Fills the audit to its last line but one.
void FillAudit(SimStorage& storage, uint64_t bytes) {
  const OpenedFile root(storage, *storage.OpenRoot(""));
  const OpenedFile file(storage, *storage.OpenFile(root.id(), "audit.jsonl", OpenMode::kCreate));
  std::string text(bytes, 'x');
  for (size_t i = 99; i < text.size(); i += 100) text[i] = '\n';
  ASSERT_TRUE(WriteAll(storage, file.id(), std::as_bytes(std::span(text)), 0));
  ASSERT_TRUE(storage.SyncData(file.id()));
  ASSERT_TRUE(storage.SyncFolder(root.id()));
}

// Returns whether a tier exceeds its cap at any call: with as many owners, each with a key file,
// and the whole cap in use; then half of the owners are erased.
bool ExceedsCap(uint32_t owners, uint32_t segments, uint64_t audit_bytes = kMaxAuditBytes - 1) {
  SetLogLevel(LogLevel::kError);
  SimStorage storage(owners);
  DiskTierOptions options{.folder = "/sim/kv",
                          .cap_bytes = (uint64_t{2} << 20) + segments * kCapSegment,
                          .secret = Secret{1},
                          .identity = Digest{2},
                          .shape = {.block_tokens = kSmallTokens, .payload_bytes = kSmallPayload},
                          .threads = 0,
                          .segment_bytes = kCapSegment,
                          .num_buffers = 16};
  storage.cap_bytes = *options.cap_bytes;
  FillAudit(storage, audit_bytes);
  const auto tier = DiskTier::Open(options, storage);
  EXPECT_TRUE(tier) << tier.error().message;
  TierDriver driver(**tier, [&] { (*tier)->RunPending(); });
  const auto write = [&](uint32_t chain, uint32_t owner) {
    const TestRecord record(chain, 0, owner, kSmallTokens, kSmallPayload);
    (void)driver.Write(record, true);
    (*tier)->RunPending();
  };
  // The segments first, so that they take all that is left when the key files come.
  for (uint32_t i = 0; i < segments * 100; ++i) write(i, 0);
  for (uint32_t i = 0; i < owners; ++i) write(1'000'000 + i, i);
  EXPECT_TRUE(driver.Flush());
  for (uint32_t i = 0; i < owners; i += 2) {
    EXPECT_TRUE(driver.Erase(TestRecord::Owner(i)));
    for (uint32_t k = 0; k < 5; ++k) write(2'000'000 + 10 * i + k, owners + 1);
  }
  EXPECT_GT((*tier)->Stats().blocks, 3u);
  return storage.has_exceeded_cap();
}

TEST(DiskTierCap, HoldsWhileAFullAuditIsWrittenAnew) {
  EXPECT_FALSE(ExceedsCap(2, 4));
  EXPECT_FALSE(ExceedsCap(40, 4));
  EXPECT_FALSE(ExceedsCap(2, 4, (uint64_t{1} << 20) - 1));  // of an earlier version
}

TEST(DiskTierCap, HoldsBesideManyKeyFiles) { EXPECT_FALSE(ExceedsCap(460, 12)); }

TEST(DiskTierCap, AnAuditOfAnEarlierVersionIsCutAndKeepsItsLastLines) {
  SimStorage storage(1);
  FillAudit(storage, (uint64_t{1} << 20) - 10);
  const OpenedFile root(storage, *storage.OpenRoot(""));
  ASSERT_TRUE(AppendAudit(storage, root.id(), "last"));
  const auto text = ReadSmallFile(storage, root.id(), "audit.jsonl", uint64_t{1} << 20);
  ASSERT_TRUE(text);
  EXPECT_LE(text->size(), kMaxAuditBytes);
  EXPECT_GE(text->size(), kMaxAuditBytes / 2 - 200);
  EXPECT_TRUE(text->ends_with("last\n"));
}

}  // namespace
}  // namespace kvasir
