// Treaps in arrays: a node is a number, and nodes[number] has its `left` and `right`.
#pragma once

#include <cstdint>

namespace kvasir {

// No node. ("Randomized search trees", Seidel and Aragon, 1996: the caller's order from left to
// right, and a heap by priorities.)
inline constexpr uint32_t kNoTreapNode = ~uint32_t{0};

// Joins two treaps, where all nodes of `left` come before those of `right`, and returns the root.
// O(depth).
template <typename Nodes, typename Priority>
uint32_t MergeTreaps(Nodes& nodes, uint32_t left, uint32_t right, Priority&& priority) {
  uint32_t root = kNoTreapNode;
  uint32_t* link = &root;
  while (left != kNoTreapNode && right != kNoTreapNode) {
    if (priority(left) > priority(right)) {
      *link = left;
      link = &nodes[left].right;
      left = *link;
    } else {
      *link = right;
      link = &nodes[right].left;
      right = *link;
    }
  }
  *link = left != kNoTreapNode ? left : right;
  return root;
}

// Parts a treap: `right` gets the nodes that `is_right` says, `left` all others. REQUIRES: after
// one that is right only such nodes come. O(depth).
template <typename Nodes, typename IsRight>
void SplitTreap(Nodes& nodes, uint32_t tree, IsRight&& is_right, uint32_t* left, uint32_t* right) {
  while (tree != kNoTreapNode) {
    if (is_right(tree)) {
      *right = tree;
      right = &nodes[tree].left;
      tree = *right;
    } else {
      *left = tree;
      left = &nodes[tree].right;
      tree = *left;
    }
  }
  *left = *right = kNoTreapNode;
}

}  // namespace kvasir
