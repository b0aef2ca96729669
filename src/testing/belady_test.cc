#include "testing/belady.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "base/random.h"

namespace kvasir {
namespace {

// Finds the most hits from reference `at` on by trying every victim.
class EveryVictim {
 public:
  EveryVictim(std::vector<uint32_t> references, size_t num_blocks)
      : references_(std::move(references)), num_blocks_(num_blocks) {}

  uint64_t Most(size_t at, const std::set<uint32_t>& resident) {
    if (at == references_.size()) return 0;
    const auto key = std::pair(at, resident);
    if (const auto it = known_.find(key); it != known_.end()) return it->second;
    const uint32_t block = references_[at];
    uint64_t most = 0;
    if (resident.contains(block)) {
      most = 1 + Most(at + 1, resident);
    } else {
      std::set<uint32_t> with = resident;
      with.insert(block);
      if (with.size() <= num_blocks_) {
        most = Most(at + 1, with);
      } else {
        for (const uint32_t victim : resident) {
          std::set<uint32_t> left = with;
          left.erase(victim);
          most = std::max(most, Most(at + 1, left));
        }
      }
    }
    return known_[key] = most;
  }

 private:
  std::vector<uint32_t> references_;
  size_t num_blocks_;
  std::map<std::pair<size_t, std::set<uint32_t>>, uint64_t> known_;
};

TEST(BeladyHits, AreTheMostThatAnyChoiceOfVictimsHas) {
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Random random(seed);
    std::vector<std::vector<uint32_t>> prompts(6);
    std::vector<uint32_t> all;
    for (auto& prompt : prompts) {
      for (uint64_t i = random.Below(5); i > 0; --i) {
        prompt.push_back(static_cast<uint32_t>(random.Below(6)));
      }
      all.insert(all.end(), prompt.begin(), prompt.end());
    }
    for (uint32_t num_blocks = 1; num_blocks <= 4; ++num_blocks) {
      EXPECT_EQ(BeladyHits(prompts, num_blocks), EveryVictim(all, num_blocks).Most(0, {}));
    }
  }
}

TEST(BeladyHits, AreAllRepetitionsWhereEverythingFits) {
  EXPECT_EQ(BeladyHits(std::vector<std::vector<uint32_t>>{{1, 2, 3}, {1, 2, 4}, {1}}, 4), 3u);
  EXPECT_EQ(BeladyHits({}, 4), 0u);
}

}  // namespace
}  // namespace kvasir
