// The file of --keys: tenants, what each may take, and the digests of their keys.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/digest.h"
#include "kvasir/status.h"
#include "kvasir/tenant.h"

namespace kvasir {

// A tenant as the server knows it.
struct TenantEntry {
  std::string name;
  std::optional<std::string> share_group;
  TenantRules rules;
  // The range of `priority`: requests are clamped to it.
  int32_t least_priority = std::numeric_limits<int32_t>::min();
  int32_t most_priority = std::numeric_limits<int32_t>::max();
  bool remote = true;  // false: its requests neither read nor write the remote tier
  uint32_t requests_per_minute = 0, tokens_per_minute = 0;  // 0: no limit
};

struct KeyEntry {
  Digest sha256;  // of the key
  size_t tenant;  // index of KeysFile::tenants
  bool admin = false;
};

// {"tenants": {NAME: {"weight": 1, "priority": [lo, hi], "kv_guaranteed": BYTES, "kv_max": BYTES,
//   "max_running": N, "max_queued": N, "requests_per_minute": N, "tokens_per_minute": N,
//   "share_group": NAME, "keys": [{"sha256": 64 hex digits, "admin": false}]}}}
// BYTES: a number, or text such as "512MiB". Every field may be absent; docs/tenants.md explains
// them.
struct KeysFile {
  std::vector<TenantEntry> tenants;
  std::vector<KeyEntry> keys;
};

inline constexpr size_t kMaxFileTenants = 256;

// Tells whether a tenant or a share group may have this name; the rule, for messages.
bool IsTenantName(std::string_view name);
inline constexpr std::string_view kTenantNameRule =
    "is not a name: give 1 to 64 letters, digits, '.', '_' or '-'";
// Returns GenerateRequest::cache_owner of the tenants of a share group. No tenant has such a name.
std::string OwnerOfGroup(std::string_view group);

// kInvalidArgument (field "keys") names the file, the place and what would be right: not a regular
// file, one that other users can read or that belongs to another user, malformed, an unknown field,
// a name or a key twice.
Result<KeysFile> ReadKeysFile(const std::string& path);
// Parses its text; `path` is for messages.
Result<KeysFile> ParseKeysFile(std::string_view text, const std::string& path);

}  // namespace kvasir
