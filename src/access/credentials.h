// Keys: who may call, and which tenant a call belongs to.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "access/keys_file.h"
#include "base/digest.h"

namespace kvasir {

// The sender of a request: a tenant, the operator, or both.
struct Caller {
  std::optional<std::string> tenant;  // absent for the admin key, which has no namespace
  bool is_admin = false;
  std::shared_ptr<const TenantEntry> entry;  // the tenant's; nullptr without one
};

// Immutable; thread-safe. Keys are compared by their digests in constant time. Each API key is a
// separate tenant; a key of the file belongs to its tenant there; without keys all callers are
// "default". Nothing else in a request decides the tenant.
class Credentials {
 public:
  // REQUIRES: no API key is in the file too.
  Credentials(const std::vector<std::string>& api_keys, const std::optional<std::string>& admin_key,
              const KeysFile& file = {});
  // kInvalidArgument: an API key or the admin key is in the file too.
  static Status Check(const std::vector<std::string>& api_keys,
                      const std::optional<std::string>& admin_key, const KeysFile& file);
  // kInvalidArgument: more tenants together than the engine has room for.
  static Status CheckCount(const std::vector<std::string>& api_keys, const KeysFile& file,
                           uint32_t max_tenants);

  // Returns the sender of `Authorization: Bearer KEY` or `x-api-key: KEY`; absent without a valid
  // key. The first header has precedence.
  std::optional<Caller> CallerOf(std::string_view authorization, std::string_view api_key) const;
  bool required() const { return !tenants_.empty(); }
  size_t num_tenants() const { return tenants_.size(); }  // with a key or an entry
  const std::vector<std::shared_ptr<const TenantEntry>>& tenants() const { return tenants_; }
  std::shared_ptr<const TenantEntry> Find(std::string_view tenant) const;  // nullptr: unknown
  TenantTable Table() const;  // the rules of all tenants
  // Tells whether only an admin key may read sums over all tenants. A single tenant may: they are
  // its own.
  bool sums_are_admins() const { return admin_.has_value() || num_tenants() > 1; }

 private:
  struct Key {
    Digest digest;
    std::shared_ptr<const TenantEntry> tenant;
    bool admin = false;
  };
  std::vector<Key> keys_;
  std::vector<std::shared_ptr<const TenantEntry>> tenants_;
  std::optional<Digest> admin_;
};

}  // namespace kvasir
