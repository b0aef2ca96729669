#include "cache/prefix_forgetter.h"

#include <gtest/gtest.h>

#include "cache/cache_parts_for_test.h"

namespace kvasir {
namespace {

class PrefixForgetterTest : public CacheParts {
 protected:
  void SetUp() override {
    CacheParts::SetUp();
    forgetter_ = std::make_unique<PrefixForgetter>(PrefixForgetter::Parts{.layout = layout_,
                                                                          .index = index_,
                                                                          .cursors = cursors_,
                                                                          .namespaces = spaces_,
                                                                          .residency = *residency_,
                                                                          .owners = *owners_});
    first_ = Add(alice_, Root(alice_), 1);
    Add(alice_, first_, 2);
    Add(alice_, first_, 3);
    Add(bob_, Root(bob_), 1);
  }
  static Tokens Prompt(uint64_t second) { return Join(TokensFrom(1, 16), TokensFrom(second, 16)); }

  std::unique_ptr<PrefixForgetter> forgetter_;
  NodeId first_{};
};

TEST_F(PrefixForgetterTest, ForgetsTheBlockOfTheTextAndLeavesItsSiblings) {
  const ForgottenText forgotten = forgetter_->Forget(alice_, Prompt(2), 20, 25, {});
  EXPECT_EQ(forgotten.erased_blocks, 1u);
  EXPECT_EQ(forgotten.erased_tokens, 16u);
  EXPECT_TRUE(index_.FindChild(first_, TokensFrom(3, 16)));
  EXPECT_FALSE(owners_->IsZeroed(forgotten.point));
  owners_->Zero(kPartsBlocks * layout_.block_bytes());
  EXPECT_TRUE(owners_->IsZeroed(forgotten.point));
}

TEST_F(PrefixForgetterTest, ForgetsAllThatComesAfterTheText) {
  EXPECT_EQ(forgetter_->Forget(alice_, Prompt(2), 0, 3, {}).erased_blocks, 3u);
  EXPECT_FALSE(index_.has_children(Root(alice_)));
  EXPECT_TRUE(index_.has_children(Root(bob_)));
}

TEST_F(PrefixForgetterTest, KeepsTheBlocksOfAnotherPrompt) {
  const Tokens ids = Prompt(2);
  const KeptPrompts kept({Prompt(3)}, ids);
  const ForgottenText forgotten = forgetter_->Forget(alice_, ids, 0, 31, kept);
  EXPECT_EQ(forgotten.erased_blocks, 1u);
  EXPECT_EQ(forgotten.kept_shared, 1u);
  EXPECT_TRUE(index_.FindChild(first_, TokensFrom(3, 16)));
}

TEST_F(PrefixForgetterTest, ForgetsANamespaceAndMakesItsHoldsStale) {
  const NodeHold hold(residency_.get(), alice_, first_);
  forgetter_->Forget(alice_);
  EXPECT_FALSE(hold.is_current());
  EXPECT_FALSE(index_.has_children(Root(alice_)));
  EXPECT_TRUE(index_.has_children(Root(bob_)));
  EXPECT_EQ(pool_->num_idle(), 1u);
}

}  // namespace
}  // namespace kvasir
