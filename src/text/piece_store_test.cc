#include "text/piece_store.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <thread>
#include <tuple>

#include "base/memory_meter.h"
#include "base/random.h"

namespace kvasir {
namespace {

constexpr uint64_t kMaxBytes = 64 << 10;

std::vector<TokenId> IdsOf(std::string_view text) {
  std::vector<TokenId> ids;
  for (const char c : text) ids.push_back(c);
  return ids;
}

std::vector<TokenId> Found(const PieceSpace& space, const Piece& piece) {
  std::vector<TokenId> ids;
  const bool found = space.Find(piece, &ids).has_value();
  EXPECT_EQ(found, !ids.empty());
  return ids;
}

TEST(PieceStore, FindsWhatWasKeptAndAppendsIt) {
  PieceStore store(kMaxBytes, 7);
  const PieceSpace space = store.SpaceOf("anna");
  EXPECT_TRUE(Found(space, {.text = "a text"}).empty());
  space.Keep({.text = "a text"}, IdsOf("ids"));
  std::vector<TokenId> ids = {5};
  EXPECT_TRUE(space.Find({.text = "a text"}, &ids));
  EXPECT_EQ(ids, (std::vector<TokenId>{5, 'i', 'd', 's'}));
  EXPECT_EQ(store.counts().found, 1u);
  EXPECT_EQ(store.counts().not_found, 1u);
  EXPECT_FALSE(PieceSpace());
}

TEST(PieceStore, TellsPiecesApartByTextStartFlagsAndSpecialTokens) {
  PieceStore store(kMaxBytes, 7);
  const PieceSpace space = store.SpaceOf("");
  const std::string zeros(4, '\0'), ones(4, '\1'), first("\1\0\0\0", 4), last("\0\0\0\1", 4);
  std::vector<Piece> pieces;
  for (const std::string_view text : {"abcd", "abce"}) {
    for (const std::string_view literal :
         {std::string_view(), std::string_view(zeros), std::string_view(ones),
          std::string_view(first), std::string_view(last)}) {
      for (const TextStart start : {TextStart::kBegin, TextStart::kInside, TextStart::kContinues}) {
        for (const bool parses : {false, true}) pieces.push_back({text, literal, start, parses});
      }
    }
  }
  for (size_t i = 0; i < pieces.size(); ++i) {
    EXPECT_TRUE(Found(space, pieces[i]).empty()) << i;
    space.Keep(pieces[i], std::vector<TokenId>{static_cast<TokenId>(i)});
  }
  for (size_t i = 0; i < pieces.size(); ++i) {
    EXPECT_EQ(Found(space, pieces[i]), (std::vector<TokenId>{static_cast<TokenId>(i)}));
  }
}

TEST(PieceStore, ATenantFindsItsOwnPiecesOnly) {
  PieceStore store(kMaxBytes, 7);
  const PieceSpace anna = store.SpaceOf("anna"), ben = store.SpaceOf("ben");
  anna.Keep({.text = "secret"}, IdsOf("a"));
  EXPECT_TRUE(Found(ben, {.text = "secret"}).empty());
  ben.Keep({.text = "secret"}, IdsOf("b"));
  EXPECT_EQ(Found(store.SpaceOf("anna"), {.text = "secret"}), IdsOf("a"));
  EXPECT_EQ(Found(ben, {.text = "secret"}), IdsOf("b"));
}

TEST(PieceStore, EraseTakesTheTenantsPiecesAndWhatIsUnderWay) {
  PieceStore store(kMaxBytes, 7);
  const PieceSpace before = store.SpaceOf("anna"), ben = store.SpaceOf("ben");
  before.Keep({.text = "one"}, IdsOf("1"));
  ben.Keep({.text = "one"}, IdsOf("2"));
  store.Erase("anna");
  store.Erase("no such tenant");
  EXPECT_EQ(store.counts().pieces, 1u);
  before.Keep({.text = "two"}, IdsOf("2"));  // it may have read what was forgotten
  EXPECT_EQ(store.counts().pieces, 1u);
  EXPECT_TRUE(Found(before, {.text = "one"}).empty());
  const PieceSpace after = store.SpaceOf("anna");
  after.Keep({.text = "two"}, IdsOf("2"));
  EXPECT_EQ(Found(after, {.text = "two"}), IdsOf("2"));
  EXPECT_TRUE(Found(before, {.text = "two"}).empty());
  EXPECT_EQ(Found(ben, {.text = "one"}), IdsOf("2"));
  store.EraseAll();
  EXPECT_EQ(store.counts().pieces, 0u);
  EXPECT_EQ(store.counts().bytes, 0u);
}

TEST(PieceStore, ThePieceUnusedForTheLongestTimeLeaves) {
  PieceStore store(8 << 10, 7);
  const PieceSpace space = store.SpaceOf("");
  constexpr size_t kPieces = 200;
  for (size_t i = 0; i < kPieces; ++i) {
    space.Keep({.text = std::to_string(i)}, IdsOf("x"));
    EXPECT_FALSE(Found(space, {.text = "0"}).empty());  // used in each round
  }
  const size_t left = store.counts().pieces;
  EXPECT_GT(left, 10u);
  EXPECT_LT(left, kPieces / 2);
  for (size_t i = 1; i < kPieces; ++i) {
    EXPECT_EQ(Found(space, {.text = std::to_string(i)}).empty(), i <= kPieces - left) << i;
  }
}

TEST(PieceStore, APieceAsLargeAsAGoodPartOfItIsNotKept) {
  PieceStore store(kMaxBytes, 7), none(0, 7);
  const std::string large(kMaxBytes / 8, 'x'), small(kMaxBytes / 16, 'x');
  store.SpaceOf("").Keep({.text = large}, {});
  EXPECT_EQ(store.counts().pieces, 0u);
  store.SpaceOf("").Keep({.text = small}, IdsOf("x"));
  EXPECT_EQ(store.counts().pieces, 1u);
  none.SpaceOf("").Keep({.text = "x"}, IdsOf("x"));
  EXPECT_EQ(none.counts().pieces, 0u);
}

// Nothing that it finds was not kept, it never takes more than it may, and it takes no more from
// the system than it counts.
TEST(PieceStore, EqualsAPlainModelAndStaysWithinItsBytes) {
  MemoryQuota quota(uint64_t{1} << 30);
  Random random(11);
  std::deque<std::tuple<std::string, std::string, std::vector<TokenId>>> kept;
  PieceStore store(kMaxBytes, 7);
  const auto tenant = [&] { return std::string(1, static_cast<char>('a' + random.Below(3))); };
  uint64_t held = 0;
  {
    MemoryMeter meter(quota);
    for (int i = 0; i < 4000; ++i) {
      store.SpaceOf("a").Keep({.text = std::to_string(i)}, IdsOf("xyz"));
      EXPECT_LE(store.counts().bytes, kMaxBytes);
    }
    const QuotaShare share = meter.Stop();
    held = quota.taken_bytes();
  }
  EXPECT_LE(held, store.counts().bytes + 8192);  // and a tenant
  EXPECT_GE(held, store.counts().bytes / 2);
  store.EraseAll();
  for (int i = 0; i < 20000; ++i) {
    const std::string of = tenant(), text(1 + random.Below(200), static_cast<char>('a' + i % 7));
    const auto same = std::ranges::find_if(
        kept, [&](const auto& one) { return std::get<0>(one) == of && std::get<1>(one) == text; });
    const PieceSpace space = store.SpaceOf(of);
    if (random.Below(500) == 0) {
      store.Erase(of);
      std::erase_if(kept, [&](const auto& one) { return std::get<0>(one) == of; });
    } else if (const auto ids = Found(space, {.text = text}); !ids.empty()) {
      ASSERT_NE(same, kept.end());
      ASSERT_EQ(ids, std::get<2>(*same));
    } else {
      const std::vector<TokenId> made = {i, static_cast<TokenId>(text.size())};
      if (same != kept.end()) kept.erase(same);
      space.Keep({.text = text}, made);
      kept.emplace_back(of, text, made);
    }
    ASSERT_LE(store.counts().bytes, kMaxBytes);
  }
  EXPECT_GT(store.counts().found, 500u);
}

TEST(PieceStore, ManyThreadsFindKeepAndErase) {
  PieceStore store(kMaxBytes, 7);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&store, t] {
      const std::string tenant = t % 2 == 0 ? "anna" : "ben";
      for (int i = 0; i < 2000; ++i) {
        const std::string text = std::to_string(i % 300);
        const PieceSpace space = store.SpaceOf(tenant);
        std::vector<TokenId> ids;
        if (space.Find({.text = text}, &ids)) {
          EXPECT_EQ(ids, IdsOf(text + tenant));
        } else {
          space.Keep({.text = text}, IdsOf(text + tenant));
        }
        if (i % 500 == 250) store.Erase(tenant);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_LE(store.counts().bytes, kMaxBytes);
}

}  // namespace
}  // namespace kvasir
