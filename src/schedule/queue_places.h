// QueuePlaces: how many requests of each tenant an engine holds, and the share that each may have.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>

#include "kvasir/tenant.h"

namespace kvasir {

// While more than half of the places (or of the bytes) is taken and several tenants are there, each
// may have its part of all of them, by the tenants' weights, and at least one. A tenant alone may
// have all. A tenant that was refused because the queue was full keeps its part for kWantedNs, as
// if a request of it waited: else a flood would take each place that becomes free before it asks
// again. One thread at a time.
class QueuePlaces {
 public:
  static constexpr uint64_t kWantedNs = 10'000'000'000;

  QueuePlaces(uint64_t max_requests, uint64_t max_bytes)
      : max_requests_(max_requests), max_bytes_(max_bytes) {}

  // Makes a place, so that Take cannot throw until the next call of anything else.
  void MakeRoomFor(const std::string& tenant) { tenants_[tenant]; }
  void Take(const std::string& tenant, uint64_t requests, uint64_t bytes);
  // Gives back the place of one request of so many bytes. REQUIRES: it was taken.
  void Give(const std::string& tenant, uint64_t bytes);
  // Notes that there was no place for a request, or no memory.
  void NoteRefusal(const std::string& tenant, uint64_t now_ns);

  uint64_t requests() const { return requests_; }
  uint64_t requests_of(const std::string& tenant) const;
  // Returns whether so many more would be more than the tenant's share. O(tenants) while more than
  // half is taken, else O(1).
  bool ExceedsShare(const std::string& tenant, uint64_t requests, uint64_t bytes,
                    const TenantTable& rules, uint64_t now_ns) const;

 private:
  struct Tenant {
    uint64_t requests = 0, bytes = 0;
    uint64_t wanted_until_ns = 0;
  };

  const uint64_t max_requests_, max_bytes_;
  uint64_t requests_ = 0, bytes_ = 0;
  std::unordered_map<std::string, Tenant> tenants_;
};

}  // namespace kvasir
