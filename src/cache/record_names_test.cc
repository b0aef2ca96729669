#include "cache/record_names.h"

#include <gtest/gtest.h>

#include "cache/cache_driver_for_test.h"

namespace kvasir {
namespace {

BlockKey Key(uint8_t name) {
  BlockKey key{};
  key.fill(name);
  return key;
}

TEST(RecordNames, ARecordNeedsTheOneBeforeItOrThatOfFull) {
  const KvLayout layout = LayoutOf({0, 20});
  const Tokens tokens = TokensFrom(1, 16);
  const auto after = [&](uint32_t group, bool is_first) {
    return RecordFactsOf(layout, Key(2), Key(1), is_first, group, tokens, {}).after;
  };
  EXPECT_EQ(after(0, /*is_first=*/true), std::nullopt);
  EXPECT_EQ(after(0, /*is_first=*/false), RecordNameOf(layout, Key(1), 0));
  EXPECT_EQ(after(1, /*is_first=*/true), RecordNameOf(layout, Key(2), 0));
  EXPECT_EQ(after(1, /*is_first=*/false), RecordNameOf(layout, Key(2), 0));
  const KvLayout windows = LayoutOf({20});  // nothing to depend on
  EXPECT_FALSE(RecordFactsOf(windows, Key(2), Key(1), false, 0, tokens, {}).after);
}

TEST(RecordNames, NameAGroupByItsKindAndPart) {
  const KvLayout layout = LayoutOf({0, 0, 20});
  EXPECT_EQ(RecordNameOf(layout, Key(1), 1),
            (RecordName{.key = Key(1), .layer_group = 0, .part = 1}));
  EXPECT_EQ(RecordNameOf(layout, Key(1), 2),
            (RecordName{.key = Key(1), .layer_group = 1, .part = 0}));
}

TEST(RecordNames, ForgettingNamesThePathFromTheFirstTokenAndWhatComesAfterTheLast) {
  const KvLayout layout = TinyLayout();
  const Tokens ids = TokensFrom(1, 50);
  const BlockKey root = Key(9);
  const ForgetFacts facts = ForgetFactsOf(layout, {}, root, ids, 20, 40, nullptr);
  const HmacKey hmac(root);
  const BlockKey first = ChildKey(hmac, root, std::span(ids).first(16));
  const BlockKey second = ChildKey(hmac, first, std::span(ids).subspan(16, 16));
  EXPECT_EQ(facts.parent, second);
  EXPECT_EQ(facts.path, std::vector{second});  // not the block before token 20
  EXPECT_EQ(facts.tokens, Tokens(ids.begin() + 32, ids.begin() + 41));
  EXPECT_FALSE(facts.is_first);
  EXPECT_TRUE(facts.has_chains);
  EXPECT_FALSE(facts.kept);
  EXPECT_TRUE(ForgetFactsOf(layout, {}, root, ids, 3, 9, nullptr).is_first);
}

TEST(RecordNames, ForgettingKeepsTheBlocksOfOtherPromptsFromTheTextOn) {
  const KvLayout layout = TinyLayout();
  const Tokens ids = TokensFrom(1, 50);
  const BlockKey root = Key(9);
  const Tokens other = Join(First(ids, 35), TokensFrom(2, 20));
  const auto kept =
      std::make_shared<const KeptPrompts>(std::vector<Tokens>{other, First(ids, 10)}, ids);
  const ForgetFacts facts = ForgetFactsOf(layout, {}, root, ids, 20, 40, kept);
  ASSERT_TRUE(facts.kept);
  const HmacKey hmac(root);
  const BlockKey first = ChildKey(hmac, root, std::span(other).first(16));
  const BlockKey second = ChildKey(hmac, first, std::span(other).subspan(16, 16));
  const BlockKey third = ChildKey(hmac, second, std::span(other).subspan(32, 16));
  EXPECT_EQ(facts.kept(), (std::vector{second, third}));
}

}  // namespace
}  // namespace kvasir
