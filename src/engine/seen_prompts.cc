#include "engine/seen_prompts.h"

#include <functional>

#include "base/random.h"

namespace kvasir {

std::vector<uint64_t> SeenPrompts::HashesOf(std::string_view owner, std::string_view salt,
                                            std::span<const TokenId> prompt) {
  const std::hash<std::string_view> hash_of;
  uint64_t hash = Mix64(Mix64(hash_of(owner)) ^ hash_of(salt));
  std::vector<uint64_t> hashes;
  hashes.reserve(prompt.size() / kChunkTokens);
  for (size_t i = 0; i < prompt.size(); ++i) {
    hash = Mix64(hash ^ static_cast<uint32_t>(prompt[i]));
    if ((i + 1) % kChunkTokens == 0) hashes.push_back(hash);
  }
  return hashes;
}

uint32_t SeenPrompts::SeenTokens(std::span<const uint64_t> hashes) const {
  uint32_t seen = 0;
  for (const uint64_t hash : hashes) {
    if (places_[hash % kPlaces] != hash) break;
    seen += kChunkTokens;
  }
  return seen;
}

void SeenPrompts::Add(std::span<const uint64_t> hashes) {
  for (const uint64_t hash : hashes) places_[hash % kPlaces] = hash;
}

}  // namespace kvasir
