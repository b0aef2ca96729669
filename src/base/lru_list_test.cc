#include "base/lru_list.h"

#include <gtest/gtest.h>

#include <list>
#include <memory>
#include <vector>

#include "base/random.h"

namespace kvasir {
namespace {

struct ByUse : LruLink {};
struct ByOwner : LruLink {};
struct Item : ByUse, ByOwner {
  explicit Item(int item_number = 0) : number(item_number) {}
  int number;
};

TEST(LruList, TheFirstIsTheOneUsedLongestAgo) {
  Item one(1), two(2), three(3);
  LruList<Item, ByUse> list;
  EXPECT_TRUE(list.empty());
  for (Item* item : {&one, &two, &three}) list.Use(*item);
  EXPECT_EQ(list.front().number, 1);
  list.Use(one);
  EXPECT_EQ(list.front().number, 2);
  list.Remove(two);
  EXPECT_FALSE(static_cast<ByUse&>(two).is_linked());
  EXPECT_EQ(list.front().number, 3);
  list.Use(two);
  list.Remove(three);
  EXPECT_EQ(list.front().number, 1);
}

TEST(LruList, AnElementIsInOneListOfEachLink) {
  Item one(1), two(2);
  LruList<Item, ByUse> by_use;
  LruList<Item, ByOwner> alices, bobs;
  by_use.Use(one);
  by_use.Use(two);
  alices.Use(one);
  bobs.Use(two);
  by_use.Use(one);
  EXPECT_EQ(by_use.front().number, 2);
  EXPECT_EQ(alices.front().number, 1);
  alices.Remove(one);
  EXPECT_TRUE(alices.empty());
  EXPECT_TRUE(static_cast<ByUse&>(one).is_linked());
}

TEST(LruList, LetsGoOfItsElementsWhenItEnds) {
  Item item(1);
  {
    LruList<Item, ByUse> list;
    list.Use(item);
  }
  EXPECT_FALSE(static_cast<ByUse&>(item).is_linked());
}

TEST(LruList, DoesWhatAListOfPointersDoes) {
  Random random(7);
  std::vector<std::unique_ptr<Item>> items;
  for (int i = 0; i < 20; ++i) items.push_back(std::make_unique<Item>(i));
  LruList<Item, ByUse> list;
  std::list<int> twin;
  for (int step = 0; step < 5000; ++step) {
    Item& item = *items[random.Below(items.size())];
    const bool was_in = static_cast<ByUse&>(item).is_linked();
    twin.remove(item.number);
    if (random.Below(3) > 0) {
      list.Use(item);
      twin.push_back(item.number);
    } else if (was_in) {
      list.Remove(item);
    }
    ASSERT_EQ(list.empty(), twin.empty());
    if (!twin.empty()) ASSERT_EQ(list.front().number, twin.front());
  }
}

}  // namespace
}  // namespace kvasir
