// Adapters on one cache, at length.
#include "engine_adapters.h"

namespace kvasir {
namespace {

TEST(EngineAdapters, NoHitIsForeignInAMillionRequests) {
  AdapterHistory all;
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    const AdapterHistory counts = RunAdapterHistory(seed, 106'000);
    all.requests += counts.requests;
    all.hits += counts.hits;
    all.adapted += counts.adapted;
    all.foreign += counts.foreign;
  }
  fmt::print("requests {} hits {} adapted {} foreign {}\n", all.requests, all.hits, all.adapted,
             all.foreign);
  EXPECT_GE(all.requests, 1'000'000u);
  EXPECT_EQ(all.foreign, 0u);
  EXPECT_GT(all.hits, 200'000u);
  EXPECT_GT(all.adapted, 500'000u);
}

}  // namespace
}  // namespace kvasir
