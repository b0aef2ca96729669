#include "access/credentials.h"

#include <openssl/crypto.h>
#include <strings.h>

#include <algorithm>

#include "base/hex.h"
#include "base/result.h"

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

Credentials::Credentials(const std::vector<std::string>& api_keys,
                         const std::optional<std::string>& admin_key, const KeysFile& file) {
  for (const std::string& key : api_keys) {
    const Digest digest = Sha256Of(key);
    // The same key twice is one tenant.
    if (std::ranges::any_of(keys_, [&](const Key& k) { return k.digest == digest; })) continue;
    auto tenant = std::make_shared<TenantEntry>();
    tenant->name = "key-" + ToHex(digest);
    tenants_.push_back(tenant);
    keys_.push_back({digest, std::move(tenant)});
  }
  const size_t first = tenants_.size();
  for (const TenantEntry& tenant : file.tenants) {
    tenants_.push_back(std::make_shared<const TenantEntry>(tenant));
  }
  for (const KeyEntry& key : file.keys) {
    keys_.push_back({key.sha256, tenants_[first + key.tenant], key.admin});
  }
  if (admin_key) admin_ = Sha256Of(*admin_key);
}

Status Credentials::Check(const std::vector<std::string>& api_keys,
                          const std::optional<std::string>& admin_key, const KeysFile& file) {
  std::vector<Digest> others;
  for (const std::string& key : api_keys) others.push_back(Sha256Of(key));
  if (admin_key) others.push_back(Sha256Of(*admin_key));
  for (const KeyEntry& key : file.keys) {
    if (std::ranges::find(others, key.sha256) == others.end()) continue;
    return FailField(Code::kInvalidArgument, "keys",
                     "a key of tenant '{}' is also given as --api-key or --admin-key; a key has "
                     "one place",
                     file.tenants[key.tenant].name);
  }
  return {};
}

Status Credentials::CheckCount(const std::vector<std::string>& api_keys, const KeysFile& file,
                               uint32_t max_tenants) {
  if (api_keys.size() + file.tenants.size() <= max_tenants) return {};
  return FailField(Code::kInvalidArgument, file.tenants.empty() ? "api-key" : "keys",
                   "{} API keys and {} tenants of --keys; at most {} are allowed together",
                   api_keys.size(), file.tenants.size(), max_tenants);
}

std::optional<Caller> Credentials::CallerOf(std::string_view authorization,
                                            std::string_view api_key) const {
  const Digest given = Sha256Of(KeyOf(authorization, api_key));
  const Key* found = nullptr;
  for (const Key& key : keys_) {
    if (Same(given, key.digest)) found = &key;
  }
  Caller caller;
  caller.is_admin = (admin_.has_value() && Same(given, *admin_)) || (found && found->admin);
  if (found) {
    caller.tenant = found->tenant->name;
    caller.entry = found->tenant;
  } else if (!required()) {
    caller.tenant = "default";
  } else if (!caller.is_admin) {
    return std::nullopt;
  }
  return caller;
}

std::shared_ptr<const TenantEntry> Credentials::Find(std::string_view tenant) const {
  const auto found =
      std::ranges::find_if(tenants_, [&](const auto& entry) { return entry->name == tenant; });
  return found == tenants_.end() ? nullptr : *found;
}

TenantTable Credentials::Table() const {
  TenantTable table;
  for (const auto& tenant : tenants_) table.emplace(tenant->name, tenant->rules);
  return table;
}

}  // namespace kvasir
