#include "access/credentials.h"

#include <gtest/gtest.h>

namespace kvasir {
namespace {

TEST(Credentials, WithoutKeysEverybodyIsOneTenant) {
  const Credentials none({}, std::nullopt);
  for (const char* key : {"", "Bearer x", "Bearer "}) {
    const auto caller = none.CallerOf(key, "");
    ASSERT_TRUE(caller);
    EXPECT_EQ(caller->tenant, "default");
    EXPECT_FALSE(caller->is_admin);
  }
  EXPECT_FALSE(none.required());
  EXPECT_FALSE(none.sums_are_admins());
}

TEST(Credentials, AKeyIsATenantInEitherHeader) {
  const Credentials two({"alpha", "beta", "alpha"}, std::nullopt);
  EXPECT_EQ(two.num_tenants(), 2u);
  EXPECT_TRUE(two.sums_are_admins());
  const auto alpha = two.CallerOf("Bearer alpha", "beta");
  ASSERT_TRUE(alpha && alpha->tenant);
  EXPECT_EQ(two.CallerOf("", "alpha")->tenant, alpha->tenant);
  EXPECT_NE(two.CallerOf("", "beta")->tenant, alpha->tenant);
  EXPECT_FALSE(alpha->is_admin);
  for (const char* wrong : {"Bearer gamma", "Bearer ", "alpha", "Bearer  alpha", ""}) {
    EXPECT_FALSE(two.CallerOf(wrong, ""));
  }
  EXPECT_FALSE(Credentials({"alpha", "alpha"}, std::nullopt).sums_are_admins());
}

TEST(Credentials, TheAdminKeyIsNoTenantUnlessItIsAnApiKeyToo) {
  const Credentials apart({"alpha"}, "root");
  EXPECT_TRUE(apart.sums_are_admins());
  EXPECT_EQ(apart.num_tenants(), 1u);
  const auto admin = apart.CallerOf("", "root");
  ASSERT_TRUE(admin);
  EXPECT_TRUE(admin->is_admin);
  EXPECT_FALSE(admin->tenant);
  EXPECT_FALSE(apart.CallerOf("", "alpha")->is_admin);
  EXPECT_FALSE(apart.CallerOf("", ""));

  const auto both = Credentials({"root", "alpha"}, "root").CallerOf("Bearer root", "");
  EXPECT_TRUE(both->is_admin && both->tenant);

  const Credentials alone({}, "root");
  EXPECT_FALSE(alone.required());
  EXPECT_TRUE(alone.sums_are_admins());
  EXPECT_FALSE(alone.CallerOf("", "")->is_admin);
  EXPECT_TRUE(alone.CallerOf("", "root")->is_admin);
  EXPECT_EQ(alone.CallerOf("", "root")->tenant, "default");
}

}  // namespace
}  // namespace kvasir
