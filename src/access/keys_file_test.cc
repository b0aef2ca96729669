#include "access/keys_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

namespace kvasir {
namespace {

const std::string kHash(64, 'a');

std::string OneTenant(const std::string& fields) {
  return R"({"tenants": {"a": {)" + fields + "}}}";
}

// Returns the error's text, without the file's name; "" where the text is accepted.
std::string Refusal(const std::string& text) {
  const auto file = ParseKeysFile(text, "keys.json");
  if (file) return "";
  EXPECT_EQ(file.error().code, Code::kInvalidArgument);
  EXPECT_EQ(file.error().field, "keys");
  EXPECT_TRUE(file.error().message.starts_with("keys.json: ")) << file.error().message;
  return file.error().message.substr(11);
}

TEST(KeysFile, ReadsEveryField) {
  const auto file = ParseKeysFile(
      R"({"tenants": {
        "a": {"weight": 2.5, "priority": [-3, 7], "kv_guaranteed": "1MiB", "kv_max": 2097152,
              "max_running": 3, "max_queued": 0, "requests_per_minute": 60,
              "tokens_per_minute": 9000, "share_group": "team",
              "keys": [{"sha256": ")" +
          kHash + R"("}, {"sha256": "B)" + std::string(63, '0') + R"(", "admin": true}]},
        "b": {}}})",
      "keys.json");
  ASSERT_TRUE(file) << file.error().message;
  ASSERT_EQ(file->tenants.size(), 2u);
  const TenantEntry& a = file->tenants[0];
  EXPECT_EQ(a.name, "a");
  EXPECT_EQ(a.share_group, "team");
  EXPECT_EQ(a.rules.cache_owner, "group/team");
  EXPECT_EQ(a.rules.weight, 2.5);
  EXPECT_EQ(a.rules.kv_guaranteed, 1u << 20);
  EXPECT_EQ(a.rules.kv_max, 2u << 20);
  EXPECT_EQ(a.rules.max_running, 3u);
  EXPECT_EQ(a.rules.max_queued, 0u);
  EXPECT_EQ(a.least_priority, -3);
  EXPECT_EQ(a.most_priority, 7);
  EXPECT_EQ(a.requests_per_minute, 60u);
  EXPECT_EQ(a.tokens_per_minute, 9000u);
  const TenantEntry& b = file->tenants[1];
  EXPECT_EQ(b.rules.weight, 1);
  EXPECT_EQ(b.rules.max_running, TenantRules::kNoLimit);
  EXPECT_FALSE(b.rules.kv_max || b.rules.cache_owner);
  ASSERT_EQ(file->keys.size(), 2u);
  EXPECT_EQ(file->keys[0].sha256[0], 0xaa);
  EXPECT_FALSE(file->keys[0].admin);
  EXPECT_EQ(file->keys[1].sha256[0], 0xb0);
  EXPECT_TRUE(file->keys[1].admin);
  EXPECT_EQ(file->keys[1].tenant, 0u);
}

TEST(KeysFile, NamesTheFieldThatIsWrong) {
  const std::pair<std::string, std::string> cases[] = {
      {R"("weight": 0)", "tenants.a.weight"},
      {R"("weight": "2")", "tenants.a.weight"},
      {R"("priority": [2, 1])", "tenants.a.priority: is not [lowest, highest]"},
      {R"("priority": [1, 2, 3])", "tenants.a.priority"},
      {R"("priority": [1.5, 2])", "tenants.a.priority"},
      {R"("priority": [0, 2147483648])", "tenants.a.priority"},
      {R"("kv_guaranteed": -1)", "tenants.a.kv_guaranteed: is not a number of bytes"},
      {R"("kv_max": "2 parsecs")", "tenants.a.kv_max: is not a number of bytes"},
      {R"("kv_guaranteed": 2, "kv_max": 1)", "tenants.a.kv_max: is less than kv_guaranteed"},
      {R"("max_running": 0)", "tenants.a.max_running"},
      {R"("max_queued": -1)", "tenants.a.max_queued"},
      {R"("requests_per_minute": 0)", "tenants.a.requests_per_minute"},
      {R"("share_group": "a b")", "tenants.a.share_group: is not a name"},
      {R"("wieght": 1)", "tenants.a: the field 'wieght' is unknown"},
      {R"("keys": {})", "tenants.a.keys: is not a list"},
      {R"("keys": ["x"])", "tenants.a.keys[0] is a string"},
      {R"("keys": [{}])", "tenants.a.keys[0].sha256 is not 64 hex digits"},
      {R"("keys": [{"sha256": "abc"}])", "tenants.a.keys[0].sha256 is not 64 hex digits"},
      {R"("keys": [{"sha256": ")" + std::string(64, 'g') + "\"}]", "is not 64 hex digits"},
      {R"("keys": [{"sha256": ")" + kHash + R"(", "admin": 1}])", "tenants.a.keys[0].admin"},
      {R"("keys": [{"sha256": ")" + kHash + R"(", "key": "x"}])",
       "tenants.a.keys[0]: the field 'key' is unknown"},
  };
  for (const auto& [fields, expected] : cases) {
    const std::string refusal = Refusal(OneTenant(fields));
    EXPECT_NE(refusal.find(expected), std::string::npos) << fields << " gave: " << refusal;
  }
}

TEST(KeysFile, RefusesWhatIsNoTableOfTenants) {
  EXPECT_TRUE(Refusal("").starts_with("the file")) << Refusal("");
  EXPECT_TRUE(Refusal("{\"tenants\": {\"a\": {").starts_with("the file"));
  for (const char* text : {"{}", "{\"tenants\": []}", "{\"tenants\": {}}"}) {
    EXPECT_TRUE(Refusal(text).starts_with("has no tenants")) << text;
  }
  EXPECT_EQ(Refusal(R"({"tenants": {"a": {}}, "more": 1})"), "the field 'more' is unknown");
  EXPECT_EQ(Refusal(R"({"tenants": {"a": 3}})"), "tenants.a is a number, not an object");
  for (const char* name : {"default", "key-1"}) {
    EXPECT_NE(Refusal(R"({"tenants": {")" + std::string(name) + R"(": {}}})").find("are taken"),
              std::string::npos);
  }
  for (const std::string& name : {std::string("a b"), std::string(65, 'n'), std::string()}) {
    EXPECT_NE(Refusal(R"({"tenants": {")" + name + R"(": {}}})").find("is not a name"),
              std::string::npos);
  }
}

TEST(KeysFile, AKeyHasOneTenant) {
  const std::string key = R"({"keys": [{"sha256": ")" + kHash + R"("}]})";
  EXPECT_EQ(Refusal(R"({"tenants": {"a": )" + key + R"(, "b": )" + key + "}}"),
            "tenants.b.keys[0].sha256 occurs twice in the file; a key has one tenant");
}

TEST(KeysFile, HasAtMost256Tenants) {
  std::string tenants = R"("t0": {})";
  for (size_t i = 1; i < kMaxFileTenants; ++i) tenants += ", \"t" + std::to_string(i) + "\": {}";
  EXPECT_EQ(Refusal("{\"tenants\": {" + tenants + "}}"), "");
  EXPECT_EQ(Refusal("{\"tenants\": {" + tenants + ", \"more\": {}}}"),
            "has 257 tenants; at most 256 are allowed");
}

TEST(KeysFile, OnlyItsOwnerMayReadTheFile) {
  const std::string path = testing::TempDir() + "/keys_file_test.json";
  std::ofstream(path) << OneTenant("");
  for (const auto& [mode, accepted] :
       {std::pair{0600, true}, {0400, true}, {0640, false}, {0604, false}, {0620, false}}) {
    ASSERT_EQ(chmod(path.c_str(), mode), 0);
    const auto file = ReadKeysFile(path);
    EXPECT_EQ(file.has_value(), accepted) << std::oct << mode;
    if (accepted || file) continue;
    EXPECT_NE(file.error().message.find("chmod 600"), std::string::npos);
  }
  std::filesystem::remove(path);
  EXPECT_FALSE(ReadKeysFile(path));
  const auto folder = ReadKeysFile(testing::TempDir());
  ASSERT_FALSE(folder);
  EXPECT_NE(folder.error().message.find("is not a regular file"), std::string::npos);
}

}  // namespace
}  // namespace kvasir
