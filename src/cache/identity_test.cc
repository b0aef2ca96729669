#include "cache/identity.h"

#include <gtest/gtest.h>

#include <set>

namespace kvasir {
namespace {

TEST(Identity, ChangesWithEveryPart) {
  std::set<Identity> seen;
  const auto is_new = [&](const IdentityParts& parts) {
    return seen.insert(IdentityOf(parts)).second;
  };
  const IdentityParts parts{.config = "llama", .kv_format = "f16", .numerics = "portable-1"};
  EXPECT_TRUE(is_new(parts));
  EXPECT_FALSE(is_new(parts));
  for (auto part : {&IdentityParts::weights, &IdentityParts::adapter, &IdentityParts::tokenizer}) {
    IdentityParts changed = parts;
    (changed.*part)[31] = 1;
    EXPECT_TRUE(is_new(changed));
  }
  for (auto part : {&IdentityParts::config, &IdentityParts::kv_format, &IdentityParts::layout,
                    &IdentityParts::numerics}) {
    IdentityParts changed = parts;
    (changed.*part) += 'x';
    EXPECT_TRUE(is_new(changed));
  }
}

TEST(Identity, DoesNotMoveBytesFromOnePartToTheNext) {
  EXPECT_NE(IdentityOf({.kv_format = "f1", .layout = "6"}),
            IdentityOf({.kv_format = "f16", .layout = ""}));
}

}  // namespace
}  // namespace kvasir
