#include "remote/remote_names.h"

#include <cstring>

#include "base/check.h"
#include "base/random.h"

namespace kvasir {

RemoteNames::RemoteNames(Arena& arena, uint32_t num_names)
    : entries_(arena.TakeArray<Entry>(num_names)), num_names_(num_names) {
  KV_CHECK(num_names >= kBucket && (num_names & (num_names - 1)) == 0);
}

RemoteNames::Entry* RemoteNames::BucketOf(const RecordName& name) const {
  uint64_t bits;
  std::memcpy(&bits, name.key.data(), sizeof(bits));
  bits = Mix64(bits ^ (uint64_t{name.layer_group} << 16 | name.part));
  return entries_ + (bits & (num_names_ / kBucket - 1)) * kBucket;
}

const RemoteNames::Entry* RemoteNames::Find(const RecordName& name) const {
  const Entry* const bucket = BucketOf(name);
  for (uint32_t i = 0; i < kBucket; ++i) {
    if (bucket[i].is_taken && bucket[i].name == name) return bucket + i;
  }
  return nullptr;
}

RemoteNames::Entry* RemoteNames::Find(const RecordName& name) {
  return const_cast<Entry*>(std::as_const(*this).Find(name));
}

RemoteNames::Entry* RemoteNames::Put(const RecordName& name, OwnerId owner) {
  Entry* taken = Find(name);
  if (taken == nullptr) {
    Entry* const bucket = BucketOf(name);
    for (uint32_t i = 0; i < kBucket; ++i) {
      Entry& one = bucket[i];
      if (one.is_writing) continue;
      const bool is_better = taken == nullptr || (!one.is_taken && taken->is_taken) ||
                             (one.is_taken == taken->is_taken && one.seen_s < taken->seen_s);
      if (is_better) taken = &one;
    }
    if (taken == nullptr) return nullptr;
    *taken = {.name = name, .is_taken = true};
  }
  taken->owner = owner;
  return taken;
}

void RemoteNames::RemoveOwner(OwnerId owner) {
  for (uint32_t i = 0; i < num_names_; ++i) {
    if (entries_[i].is_taken && entries_[i].owner == owner) entries_[i] = {};
  }
}

void RemoteNames::DoubtOwner(OwnerId owner) {
  for (uint32_t i = 0; i < num_names_; ++i) {
    if (entries_[i].is_taken && entries_[i].owner == owner) entries_[i].seen_s = 0;
  }
}

}  // namespace kvasir
