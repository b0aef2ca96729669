// TenantParts: what a store has of each tenant, which requests may hold longer than the store.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

namespace kvasir {

// Parts by the names of tenants. Part::is_erased is true from when a part is removed: requests that
// hold it by then put nothing into it any more. Thread-compatible.
template <typename Part>
class TenantParts {
 public:
  // Returns a tenant's part, a new one if there is none.
  std::shared_ptr<Part> Of(std::string_view tenant) {
    const auto found = parts_.find(tenant);
    if (found != parts_.end()) return found->second;
    return parts_.emplace(tenant, std::make_shared<Part>()).first->second;
  }
  // Removes a tenant's part and returns it; nullptr: there is none.
  std::shared_ptr<Part> Take(std::string_view tenant) { return TakeAt(parts_.find(tenant)); }
  // Does the same with any tenant's; nullptr: there is none any more.
  std::shared_ptr<Part> TakeAny() { return TakeAt(parts_.begin()); }

 private:
  using Parts = std::map<std::string, std::shared_ptr<Part>, std::less<>>;

  std::shared_ptr<Part> TakeAt(Parts::iterator at) {
    if (at == parts_.end()) return nullptr;
    std::shared_ptr<Part> part = std::move(at->second);
    parts_.erase(at);
    part->is_erased = true;
    return part;
  }

  Parts parts_;
};

}  // namespace kvasir
