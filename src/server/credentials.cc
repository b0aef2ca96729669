#include "server/credentials.h"

#include <openssl/crypto.h>
#include <strings.h>

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

}  // namespace

Credentials::Credentials(const std::vector<std::string>& api_keys) {
  for (const std::string& key : api_keys) digests_.push_back(Sha256Of(key));
}

std::optional<std::string> Credentials::TenantOf(std::string_view authorization,
                                                 std::string_view api_key) const {
  if (digests_.empty()) return "default";
  const Digest given = Sha256Of(KeyOf(authorization, api_key));
  bool known = false;
  for (const Digest& digest : digests_) {
    known |= CRYPTO_memcmp(given.data(), digest.data(), given.size()) == 0;
  }
  if (!known) return std::nullopt;
  return "key-" + ToHex(given);
}

}  // namespace kvasir
