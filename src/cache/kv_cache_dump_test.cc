// Which of the cache's memory a core dump has.
#include <gtest/gtest.h>

#include "base/memory_flags_for_test.h"
#include "cache/cache_driver_for_test.h"
#include "tier/memory_tier_for_test.h"

namespace kvasir {
namespace {

#ifndef KVASIR_SANITIZED  // whose own memory is left out of dumps too
TEST(KvCacheDump, HasNoKvWhereItIsKeptEncryptedOnADisk) {
  KvCacheOptions options = OptionsFor(2000);
  const uint64_t before = BytesWithFlags({"dd"});
  {
    const auto cache = KvCache::Create(options);
    ASSERT_TRUE(cache);
    EXPECT_EQ(BytesWithFlags({"dd"}), before);
  }
  MemoryTier tier({.payload_bytes = options.layout.block_bytes()});
  options.tier = &tier;
  const auto cache = KvCache::Create(options);
  ASSERT_TRUE(cache);
  EXPECT_GE(BytesWithFlags({"dd"}) - before, (*cache)->plan().pool_bytes);
}
#endif

}  // namespace
}  // namespace kvasir
