// ForgetIntent: the slots that a forget zeros, in a file of the store from before the first one
// until the last one is zeros.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/secret.h"
#include "tier/segment.h"
#include "tier/storage.h"

namespace kvasir {

// The slots are not taken again before the file is gone. So a process that finds the file may zero
// all of them, whatever they hold.
struct ForgetIntent {
  struct Segment {
    uint32_t number = 0;
    uint64_t generation = 0;
    std::vector<bool> slots;  // [slots of the segment]
  };
  std::vector<Segment> segments;
};

inline constexpr uint64_t kMaxForgetIntentBytes = uint64_t{320} << 10;
// Returns the most bytes of an intent, for a store of so many slots, in so many segments.
uint64_t ForgetIntentBytes(uint64_t slots, uint64_t segments);

std::string EncodeForgetIntent(const Secret& secret, const StoreId& store,
                               const ForgetIntent& intent);
// Decodes an intent. Absent: damaged, of another version, store or secret. O(bytes).
std::optional<ForgetIntent> DecodeForgetIntent(const Secret& secret, const StoreId& store,
                                               std::string_view bytes);

// Writes the file of a store's folder. Durable when it returns, as the two below.
IoStatus WriteForgetIntent(Storage& storage, FileId folder, const Secret& secret,
                           const StoreId& store, const ForgetIntent& intent);
// Reads the intent. Absent: the folder has no intent, or one that cannot be unsealed.
IoResult<std::optional<ForgetIntent>> ReadForgetIntent(Storage& storage, FileId folder,
                                                       const Secret& secret, const StoreId& store);
IoStatus RemoveForgetIntent(Storage& storage, FileId folder);

}  // namespace kvasir
