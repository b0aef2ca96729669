// API keys: who may call, and which tenant's namespace a call uses.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/digest.h"

namespace kvasir {

// Who sent a request: a tenant, the operator, or both.
struct Caller {
  std::optional<std::string> tenant;  // absent for the admin key, which has no namespace
  bool is_admin = false;
};

// Immutable; thread-safe. Keys are compared by their digests in constant time. Each key is a
// separate tenant; without keys all callers are "default". Nothing else in a request decides the
// tenant.
class Credentials {
 public:
  // `admin_key` "": no admin key.
  Credentials(const std::vector<std::string>& api_keys, const std::string& admin_key);

  // The sender of `Authorization: Bearer KEY` or `x-api-key: KEY`; absent without a valid key. The
  // first header has precedence.
  std::optional<Caller> CallerOf(std::string_view authorization, std::string_view api_key) const;
  bool required() const { return !digests_.empty(); }
  size_t num_keys() const { return digests_.size(); }  // different API keys, without the admin key
  // Whether only the admin key may read sums over all tenants. A single tenant may: they are its
  // own.
  bool sums_are_admins() const { return admin_.has_value() || num_keys() > 1; }

 private:
  std::vector<Digest> digests_;
  std::optional<Digest> admin_;
};

}  // namespace kvasir
