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
