#include "base/tenant_parts.h"

#include <gtest/gtest.h>

namespace kvasir {
namespace {

struct NumberedPart {
  int number = 0;
  bool is_erased = false;
};

TEST(TenantParts, ATenantHasOnePartUntilItIsErased) {
  TenantParts<NumberedPart> parts;
  const auto first = parts.Of("a");
  first->number = 1;
  EXPECT_EQ(parts.Of("a"), first);
  EXPECT_NE(parts.Of("b"), first);
  EXPECT_EQ(parts.Take("c"), nullptr);
  EXPECT_FALSE(first->is_erased);
  EXPECT_EQ(parts.Take("a"), first);
  EXPECT_TRUE(first->is_erased) << "a request that holds it puts nothing into it any more";
  EXPECT_EQ(parts.Take("a"), nullptr);
  EXPECT_EQ(parts.Of("a")->number, 0) << "a new one, as for a new tenant";
  int num_taken = 0;
  for (; const auto part = parts.TakeAny(); ++num_taken) EXPECT_TRUE(part->is_erased);
  EXPECT_EQ(num_taken, 2);
}

}  // namespace
}  // namespace kvasir
