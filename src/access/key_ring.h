// KeyRing: the credentials in force, which a reload of the file of --keys replaces.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "access/credentials.h"
#include "access/keys_file.h"
#include "base/mutex.h"
#include "http/http_message.h"

namespace kvasir {

// Thread-safe; one call of Use or Reload at a time.
class KeyRing {
 public:
  // Takes the rules of all tenants before their keys count. An error refuses the keys.
  using OnTenants = std::function<Status(const TenantTable& tenants)>;

  KeyRing(std::vector<std::string> api_keys, std::optional<std::string> admin_key,
          uint32_t max_tenants, OnTenants on_tenants);

  // Replaces the keys of the file. After an error nothing has changed.
  Status Use(const KeysFile& file);
  // Reads the file again and uses what it has.
  Status Reload(const std::string& path);
  // REQUIRES, as for CallerOf: one call of Use has succeeded.
  std::shared_ptr<const Credentials> current() const;
  // Returns the sender of a request; absent: it has no valid key.
  std::optional<Caller> CallerOf(const HttpRequest& request) const;

  struct Reloads {
    uint64_t done, refused;
  };
  Reloads reloads() const;

 private:
  const std::vector<std::string> api_keys_;
  const std::optional<std::string> admin_key_;
  const uint32_t max_tenants_;
  const OnTenants on_tenants_;
  mutable Mutex mutex_;
  std::shared_ptr<const Credentials> credentials_ KV_GUARDED_BY(mutex_);
  std::atomic<uint64_t> done_{0}, refused_{0};  // relaxed: counters
};

}  // namespace kvasir
