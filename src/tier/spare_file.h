// Spare files: room of the device that is kept for erases.
#pragma once

#include <cstdint>
#include <string_view>

#include "tier/storage.h"

namespace kvasir {

// Room of the device that is kept for erases, which write before they free anything: files of the
// tier's folder, of the tier and of SealedRows. On a full device they are given back first, and
// kept again after the erase.
inline constexpr std::string_view kSpareName = "spare", kRowsSpareName = "sessions.spare";
inline constexpr uint64_t kSpareBytes = uint64_t{64} << 10;  // beside the intent of a forget
// Returns the size of the spare file; 0 where it is missing.
uint64_t SpareOf(Storage& storage, FileId root, std::string_view name);
// Keeps at least so many bytes, or as many as the device has; unchanged where the folder's cap is
// full. REQUIRES: the folder's lock.
void KeepSpare(Storage& storage, FileId root, std::string_view name, uint64_t bytes,
               uint64_t cap_bytes);
// Removes the spare file. False: it was missing or stays.
bool GiveSpare(Storage& storage, FileId root, std::string_view name);
// Returns whether a call failed because the device, a quota or a limit of the process gives no more
// room.
bool IsFull(int error);

}  // namespace kvasir
