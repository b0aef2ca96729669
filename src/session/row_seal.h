// How the bytes of a row of SealedRows are sealed under its owner's key.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "tier/owner_keys.h"
#include "tier/segment.h"

namespace kvasir {

inline constexpr size_t kRowSealBytes = sizeof(RecordSalt) + sizeof(AesTag);
// Absent: no memory.
std::optional<std::vector<std::byte>> SealRow(const OwnerKey& owner, std::string_view id,
                                              uint64_t number, const RecordSalt& salt,
                                              std::span<const std::byte> plain);
// Absent: damaged, or of another owner, id or number.
std::optional<std::vector<std::byte>> OpenRow(const OwnerKey& owner, std::string_view id,
                                              uint64_t number, std::span<const std::byte> sealed);

}  // namespace kvasir
