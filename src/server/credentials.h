// API keys: who may call, and whose namespace a call works in.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/digest.h"

namespace kvasir {

// Who sent a request: a tenant, the operator, or both.
struct Caller {
  std::optional<std::string> tenant;  // absent: the admin key alone, which has no namespace
  bool is_admin = false;
};

// Immutable; thread-safe. Keys are compared by their digests in constant time. Each key is a tenant
// of its own; without keys everybody is "default". Nothing else of a request decides the tenant.
class Credentials {
 public:
  // `admin_key` "": there is none.
  Credentials(const std::vector<std::string>& api_keys, const std::string& admin_key);

  // The sender of `Authorization: Bearer KEY` or `x-api-key: KEY`; absent: no valid key. The first
  // is asked for before the second.
  std::optional<Caller> CallerOf(std::string_view authorization, std::string_view api_key) const;
  bool required() const { return !digests_.empty(); }
  size_t num_keys() const { return digests_.size(); }  // different ones, without the admin's
  // Whether sums over all tenants are for the admin key only: with one tenant they are its own.
  bool sums_are_admins() const { return admin_.has_value() || num_keys() > 1; }

 private:
  std::vector<Digest> digests_;
  std::optional<Digest> admin_;
};

}  // namespace kvasir
