#include "engine/draft_parts.h"

#include <gtest/gtest.h>

#include <string>

#include "import/model_files_for_test.h"

namespace kvasir {
namespace {

EngineOptions WithDraft() {
  EngineOptions options;
  options.shape = options.draft_shape = "tiny";
  options.kv_memory_bytes = 16 << 20;
  options.threads = 1;
  return options;
}

TEST(DraftParts, TheLeastMemoryOfTheirCacheHasNoCursors) {
  EngineOptions options = WithDraft();
  options.draft_kv_memory_bytes = 1024;
  const auto refused = Assemble(options, Need::kShapes);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().field, "draft_kv_memory");
  const std::string& message = refused.error().message;
  EXPECT_NE(message.find("and 0 of cursors"), std::string::npos) << message;
  const std::string before = "give at least ";
  const uint64_t least_kib = std::stoul(message.substr(message.find(before) + before.size()));
  options.draft_kv_memory_bytes = least_kib * 1024;
  auto least = Assemble(options, Need::kShapes);
  ASSERT_TRUE(least) << least.error().text();
  EXPECT_LE(least->plan.draft_kv_bytes, options.draft_kv_memory_bytes);
  const auto cache = KvCache::Create(std::move(least->draft->cache));
  ASSERT_TRUE(cache) << cache.error().text();
  (*cache)->CheckInvariants();  // its plan is what it has allocated
  EXPECT_EQ((*cache)->plan().total_bytes(), least->plan.draft_kv_bytes);
  EXPECT_EQ((*cache)->plan().cursor_bytes, 0u);
  options.draft_kv_memory_bytes = (least_kib - 1) * 1024;
  EXPECT_FALSE(Assemble(options, Need::kShapes));
}

TEST(DraftParts, TheFleetsStoreIsTheModelsAlone) {
  const TemporaryFolder folder;
  const std::string secret = folder.path() / "fleet";
  ASSERT_TRUE(MakeSecret(secret));
  EngineOptions options = WithDraft();
  options.remote = RemoteOptions{.url = "redis://localhost:1", .fleet_secret = secret};
  options.block_tokens = 1024;  // more than the rows of the draft model's steps
  const auto assembly = Assemble(options, Need::kShapes);
  ASSERT_TRUE(assembly) << assembly.error().text();
  EXPECT_TRUE(assembly->remote);
  EXPECT_FALSE(assembly->draft->remote);
  EXPECT_EQ(assembly->draft->cache.step_tokens, assembly->draft->runner.max_rows);
}

}  // namespace
}  // namespace kvasir
