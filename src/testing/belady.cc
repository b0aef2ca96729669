#include "testing/belady.h"

#include <iterator>
#include <set>
#include <unordered_map>
#include <utility>

#include "base/check.h"

namespace kvasir {

uint64_t BeladyHits(std::span<const std::vector<uint32_t>> prompts, uint32_t num_blocks) {
  KV_CHECK(num_blocks > 0);
  std::vector<uint32_t> references;
  for (const auto& prompt : prompts) {
    references.insert(references.end(), prompt.begin(), prompt.end());
  }
  const size_t count = references.size();
  // The next reference to the same block, for each reference; after all others when there is none.
  std::vector<size_t> next(count);
  std::unordered_map<uint32_t, size_t> seen;
  for (size_t i = count; i-- > 0;) {
    const auto [it, is_last] = seen.try_emplace(references[i], i);
    next[i] = is_last ? count + i : std::exchange(it->second, i);
  }
  std::set<size_t> resident;  // by next reference, which is unique for each block
  uint64_t hits = 0;
  for (size_t i = 0; i < count; ++i) {
    if (resident.erase(i) == 1) {
      ++hits;
    } else if (resident.size() == num_blocks) {
      resident.erase(std::prev(resident.end()));
    }
    resident.insert(next[i]);
  }
  return hits;
}

}  // namespace kvasir
