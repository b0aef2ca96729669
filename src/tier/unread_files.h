// UnreadFiles: what lies in a tier's folder and a secret does not unseal.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/secret.h"
#include "tier/storage.h"

namespace kvasir {

// What this secret does not unseal: stores without a segment or a key of it, keys of other stores,
// intents of erases, and what was set aside. Not the file of SealedRows, set aside or not, nor
// stores that are locked.
struct UnreadFiles {
  std::vector<std::string> stores;
  std::vector<std::string> keys;  // "store/keys/name"
  // Names in the folder itself; as "store/name" links to keys, and segments that are links or of
  // another version.
  std::vector<std::string> names;
  uint64_t bytes = 0;  // of the stores' segments
  bool empty() const { return stores.empty() && keys.empty() && names.empty(); }
};
IoResult<UnreadFiles> ListUnread(Storage& storage, FileId root, const Secret& secret);
// Removes them. What another process locks meanwhile stays.
IoStatus RemoveUnread(Storage& storage, FileId root, const Secret& secret,
                      const UnreadFiles& files);
// Removes files of SealedRows that were set aside.
IoStatus RemoveAsidesOfRows(Storage& storage, FileId root);

}  // namespace kvasir
