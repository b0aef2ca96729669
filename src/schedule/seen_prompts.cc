#include "schedule/seen_prompts.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <limits>
#include <string>

#include "base/check.h"
#include "base/random.h"

namespace kvasir {

SeenPrompts::SeenPrompts(uint64_t cache_tokens)
    : most_chunks_(static_cast<uint32_t>(std::min<uint64_t>(
          cache_tokens / kChunkTokens, std::numeric_limits<uint32_t>::max() / 2))) {}

uint32_t SeenPrompts::EpochOf(std::string_view owner) {
  return static_cast<uint32_t>(Mix64(std::hash<std::string_view>{}(owner)) % 256);
}

SeenPrompts::Beginnings SeenPrompts::Of(const HmacKey& key, std::string_view owner,
                                        std::optional<std::string_view> salt,
                                        std::span<const TokenId> prompt, const Digest& adapters) {
  std::string name = std::to_string(owner.size()) + (salt ? '+' : ':') + std::string(owner);
  if (adapters != Digest{}) name.append(adapters.begin(), adapters.end());
  const Digest digest = key.Of(std::as_bytes(std::span(name)),
                               std::as_bytes(std::span(salt.value_or(std::string_view()))));
  uint64_t start_and_key[2];
  std::memcpy(start_and_key, digest.data(), sizeof(start_and_key));
  auto [hash, token_key] = start_and_key;
  Beginnings beginnings{EpochOf(owner), static_cast<uint32_t>(prompt.size()), {}};
  beginnings.hashes.reserve(prompt.size() / kChunkTokens + 1);
  for (size_t i = 0; i < prompt.size(); ++i) {
    hash = Mix64(hash ^ token_key ^ static_cast<uint32_t>(prompt[i]));
    const bool ends = (i + 1) % kChunkTokens == 0 || i + 1 == prompt.size();
    if (ends) beginnings.hashes.push_back(hash);
  }
  return beginnings;
}

uint64_t SeenPrompts::KeyOf(const Beginnings& prompt, size_t i) const {
  return Mix64(prompt.hashes[i] ^ epochs_[prompt.owner]);
}

uint32_t SeenPrompts::SeenTokens(const Beginnings& prompt) const {
  for (size_t i = prompt.hashes.size(); i-- > 0;) {
    const uint64_t key = KeyOf(prompt, i);
    const Place& place = places_[key % kPlaces];
    if (place.check != key >> 32 || chunks_ - place.added >= most_chunks_) continue;
    return std::min(prompt.tokens, static_cast<uint32_t>(i + 1) * kChunkTokens);
  }
  return 0;
}

void SeenPrompts::Add(uint64_t key) {
  Place& place = places_[key % kPlaces];
  const auto check = static_cast<uint32_t>(key >> 32);
  if (place.check != check || chunks_ - place.added >= most_chunks_) ++chunks_;
  place = {check, chunks_};
}

void SeenPrompts::Add(const Beginnings& prompt, std::span<const uint32_t> resume_points) {
  if (resume_points.empty()) {
    for (size_t i = 0; i < prompt.hashes.size(); ++i) Add(KeyOf(prompt, i));
    return;
  }
  for (const uint32_t point : resume_points) {
    KV_CHECK(point <= prompt.tokens);
    if (point >= kChunkTokens) Add(KeyOf(prompt, point / kChunkTokens - 1));
    if (point == prompt.tokens && point > 0) Add(KeyOf(prompt, prompt.hashes.size() - 1));
  }
}

void SeenPrompts::Forget(std::string_view owner) { ++epochs_[EpochOf(owner)]; }

}  // namespace kvasir
