// Recovers a store whose segment has any table of headers: the given bytes as they are, or sealed
// under the owner's key, as only somebody with the key could write them. The index and the slots
// must agree, no payload may be unsealed that was not sealed, and the tier must still store and
// erase.
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include "base/check.h"
#include "base/hex.h"
#include "base/log.h"
#include "fuzz_target.h"
#include "tier/disk_tier.h"
#include "tier/key_files.h"
#include "tier/sim_storage_for_test.h"
#include "tier/store_check.h"

namespace {

using namespace kvasir;

constexpr uint32_t kTokens = 16;
constexpr uint64_t kPayload = 64, kSegment = uint64_t{64} << 10;
constexpr Secret kSecret{1};
constexpr Digest kIdentity{2}, kOwner{3};
constexpr OwnerTag kNamespace{4};
constexpr AesKey kKey{5};

DiskTierOptions Options() {
  return {.folder = "/sim/kv",
          .cap_bytes = (uint64_t{2} << 20) + 3 * kSegment,
          .secret = kSecret,
          .identity = kIdentity,
          .shape = {.block_tokens = kTokens, .payload_bytes = kPayload},
          .threads = 0,
          .segment_bytes = kSegment,
          .num_buffers = 8};
}

FileId Made(SimStorage& disk, FileId folder, const std::string& name) {
  KV_CHECK(disk.MakeFolder(folder, name));
  return *disk.OpenFolder(folder, name);
}

// How bytes that the fuzzer gives become a header.
enum class As : uint8_t {
  kRaw,      // as they are
  kSealed,   // any public part, sealed
  kInPlace,  // the same, with the slot's place and this store's names
};

void PutHeader(As as, const SegmentHead& head, uint32_t slot, std::span<std::byte> header) {
  if (as == As::kRaw) return;
  std::array<std::byte, 4> magic{std::byte{'K'}, std::byte{'V'}, std::byte{'R'}, std::byte{1}};
  std::ranges::copy(magic, header.begin());
  header[4] = header[5] = std::byte{1};
  header[7] = std::byte{0};
  auto record = DecodePublic(header.first<kPublicBytes>());
  KV_CHECK(record);
  if (as == As::kInPlace) {
    record->place = {
        .store = head.store, .segment = head.segment, .slot = slot, .generation = head.generation};
    record->namespace_id = kNamespace;
    record->identity = kIdentity;
    record->payload_bytes = kPayload;
    // Few names, so that records meet: doubles, chains, circles.
    for (RecordName* name : {&record->name, record->after ? &*record->after : nullptr}) {
      if (name == nullptr) continue;
      const uint8_t which = name->key[0] % 16;
      *name = {.key = BlockKey{which}, .layer_group = 0, .part = 0};
    }
  }
  std::vector<std::byte> tokens(uint64_t{4} * kTokens), sealed(header.size());
  std::ranges::copy(header.subspan(kPublicBytes, tokens.size()), tokens.begin());
  KV_CHECK(SealHeader(RecordKeyOf(kKey, record->salt), *record, kTokens, tokens, sealed));
  std::ranges::copy(sealed, header.begin());
}

}  // namespace

KV_FUZZ_TARGET(segment)(const uint8_t* data, size_t size) {
  SetLogLevel(LogLevel::kError);
  const DiskTierOptions options = Options();
  SimStorage disk(1);
  const SegmentHead head{.shape = ShapeOfSegment(options.shape, kSegment),
                         .store = StoreIdOf(kSecret, kIdentity),
                         .segment = 0,
                         .generation = 6};
  const FileId root = *disk.OpenRoot("");
  const FileId store = Made(disk, root, ToHex(head.store));
  const OwnerKey owner{.owner = kOwner, .key = kKey, .namespace_id = kNamespace};
  KV_CHECK(WriteKeyFile(disk, Made(disk, store, "keys"), kSecret, head.store, owner));
  const FileId file = *disk.OpenFile(store, SegmentFileName(0), OpenMode::kCreate);
  KV_CHECK(AllocateBytes(disk, file, kSegment));
  std::array<std::byte, kHeadBytes> head_bytes;
  EncodeHead(HeadKeyOf(kSecret), head, head_bytes);
  KV_CHECK(WriteAll(disk, file, head_bytes, 0));
  // A byte that says how, and a header, in turn.
  std::span<const std::byte> left = std::as_bytes(std::span(data, size));
  std::vector<RecordName> names;
  for (uint32_t slot = 0; slot < head.shape.slots && !left.empty(); ++slot) {
    const auto as = As(static_cast<uint8_t>(left[0]) % 3);
    left = left.subspan(1);
    std::vector<std::byte> header(head.shape.record.header_bytes());
    const size_t given = std::min(left.size(), kPublicBytes + 4 * kTokens);
    std::ranges::copy(left.first(given), header.begin());
    left = left.subspan(given);
    PutHeader(as, head, slot, header);
    KV_CHECK(WriteAll(disk, file, header, head.shape.header_at(slot)));
    if (const auto record = DecodePublic(std::span(header).first<kPublicBytes>())) {
      names.push_back(record->name);
    }
  }
  disk.Close(file);
  KV_CHECK(ListStores(disk, options.folder));
  KV_CHECK(CheckStores(disk, options.folder, kSecret));

  auto opened = DiskTier::Open(options, disk);
  KV_CHECK(opened);
  DiskTier& tier = **opened;
  KV_CHECK(tier.CheckInvariants());
  std::vector<std::byte> payload(kPayload);
  const std::vector<TokenId> tokens(kTokens);
  RecordFacts facts;
  facts.owner = kOwner;
  facts.tokens = tokens;
  for (const RecordName& name : names) {
    const auto read = tier.BeginRead(name);
    if (!read) continue;
    tier.RunPending();
    facts.name = name;
    // No payload was ever sealed.
    KV_CHECK(tier.StateOf(*read) == ReadState::kFailed || !tier.Unseal(*read, facts, payload));
    tier.EndRead(*read, ReadEnd::kDamaged);
    KV_CHECK(tier.CheckInvariants());
  }
  facts.name = {.key = BlockKey{0xFF, 0xFE}, .layer_group = 0, .part = 1};
  if (tier.ReadyOwner(kOwner)) {
    const auto write = tier.BeginWrite(facts);
    KV_CHECK(write);
    tier.Seal(*write, payload);
    tier.EndWrite(*write);
    tier.RunPending();
    KV_CHECK(tier.Has(facts.name) && tier.CheckInvariants());
  }
  bool is_erased = false;
  tier.Erase(kOwner, [&](const Result<TierErased>& erased) { is_erased = erased.has_value(); });
  tier.RunPending();
  KV_CHECK(is_erased && !tier.Has(facts.name) && tier.CheckInvariants());
  return 0;
}
