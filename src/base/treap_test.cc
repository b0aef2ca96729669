#include "base/treap.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "base/random.h"

namespace kvasir {
namespace {

struct TreapNode {
  uint32_t left = kNoTreapNode, right = kNoTreapNode;
};

uint64_t PriorityOf(uint32_t node) { return Mix64(node); }

// Adds the nodes of a treap in order, and checks that it is a heap.
void AddInOrder(const std::vector<TreapNode>& nodes, uint32_t tree, std::vector<uint32_t>* order) {
  if (tree == kNoTreapNode) return;
  for (const uint32_t below : {nodes[tree].left, nodes[tree].right}) {
    const bool is_lower = below == kNoTreapNode || PriorityOf(below) < PriorityOf(tree);
    EXPECT_TRUE(is_lower) << tree;
  }
  AddInOrder(nodes, nodes[tree].left, order);
  order->push_back(tree);
  AddInOrder(nodes, nodes[tree].right, order);
}

std::vector<uint32_t> InOrder(const std::vector<TreapNode>& nodes, uint32_t tree) {
  std::vector<uint32_t> order;
  AddInOrder(nodes, tree, &order);
  return order;
}

// Makes a treap of [begin, end), one node after the other.
uint32_t TreapOf(std::vector<TreapNode>& nodes, uint32_t begin, uint32_t end) {
  uint32_t root = kNoTreapNode;
  for (uint32_t node = begin; node < end; ++node) {
    root = MergeTreaps(nodes, root, node, PriorityOf);
  }
  return root;
}

TEST(Treap, WhatWasPartedAnywhereIsJoinedAgain) {
  constexpr uint32_t kNodes = 100;
  std::vector<uint32_t> all(kNodes);
  for (uint32_t i = 0; i < kNodes; ++i) all[i] = i;
  for (uint32_t at = 0; at <= kNodes; ++at) {
    std::vector<TreapNode> nodes(kNodes);
    const uint32_t root = TreapOf(nodes, 0, kNodes);
    ASSERT_EQ(InOrder(nodes, root), all);
    uint32_t left = 0, right = 0;
    SplitTreap(
        nodes, root, [at](uint32_t node) { return node >= at; }, &left, &right);
    EXPECT_EQ(InOrder(nodes, left), std::vector(all.begin(), all.begin() + at));
    EXPECT_EQ(InOrder(nodes, right), std::vector(all.begin() + at, all.end()));
    EXPECT_EQ(MergeTreaps(nodes, left, right, PriorityOf), root) << "its shape is of its numbers";
    EXPECT_EQ(InOrder(nodes, root), all);
  }
}

TEST(Treap, NothingIsATreapToo) {
  std::vector<TreapNode> nodes(1);
  EXPECT_EQ(MergeTreaps(nodes, kNoTreapNode, kNoTreapNode, PriorityOf), kNoTreapNode);
  EXPECT_EQ(MergeTreaps(nodes, kNoTreapNode, 0, PriorityOf), 0u);
  EXPECT_EQ(MergeTreaps(nodes, 0, kNoTreapNode, PriorityOf), 0u);
  uint32_t left = 0, right = 0;
  SplitTreap(
      nodes, kNoTreapNode, [](uint32_t) { return true; }, &left, &right);
  EXPECT_EQ(left, kNoTreapNode);
  EXPECT_EQ(right, kNoTreapNode);
}

}  // namespace
}  // namespace kvasir
