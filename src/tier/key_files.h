// The key files of a store, or of SealedRows: one for each owner.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/secret.h"
#include "tier/owner_keys.h"
#include "tier/segment.h"
#include "tier/storage.h"

namespace kvasir {

bool IsKeyFileName(std::string_view name);
// Loads all keys whose files this secret unseals. A file that it does not unseal is left out; a
// read that fails is an error.
IoResult<std::vector<OwnerKey>> LoadKeys(Storage& storage, FileId keys, const Secret& secret,
                                         const StoreId& store);
// Lists files in a folder of keys that this secret does not unseal for this store.
IoResult<std::vector<std::string>> UnreadKeys(Storage& storage, FileId keys, const Secret& secret,
                                              const StoreId& store);
IoStatus RemoveUnreadKeys(Storage& storage, FileId keys, const Secret& secret,
                          const StoreId& store);
// Writes the file and makes its name durable. One that is there and cannot be unsealed is set
// aside.
IoStatus WriteKeyFile(Storage& storage, FileId keys, const Secret& secret, const StoreId& store,
                      const OwnerKey& key);
// Removes the file, makes its absence durable, and that of what was set aside for it. False: there
// was none.
IoResult<bool> RemoveKeyFile(Storage& storage, FileId keys, const std::string& name);
// Removes only what was set aside for it, and the file itself where it cannot be unsealed.
IoStatus RemoveUnreadKeysOf(Storage& storage, FileId keys, const Secret& secret,
                            const StoreId& store, const std::string& name);

}  // namespace kvasir
