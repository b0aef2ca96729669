#include "access/key_ring.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "base/result.h"

namespace kvasir {
namespace {

HttpRequest WithKey(std::string key) {
  HttpRequest request;
  request.api_key = std::move(key);
  return request;
}

TEST(KeyRing, AReloadReplacesTheFilesTenantsOrChangesNothing) {
  TenantTable told;
  Status answer;
  KeyRing keys({"a"}, std::nullopt, 2, [&](const TenantTable& tenants) {
    if (answer) told = tenants;
    return answer;
  });
  ASSERT_TRUE(keys.Use({}));
  EXPECT_TRUE(keys.CallerOf(WithKey("a")));
  EXPECT_FALSE(keys.CallerOf(WithKey("b")));
  EXPECT_EQ(told.size(), 1u);

  const std::string path = testing::TempDir() + "/key_ring_test.json";
  const auto write = [&](const char* text) {
    std::ofstream(path) << text;
    std::filesystem::permissions(path, std::filesystem::perms::owner_all);
  };
  write(R"({"tenants": {"x": {}}})");
  EXPECT_TRUE(keys.Reload(path));
  EXPECT_TRUE(told.contains("x"));
  const auto before = keys.current();
  write(R"({"tenants": {"y": {}, "z": {}}})");
  EXPECT_FALSE(keys.Reload(path)) << "more tenants than the engine has room for";
  write(R"({"tenants": {"y": {}}})");
  answer = Fail(Code::kInvalidArgument, "not these");
  EXPECT_FALSE(keys.Reload(path)) << "the callback refuses them";
  EXPECT_EQ(keys.current(), before);
  EXPECT_TRUE(told.contains("x"));
  EXPECT_EQ(keys.reloads().done, 1u);
  EXPECT_EQ(keys.reloads().refused, 2u);
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace kvasir
