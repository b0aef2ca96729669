// The file, little endian (also in docs/formats/segment.md):
//   file    := "KVFORGET"  u32 version  u32 num_segments  segment{num_segments}  tag[32]
//   segment := u64 generation  u32 number  u32 num_slots  u8 bits[(num_slots + 7) / 8]
// Bit i % 8 of byte i / 8 stands for slot i. The tag is HMAC-SHA-256(HMAC-SHA-256(secret,
// "kvasir forget"), store || the bytes before it).
#include "tier/forget_intent.h"

#include <cerrno>
#include <cstring>

#include "base/digest.h"
#include "kvasir/disk.h"

namespace kvasir {
namespace {

constexpr std::string_view kForgetMagic = "KVFORGET", kForgetPurpose = "kvasir forget",
                           kForgetFile = "forget";
constexpr uint32_t kVersion = 1;
constexpr size_t kHeadBytesOfIntent = 16, kSegmentBytes = 16;
constexpr uint64_t MostBytes(uint64_t slots, uint64_t segments) {
  return slots / 8 + (kSegmentBytes + 1) * segments + kHeadBytesOfIntent + sizeof(Digest);
}
static_assert(MostBytes(kMaxDiskBlocks, kMaxDiskBlocks / 16 + 1) <= kMaxForgetIntentBytes);

template <typename T>
void Append(std::string& bytes, T value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof(value));
}
template <typename T>
T Take(std::string_view& bytes) {
  T value;
  std::memcpy(&value, bytes.data(), sizeof(value));
  bytes.remove_prefix(sizeof(value));
  return value;
}

Digest TagOf(const Secret& secret, const StoreId& store, std::string_view bytes) {
  const Digest key = HmacKey(secret).Of(std::as_bytes(std::span(kForgetPurpose)));
  return HmacKey(key).Of(std::as_bytes(std::span(store)), std::as_bytes(std::span(bytes)));
}

}  // namespace

uint64_t ForgetIntentBytes(uint64_t slots, uint64_t segments) { return MostBytes(slots, segments); }

std::string EncodeForgetIntent(const Secret& secret, const StoreId& store,
                               const ForgetIntent& intent) {
  std::string bytes(kForgetMagic);
  Append(bytes, kVersion);
  Append(bytes, static_cast<uint32_t>(intent.segments.size()));
  for (const ForgetIntent::Segment& segment : intent.segments) {
    Append(bytes, segment.generation);
    Append(bytes, segment.number);
    Append(bytes, static_cast<uint32_t>(segment.slots.size()));
    std::string bits((segment.slots.size() + 7) / 8, '\0');
    for (size_t i = 0; i < segment.slots.size(); ++i) {
      if (segment.slots[i]) bits[i / 8] = static_cast<char>(bits[i / 8] | 1 << (i % 8));
    }
    bytes += bits;
  }
  const Digest tag = TagOf(secret, store, bytes);
  return bytes.append(reinterpret_cast<const char*>(tag.data()), tag.size());
}

std::optional<ForgetIntent> DecodeForgetIntent(const Secret& secret, const StoreId& store,
                                               std::string_view bytes) {
  if (bytes.size() < kHeadBytesOfIntent + sizeof(Digest) || !bytes.starts_with(kForgetMagic)) {
    return std::nullopt;
  }
  const std::string_view signed_part = bytes.substr(0, bytes.size() - sizeof(Digest));
  const Digest tag = TagOf(secret, store, signed_part);
  if (std::memcmp(tag.data(), bytes.data() + signed_part.size(), tag.size()) != 0) {
    return std::nullopt;
  }
  std::string_view left = signed_part.substr(kForgetMagic.size());
  if (Take<uint32_t>(left) != kVersion) return std::nullopt;
  ForgetIntent intent;
  for (uint32_t segments = Take<uint32_t>(left); segments > 0; --segments) {
    if (left.size() < kSegmentBytes) return std::nullopt;
    ForgetIntent::Segment segment;
    segment.generation = Take<uint64_t>(left);
    segment.number = Take<uint32_t>(left);
    const uint64_t num_slots = Take<uint32_t>(left);
    if (left.size() < (num_slots + 7) / 8) return std::nullopt;
    for (uint64_t i = 0; i < num_slots; ++i) {
      segment.slots.push_back((static_cast<uint8_t>(left[i / 8]) >> (i % 8) & 1) != 0);
    }
    left.remove_prefix((num_slots + 7) / 8);
    intent.segments.push_back(std::move(segment));
  }
  return left.empty() ? std::optional(std::move(intent)) : std::nullopt;
}

IoStatus WriteForgetIntent(Storage& storage, FileId folder, const Secret& secret,
                           const StoreId& store, const ForgetIntent& intent) {
  return PublishFile(storage, folder, std::string(kForgetFile),
                     EncodeForgetIntent(secret, store, intent), FileSync::kSynced);
}

IoResult<std::optional<ForgetIntent>> ReadForgetIntent(Storage& storage, FileId folder,
                                                       const Secret& secret, const StoreId& store) {
  const IoResult<std::string> bytes =
      ReadSmallFile(storage, folder, std::string(kForgetFile), kMaxForgetIntentBytes);
  if (!bytes && (bytes.error() == ENOENT || IsNoFile(bytes.error()))) {
    return std::optional<ForgetIntent>();
  }
  if (!bytes) return IoFailed(bytes.error());
  return DecodeForgetIntent(secret, store, *bytes);
}

IoStatus RemoveForgetIntent(Storage& storage, FileId folder) {
  const IoStatus removed = storage.Unlink(folder, std::string(kForgetFile));
  if (!removed && removed.error() != ENOENT) return removed;
  return storage.SyncFolder(folder);
}

}  // namespace kvasir
