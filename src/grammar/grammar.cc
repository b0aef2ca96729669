#include "grammar/grammar.h"

#include <algorithm>
#include <atomic>
#include <bit>

namespace kvasir {
namespace {

uint64_t NextGrammarId() {
  static std::atomic<uint64_t> next{0};
  return next.fetch_add(1, std::memory_order_relaxed);  // only distinct, in no order
}

}  // namespace

Grammar::Grammar() : id_(NextGrammarId()) {}

uint64_t Grammar::bytes() const {
  return nodes_.capacity() * sizeof(Node) + first_sets_.capacity() * sizeof(ByteSet) +
         edges_.capacity() * sizeof(Edge) + calls_.capacity() * sizeof(Call) +
         twins_.capacity() * sizeof(NodeTwin) + sizeof(Grammar);
}

bool Grammar::is_wide(NodeId node) const {
  int num = 0;
  for (const uint64_t word : first(node)) num += std::popcount(word);
  return num >= kWide;
}

bool Grammar::SameAfter(NodeId a, NodeId b, uint8_t byte) const {
  const auto leads = [&](const Edge& edge) { return edge.first <= byte && byte <= edge.last; };
  const auto reads = [&](const Call& call) { return Has(first(call.start), byte); };
  const auto same = [](const auto& of_a, const auto& of_b, const auto& counts, const auto& equal) {
    auto x = of_a.begin();
    auto y = of_b.begin();
    while (true) {
      x = std::find_if(x, of_a.end(), counts);
      y = std::find_if(y, of_b.end(), counts);
      if (x == of_a.end() || y == of_b.end()) return x == of_a.end() && y == of_b.end();
      if (!equal(*x++, *y++)) return false;
    }
  };
  return same(edges(a), edges(b), leads,
              [](const Edge& x, const Edge& y) { return x.to == y.to; }) &&
         same(calls(a), calls(b), reads,
              [](const Call& x, const Call& y) { return x.start == y.start && x.to == y.to; });
}

}  // namespace kvasir
