// API keys: who may call, and whose namespace a call works in.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/digest.h"

namespace kvasir {

// Immutable; thread-safe. Keys are compared by their digests in constant time. Each key is a tenant
// of its own; without keys everybody is "default". Nothing else of a request decides the tenant.
class Credentials {
 public:
  explicit Credentials(const std::vector<std::string>& api_keys);

  // The tenant of `Authorization: Bearer KEY` or `x-api-key: KEY`; absent: no valid key. The first
  // is asked for before the second.
  std::optional<std::string> TenantOf(std::string_view authorization,
                                      std::string_view api_key) const;
  bool required() const { return !digests_.empty(); }
  size_t num_keys() const { return digests_.size(); }

 private:
  std::vector<Digest> digests_;
};

}  // namespace kvasir
