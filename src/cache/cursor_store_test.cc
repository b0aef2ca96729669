#include "cache/cursor_store.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include "base/begins_with.h"
#include "base/random.h"
#include "base/rounds_for_test.h"

namespace kvasir {
namespace {

constexpr uint32_t kCursors = 5, kCursorBlock = 4, kCursorHidden = 3;

// A Cursor as the twin keeps it.
struct KeptCursor {
  NodeId parent;
  std::vector<TokenId> tail;
  std::vector<float> hidden;
};

// A store of Cursors as a list, the one that was kept or used last at its end.
class CursorTwin {
 public:
  void Keep(KeptCursor cursor) {
    std::erase_if(all_, [&](const KeptCursor& one) {
      return one.parent == cursor.parent && one.tail == cursor.tail;
    });
    if (all_.size() == kCursors) all_.erase(all_.begin());
    all_.push_back(std::move(cursor));
  }
  const KeptCursor* Find(NodeId parent, const std::vector<TokenId>& tail) {
    const auto found = std::ranges::find_if(
        all_, [&](const KeptCursor& one) { return one.parent == parent && one.tail == tail; });
    if (found == all_.end()) return nullptr;
    std::rotate(found, found + 1, all_.end());
    return &all_.back();
  }
  template <typename Leaves>
  void Drop(NodeId parent, Leaves&& leaves) {
    std::erase_if(all_,
                  [&](const KeptCursor& one) { return one.parent == parent && leaves(one.tail); });
  }
  const std::vector<KeptCursor>& all() const { return all_; }

 private:
  std::vector<KeptCursor> all_;
};

// Tails of two different tokens begin alike often.
std::vector<TokenId> RandomTail(Random& random) {
  std::vector<TokenId> tail(random.Below(kCursorBlock));
  for (TokenId& token : tail) token = static_cast<TokenId>(random.Below(2));
  return tail;
}

bool StartsWith(const std::vector<TokenId>& whole, const std::vector<TokenId>& beginning) {
  return BeginsWith(std::span(whole), std::span(beginning));
}

void ExpectSameCursors(const CursorStore& store, const CursorTwin& twin) {
  ASSERT_EQ(store.num_cursors(), twin.all().size());
  std::vector<NodeId> parents = store.Parents(), expected;
  for (const KeptCursor& one : twin.all()) expected.push_back(one.parent);
  std::ranges::sort(parents);
  std::ranges::sort(expected);
  ASSERT_EQ(parents, expected);
}

TEST(CursorStore, DoesWhatAListDoes) {
  constexpr uint64_t kSeed = 12;
  SCOPED_TRACE(kSeed);
  Random random(kSeed);
  CursorStore store(kCursors, kCursorBlock, kCursorHidden);
  EXPECT_EQ(store.allocated_bytes(), CursorStore::BytesFor(kCursors, kCursorBlock, kCursorHidden));
  CursorTwin twin;
  uint32_t num_found = 0;
  for (int step = 0; step < Rounds(20'000, 2'000); ++step) {
    const NodeId parent{static_cast<uint32_t>(random.Below(3))};
    const std::vector<TokenId> tail = RandomTail(random);
    switch (random.Below(8)) {
      case 0:
        store.Drop(parent);
        twin.Drop(parent, [](const auto&) { return true; });
        break;
      case 1:
        store.DropWith(parent, tail);
        twin.Drop(parent, [&](const auto& other) { return StartsWith(other, tail); });
        break;
      case 2: {
        const size_t least = random.Below(kCursorBlock);
        store.DropWithin(parent, tail, least);
        twin.Drop(parent, [&](const auto& other) {
          return other.size() >= least && StartsWith(tail, other);
        });
        break;
      }
      case 3:
      case 4: {
        const auto found = store.Find(parent, tail);
        const KeptCursor* const expected = twin.Find(parent, tail);
        ASSERT_EQ(found.has_value(), expected != nullptr);
        if (found) {
          ASSERT_TRUE(std::ranges::equal(*found, expected->hidden));
          ++num_found;
        }
        break;
      }
      default: {
        const auto value = static_cast<float>(step);
        KeptCursor made{parent, tail, {value, value + 0.25f, value + 0.5f}};
        store.Keep(parent, tail, made.hidden);
        twin.Keep(std::move(made));
      }
    }
    ExpectSameCursors(store, twin);
  }
  EXPECT_GT(num_found, Rounds(50u, 20u));
}

TEST(CursorStore, WithoutPlacesItKeepsNothing) {
  CursorStore store(0, kCursorBlock, kCursorHidden);
  const std::vector<float> hidden(kCursorHidden, 1);
  store.Keep(NodeId{1}, {}, hidden);
  EXPECT_FALSE(store.Find(NodeId{1}, {}));
  EXPECT_EQ(store.num_cursors(), 0u);
}

}  // namespace
}  // namespace kvasir
