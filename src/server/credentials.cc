#include "server/credentials.h"

#include <openssl/crypto.h>
#include <strings.h>

#include <algorithm>

namespace kvasir {
namespace {

constexpr std::string_view kScheme = "Bearer ";

std::string_view KeyOf(std::string_view authorization, std::string_view api_key) {
  if (authorization.size() < kScheme.size() ||
      strncasecmp(authorization.data(), kScheme.data(), kScheme.size()) != 0) {
    return api_key;
  }
  return authorization.substr(kScheme.size());
}

bool Same(const Digest& a, const Digest& b) {
  return CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace

Credentials::Credentials(const std::vector<std::string>& api_keys, const std::string& admin_key) {
  for (const std::string& key : api_keys) {
    const Digest digest = Sha256Of(key);
    // The same key twice is one tenant.
    if (std::find(digests_.begin(), digests_.end(), digest) == digests_.end()) {
      digests_.push_back(digest);
    }
  }
  if (!admin_key.empty()) admin_ = Sha256Of(admin_key);
}

std::optional<Caller> Credentials::CallerOf(std::string_view authorization,
                                            std::string_view api_key) const {
  const Digest given = Sha256Of(KeyOf(authorization, api_key));
  bool known = false;
  for (const Digest& digest : digests_) known |= Same(given, digest);
  Caller caller;
  caller.is_admin = admin_.has_value() && Same(given, *admin_);
  if (known) {
    caller.tenant = "key-" + ToHex(given);
  } else if (digests_.empty()) {
    caller.tenant = "default";
  } else if (!caller.is_admin) {
    return std::nullopt;
  }
  return caller;
}

}  // namespace kvasir
