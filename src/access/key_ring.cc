#include "access/key_ring.h"

#include <utility>

#include "base/result.h"

namespace kvasir {

KeyRing::KeyRing(std::vector<std::string> api_keys, std::optional<std::string> admin_key,
                 uint32_t max_tenants, OnTenants on_tenants)
    : api_keys_(std::move(api_keys)),
      admin_key_(std::move(admin_key)),
      max_tenants_(max_tenants),
      on_tenants_(std::move(on_tenants)) {}

Status KeyRing::Use(const KeysFile& file) {
  KV_TRY(Credentials::Check(api_keys_, admin_key_, file));
  KV_TRY(Credentials::CheckCount(api_keys_, file, max_tenants_));
  auto next = std::make_shared<const Credentials>(api_keys_, admin_key_, file);
  KV_TRY(on_tenants_(next->Table()));
  const MutexLock lock(mutex_);
  credentials_ = std::move(next);
  return {};
}

Status KeyRing::Reload(const std::string& path) {
  const Result<KeysFile> file = ReadKeysFile(path);
  Status used = file ? Use(*file) : tl::unexpected(file.error());
  (used ? done_ : refused_).fetch_add(1, std::memory_order_relaxed);
  return used;
}

std::shared_ptr<const Credentials> KeyRing::current() const {
  const MutexLock lock(mutex_);
  return credentials_;
}

std::optional<Caller> KeyRing::CallerOf(const HttpRequest& request) const {
  return current()->CallerOf(request.authorization, request.api_key);
}

KeyRing::Reloads KeyRing::reloads() const {
  return {done_.load(std::memory_order_relaxed), refused_.load(std::memory_order_relaxed)};
}

}  // namespace kvasir
