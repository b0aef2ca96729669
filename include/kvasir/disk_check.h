// DiskCheck: unseals every record of a disk tier's folder, and says how far it is.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "kvasir/disk.h"
#include "kvasir/status.h"

namespace kvasir {

// Called after each segment that was read, with how many of all those of a store are done.
using DiskCheckProgress =
    std::function<void(const std::string& store, uint64_t done, uint64_t segments)>;

// Does what CheckDiskStores without `progress` does.
Result<std::vector<StoreCheck>> CheckDiskStores(const std::string& folder, const SecretPlace& place,
                                                const DiskCheckProgress& progress);

}  // namespace kvasir
