#include "engine/erased_owners.h"

#include <algorithm>

namespace kvasir {

void ErasedOwners::Begin(const ErasedOwner& erased) {
  if (!erased.elsewhere) return;
  Epochs& epochs = owners_[erased.owner];
  epochs.wanted = std::max(epochs.wanted, erased.epoch);
}

std::optional<ErasedOwner> ErasedOwners::EndCache(const ErasedOwner& erased) {
  const auto owner = owners_.find(erased.owner);
  if (owner == owners_.end()) return erased;
  owner->second.cache = std::max(owner->second.cache, erased.epoch);
  return NoteOf(owner);
}

std::optional<ErasedOwner> ErasedOwners::EndOthers(const ErasedElsewhere& erased) {
  const auto owner = owners_.find(erased.owner);
  if (owner == owners_.end()) return std::nullopt;
  owner->second.others = std::max(owner->second.others, erased.epoch);
  return NoteOf(owner);
}

std::vector<ErasedElsewhere> ErasedOwners::List() const {
  std::vector<ErasedElsewhere> list;
  for (const auto& [owner, epochs] : owners_) {
    if (epochs.others < epochs.wanted) list.push_back({owner, epochs.wanted});
  }
  return list;
}

std::optional<ErasedOwner> ErasedOwners::NoteOf(Owners::iterator owner) {
  const Epochs epochs = owner->second;
  if (std::min(epochs.cache, epochs.others) < epochs.wanted) return std::nullopt;
  const ErasedOwner note{.owner = owner->first, .epoch = epochs.cache, .elsewhere = true};
  owners_.erase(owner);
  return note;
}

}  // namespace kvasir
