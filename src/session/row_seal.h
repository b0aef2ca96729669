// How the bytes of a row of SealedRows are sealed under its owner's key.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "tier/owner_keys.h"
#include "tier/segment.h"

namespace kvasir {

// Returns the column that says whose row it is: the namespace of the owner's key.
inline std::span<const std::byte> RowOwnerBytes(const OwnerTag& tag) {
  return std::as_bytes(std::span(tag));
}
inline OwnerTag RowOwnerFrom(std::span<const std::byte> bytes) {  // zeros: of another size
  OwnerTag tag{};
  if (bytes.size() == tag.size()) std::memcpy(tag.data(), bytes.data(), tag.size());
  return tag;
}

inline constexpr size_t kRowSealBytes = sizeof(RecordSalt) + sizeof(AesTag);
// Seals a row. Absent: no memory.
std::optional<std::vector<std::byte>> SealRow(const OwnerKey& owner, std::string_view id,
                                              uint64_t number, const RecordSalt& salt,
                                              std::span<const std::byte> plain);
// Unseals a row. Absent: damaged, or of another owner, id or number.
std::optional<std::vector<std::byte>> UnsealRow(const OwnerKey& owner, std::string_view id,
                                                uint64_t number, std::span<const std::byte> sealed);

}  // namespace kvasir
