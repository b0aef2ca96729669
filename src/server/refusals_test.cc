#include "server/refusals.h"

#include <gtest/gtest.h>

namespace kvasir {
namespace {

TEST(Refusals, OnlyTheOperatorAsksAboutOtherTenants) {
  const auto status = [](const Credentials& keys, const Caller& caller) {
    const auto refused = CheckAdmin(keys, "/metrics", caller);
    return refused ? refused->status : 200;
  };
  const Credentials none({}, std::nullopt), one({"a"}, std::nullopt), two({"a", "b"}, std::nullopt),
      admins({}, "root");
  const Caller tenant{.tenant = "t", .entry = nullptr},
      admin{.tenant = std::nullopt, .is_admin = true, .entry = nullptr};
  EXPECT_EQ(status(none, tenant), 200);
  EXPECT_EQ(status(one, tenant), 200);
  EXPECT_EQ(status(two, tenant), 403);
  EXPECT_EQ(status(two, admin), 200);
  EXPECT_EQ(status(admins, tenant), 401) << "only the admin's key is asked for";
  EXPECT_EQ(NoTenant().status, 403);
  EXPECT_EQ(NoValidKey().status, 401);
}

}  // namespace
}  // namespace kvasir
