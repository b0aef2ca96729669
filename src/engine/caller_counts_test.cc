#include "engine/caller_counts.h"

#include <gtest/gtest.h>

namespace kvasir {
namespace {

// Returns figures of an engine whose tenants are these, the first of them without a name.
EngineStats StatsOfTenants() {
  EngineStats stats;
  for (const char* name : {"", "a", "b", "c"}) stats.tenants.push_back({.name = name});
  return stats;
}

uint64_t RefusedOf(const CallerCounts& counts, size_t tenant) {
  EngineStats stats = StatsOfTenants();
  counts.AddTo(&stats);
  return stats.tenants[tenant].rejected;
}

TEST(CallerCounts, RefusalsAreCountedByReasonAndTenant) {
  CallerCounts counts(8);
  counts.CountRefusal(RejectReason::kQueueFull, "a");
  counts.CountRefusal(RejectReason::kQueueFull, "a");
  counts.CountRefusal(RejectReason::kRate, "b");
  counts.CountRefusal(RejectReason::kDraining, std::nullopt);
  EngineStats stats = StatsOfTenants();
  counts.AddTo(&stats);
  const auto by = [&](RejectReason reason) {
    return stats.requests.rejected[static_cast<size_t>(reason)];
  };
  EXPECT_EQ(by(RejectReason::kQueueFull), 2u);
  EXPECT_EQ(by(RejectReason::kRate), 1u);
  EXPECT_EQ(by(RejectReason::kDraining), 1u);
  EXPECT_EQ(by(RejectReason::kMemory), 0u);
  EXPECT_EQ(stats.tenants[0].rejected, 0u) << "a request without a key has no tenant";
  EXPECT_EQ(stats.tenants[1].rejected, 2u);
  EXPECT_EQ(stats.tenants[2].rejected, 1u);
}

TEST(CallerCounts, TenantsWithoutAPlaceAreCountedTogether) {
  CallerCounts counts(2);
  for (const char* tenant : {"a", "b", "c", "c", "a"}) {
    counts.CountRefusal(RejectReason::kRate, tenant);
  }
  EXPECT_EQ(RefusedOf(counts, 0), 2u) << "those of c";
  EXPECT_EQ(RefusedOf(counts, 1), 2u);
  EXPECT_EQ(RefusedOf(counts, 3), 0u);
  counts.KeepTenants({{"a", {}}, {"c", {}}});
  EXPECT_EQ(RefusedOf(counts, 0), 3u) << "b has left, and its refusals still count";
  EXPECT_EQ(RefusedOf(counts, 2), 0u);
  counts.CountRefusal(RejectReason::kRate, "c");
  EXPECT_EQ(RefusedOf(counts, 3), 1u) << "it has the place of b";
}

TEST(CallerCounts, ExplainedMissesAreAddedToThoseOfTheEngine) {
  CallerCounts counts(2);
  counts.CountMiss(MissReason::kDiverged, 7);
  counts.CountMiss(MissReason::kDiverged, 5);
  counts.CountVolatile(3);
  counts.CountVolatile(4);
  EngineStats stats;
  constexpr auto kDiverged = static_cast<size_t>(MissReason::kDiverged);
  stats.misses[kDiverged] = 10;
  stats.missed_tokens[kDiverged] = 100;
  counts.AddTo(&stats);
  EXPECT_EQ(stats.misses[kDiverged], 12u);
  EXPECT_EQ(stats.missed_tokens[kDiverged], 112u);
  EXPECT_EQ(stats.volatile_tokens, 7u);
  EXPECT_EQ(stats.misses[0], 0u);
}

}  // namespace
}  // namespace kvasir
