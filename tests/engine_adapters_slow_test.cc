// Adapters on one cache, at length.
#include "engine_adapters.h"

namespace kvasir {
namespace {

TEST(EngineAdapters, NoHitIsForeignInAMillionRequests) {
  AdapterHistory all;
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    const AdapterHistory counts = RunAdapterHistory(seed, 105'000);
    all.hits += counts.hits;
    all.adapted += counts.adapted;
    all.foreign += counts.foreign;
  }
  fmt::print("hits {} adapted {} foreign {}\n", all.hits, all.adapted, all.foreign);
  EXPECT_EQ(all.foreign, 0u);
  EXPECT_GT(all.hits, 200'000u);
  EXPECT_GT(all.adapted, 500'000u);
}

}  // namespace
}  // namespace kvasir
