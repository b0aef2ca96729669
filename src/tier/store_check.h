// What the stores of a folder have, for people: a list, and a check of every record.
#pragma once

#include <vector>

#include "base/secret.h"
#include "kvasir/disk.h"
#include "kvasir/disk_check.h"
#include "tier/storage.h"

namespace kvasir {

// Returns the stores of a tier's folder, in the order of their names. Needs no key, trusts what the
// files say, and changes nothing. kNotFound: there is no such folder.
Result<std::vector<StoreListing>> ListStores(Storage& storage, const std::string& path);

// Unseals every record of the stores of this secret. A store that another process uses is skipped,
// and one of another secret too. Changes nothing. O(bytes of all records).
Result<std::vector<StoreCheck>> CheckStores(Storage& storage, const std::string& path,
                                            const Secret& secret,
                                            const DiskCheckProgress& progress = {});

}  // namespace kvasir
