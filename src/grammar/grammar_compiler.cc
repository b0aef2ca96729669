// Grammar::Compile: rules to nodes.
#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <utility>

#include "base/check.h"
#include "base/result.h"
#include "grammar/grammar.h"
#include "grammar/instruction_sets.h"
#include "grammar/rule_code.h"
#include "grammar/rule_order.h"

namespace kvasir {
namespace {

using Kind = RuleCode::Kind;

// Instructions that are looked at so that a rule, and all of them, become deterministic, at most.
constexpr uint64_t kRuleSteps = 1 << 22, kSteps = 1 << 24;
// Instructions in all sets of a rule, at most. Where nodes are made one by one, each instruction
// becomes an edge (except the ends).
constexpr uint64_t kMaxInSets = 2 * kMaxGrammarEdges;

// To find twins among more nodes would take longer than their masks.
constexpr uint32_t kMaxTwinNodes = 1 << 16;
// So many edges and calls of nodes are compared for each byte, at most; others keep their masks.
constexpr uint64_t kTwinSteps = 1 << 20;

}  // namespace

// Makes the nodes of each rule that the root needs: sets of instructions that the same bytes and
// rules lead to (the subset construction), or, where these become too many, one set for each
// instruction that something leads to.
class GrammarCompiler {
 public:
  GrammarCompiler(const GrammarSource& source, const RuleCode& code, const RuleOrder& order)
      : source_(source),
        code_(code),
        order_(order),
        node_of_(code.size()),
        seen_(code.size()),
        start_(code.num_rules()) {}

  Result<std::shared_ptr<const Grammar>> Run(RuleId root);

 private:
  using Instructions = std::vector<uint32_t>;  // ascending

  struct DraftCall {
    uint32_t rule;
    Grammar::NodeId to;  // where it returns
  };
  struct Draft {
    uint32_t edges, calls;  // where its own begin; they end where the next draft's begin
    bool may_end = false;
    bool is_alive = false;  // the end can be reached
  };
  enum class Way : uint8_t { kDeterministic, kOneByOne };

  bool AddRule(uint32_t rule, Way way);
  void AddEdges(std::span<const uint32_t> set, Way way);
  void AddCalls(std::span<const uint32_t> set, Way way);
  // Returns whether the current rule has become too large: then nodes are no longer looked for.
  bool IsTooLarge() const {
    return steps_ > max_steps_ || sets_.size() > max_nodes_ ||
           sets_.num_instructions() > kMaxInSets ||
           edges_.size() + calls_.size() > kMaxGrammarEdges;
  }
  std::span<const Grammar::Edge> edges(size_t draft) const {
    const size_t end = draft + 1 < drafts_.size() ? drafts_[draft + 1].edges : edges_.size();
    return std::span(edges_).subspan(drafts_[draft].edges, end - drafts_[draft].edges);
  }
  std::span<const DraftCall> calls(size_t draft) const {
    const size_t end = draft + 1 < drafts_.size() ? drafts_[draft + 1].calls : calls_.size();
    return std::span(calls_).subspan(drafts_[draft].calls, end - drafts_[draft].calls);
  }
  // Returns the node of what can be read at these instructions.
  Grammar::NodeId NodeOf(std::span<const uint32_t> instructions);
  Grammar::NodeId NodeAt(uint32_t instruction);
  void MarkAlive(uint32_t begin);
  std::shared_ptr<const Grammar> Finish(uint32_t root);
  static std::vector<NodeTwin> TwinsOf(const Grammar& grammar);
  void FindFirstBytes(Grammar* grammar, const std::vector<Grammar::NodeId>& id_of) const;

  const GrammarSource& source_;
  const RuleCode& code_;
  const RuleOrder& order_;
  std::vector<Draft> drafts_;
  std::vector<Grammar::Edge> edges_;
  std::vector<DraftCall> calls_;
  InstructionSets sets_;  // of the rule's nodes, from first_ on
  uint32_t first_ = 0;
  std::vector<std::optional<Grammar::NodeId>> node_of_;  // of a single instruction
  std::vector<uint32_t> seen_;                           // the round in which it was seen
  uint32_t round_ = 0;
  std::vector<std::optional<Grammar::NodeId>> start_;  // of the rules
  uint64_t steps_ = 0, max_steps_ = 0, max_nodes_ = 0;
};

Grammar::NodeId GrammarCompiler::NodeOf(std::span<const uint32_t> instructions) {
  if (IsTooLarge()) return first_;
  ++round_;
  Instructions found, open(instructions.begin(), instructions.end());
  while (!open.empty()) {
    const uint32_t i = open.back();
    open.pop_back();
    if (seen_[i] == round_) continue;
    seen_[i] = round_;
    ++steps_;
    const RuleCode::Instruction& at = code_.at(i);
    if (at.kind == Kind::kFork) open.insert(open.end(), {at.to, at.other});
    if (at.kind == Kind::kCall && order_.may_be_empty(at.other)) open.push_back(at.to);
    if (at.kind != Kind::kFork && at.kind != Kind::kFail) found.push_back(i);
  }
  std::sort(found.begin(), found.end());
  return first_ + sets_.Add(found);
}

Grammar::NodeId GrammarCompiler::NodeAt(uint32_t instruction) {
  if (!node_of_[instruction]) node_of_[instruction] = NodeOf({&instruction, 1});
  return *node_of_[instruction];
}

void GrammarCompiler::AddEdges(std::span<const uint32_t> set, Way way) {
  std::array<bool, 257> cuts{};
  for (const uint32_t i : set) {
    const RuleCode::Instruction& at = code_.at(i);
    if (at.kind != Kind::kBytes) continue;
    cuts[at.first] = cuts[at.last + 1] = true;
    if (way == Way::kOneByOne) edges_.push_back({at.first, at.last, NodeAt(at.to)});
  }
  if (way == Way::kOneByOne) return;
  const size_t begin = edges_.size();
  Instructions to;
  for (uint32_t first = 0, last; first < 256 && !IsTooLarge(); first = last + 1) {
    for (last = first; !cuts[last + 1] && last < 255;) ++last;
    to.clear();
    for (const uint32_t i : set) {
      const RuleCode::Instruction& at = code_.at(i);
      if (at.kind == Kind::kBytes && at.first <= first && at.last >= last) to.push_back(at.to);
    }
    steps_ += set.size();
    if (to.empty()) continue;
    const Grammar::NodeId node = to.size() == 1 ? NodeAt(to[0]) : NodeOf(to);
    if (edges_.size() > begin && edges_.back().to == node && edges_.back().last + 1U == first) {
      edges_.back().last = static_cast<uint8_t>(last);
    } else {
      edges_.push_back({static_cast<uint8_t>(first), static_cast<uint8_t>(last), node});
    }
  }
}

void GrammarCompiler::AddCalls(std::span<const uint32_t> set, Way way) {
  std::vector<std::pair<uint32_t, uint32_t>> calls;  // rule, where it returns
  for (const uint32_t i : set) {
    const RuleCode::Instruction& at = code_.at(i);
    if (at.kind == Kind::kCall) calls.emplace_back(at.other, at.to);
  }
  std::sort(calls.begin(), calls.end());
  Instructions to;
  for (size_t i = 0; i < calls.size();) {
    const uint32_t rule = calls[i].first;
    for (to.clear(); i < calls.size() && calls[i].first == rule; ++i) {
      if (way == Way::kOneByOne) {
        calls_.push_back({rule, NodeAt(calls[i].second)});
      } else {
        to.push_back(calls[i].second);
      }
    }
    if (!to.empty()) calls_.push_back({rule, to.size() == 1 ? NodeAt(to[0]) : NodeOf(to)});
  }
}

bool GrammarCompiler::AddRule(uint32_t rule, Way way) {
  const RuleCode::Span& span = code_.rule(rule);
  const uint64_t size = span.end - span.begin;
  first_ = static_cast<uint32_t>(drafts_.size());
  const size_t edges_before = edges_.size(), calls_before = calls_.size();
  max_steps_ = way == Way::kDeterministic ? std::min(steps_ + kRuleSteps + 64 * size, kSteps)
                                          : steps_ + 4 * kMaxGrammarEdges;
  const uint64_t left = kMaxGrammarNodes - std::min(first_, kMaxGrammarNodes);
  max_nodes_ = way == Way::kDeterministic ? std::min(64 + 4 * size, left) : 2 * size;
  sets_ = {};
  std::fill(node_of_.begin() + span.begin, node_of_.begin() + span.end, std::nullopt);
  node_of_[RuleCode::kNowhere].reset();  // it is in no rule's span
  start_[rule] = NodeAt(span.start);
  Instructions set;
  for (uint32_t i = 0; i < sets_.size() && !IsTooLarge(); ++i) {
    set.assign(sets_.at(i).begin(), sets_.at(i).end());  // sets_ grows
    drafts_.push_back({static_cast<uint32_t>(edges_.size()), static_cast<uint32_t>(calls_.size()),
                       !set.empty() && code_.at(set[0]).kind == Kind::kEnd});
    AddEdges(set, way);
    AddCalls(set, way);
  }
  if (IsTooLarge()) {
    drafts_.resize(first_);
    edges_.resize(edges_before);
    calls_.resize(calls_before);
    return false;
  }
  sets_ = {};  // the next steps need its memory
  MarkAlive(first_);
  return true;
}

void GrammarCompiler::MarkAlive(uint32_t begin) {
  const auto num = static_cast<uint32_t>(drafts_.size()) - begin;
  const auto for_each_way = [&](const auto& visit) {  // visit(from, to)
    for (uint32_t i = 0; i < num; ++i) {
      for (const Grammar::Edge& edge : edges(begin + i)) visit(i, edge.to - begin);
      for (const DraftCall& call : calls(begin + i)) visit(i, call.to - begin);
    }
  };
  // The nodes that lead to a node, side by side.
  std::vector<uint32_t> ends(num + 1);
  for_each_way([&](uint32_t, uint32_t to) { ++ends[to + 1]; });
  std::partial_sum(ends.begin(), ends.end(), ends.begin());
  std::vector<uint32_t> from(ends.back());
  for_each_way([&](uint32_t i, uint32_t to) { from[ends[to]++] = i; });
  std::vector<uint32_t> open;
  for (uint32_t i = 0; i < num; ++i) {
    if (drafts_[begin + i].may_end) open.push_back(i);
  }
  while (!open.empty()) {
    const uint32_t i = open.back();
    open.pop_back();
    if (std::exchange(drafts_[begin + i].is_alive, true)) continue;
    open.insert(open.end(), from.begin() + (i == 0 ? 0 : ends[i - 1]), from.begin() + ends[i]);
  }
}

std::shared_ptr<const Grammar> GrammarCompiler::Finish(uint32_t root) {
  std::shared_ptr<Grammar> grammar(new Grammar());
  std::vector<Grammar::NodeId> id_of(drafts_.size());
  uint32_t num = 0;
  for (size_t i = 0; i < drafts_.size(); ++i) {
    id_of[i] = num;
    if (drafts_[i].is_alive) ++num;
  }
  node_of_ = {}, seen_ = {};
  grammar->nodes_.reserve(num + 1);
  grammar->edges_.reserve(edges_.size());
  grammar->calls_.reserve(calls_.size());
  for (size_t i = 0; i < drafts_.size(); ++i) {
    if (!drafts_[i].is_alive) continue;
    grammar->nodes_.push_back({static_cast<uint32_t>(grammar->edges_.size()),
                               static_cast<uint32_t>(grammar->calls_.size()), drafts_[i].may_end});
    for (const Grammar::Edge& edge : edges(i)) {
      if (drafts_[edge.to].is_alive) {
        grammar->edges_.push_back({edge.first, edge.last, id_of[edge.to]});
      }
    }
    for (const auto& [rule, to] : calls(i)) {
      if (drafts_[to].is_alive) grammar->calls_.push_back({id_of[*start_[rule]], id_of[to]});
    }
  }
  grammar->nodes_.push_back({static_cast<uint32_t>(grammar->edges_.size()),
                             static_cast<uint32_t>(grammar->calls_.size())});
  drafts_ = {}, edges_ = {}, calls_ = {};
  grammar->edges_.shrink_to_fit();
  grammar->calls_.shrink_to_fit();
  FindFirstBytes(grammar.get(), id_of);
  // A rule that is but a call of another needs no stack frame, nor time.
  std::vector<Grammar::NodeId> start_of(num);
  std::iota(start_of.begin(), start_of.end(), 0);
  for (const uint32_t rule : order_.callees_first()) {
    if (!start_[rule]) continue;
    const Grammar::NodeId start = id_of[*start_[rule]];
    const auto calls = grammar->calls(start);
    if (grammar->edges(start).empty() && !grammar->may_end(start) && calls.size() == 1 &&
        grammar->only_ends(calls[0].to)) {
      start_of[start] = start_of[calls[0].start];
    }
  }
  for (Grammar::Call& call : grammar->calls_) call.start = start_of[call.start];
  grammar->start_ = start_of[id_of[*start_[root]]];
  grammar->twins_ = TwinsOf(*grammar);
  grammar->twins_.shrink_to_fit();
  return grammar;
}

std::vector<NodeTwin> GrammarCompiler::TwinsOf(const Grammar& grammar) {
  if (grammar.num_nodes() > kMaxTwinNodes) {
    std::vector<NodeTwin> none(grammar.num_nodes());
    for (Grammar::NodeId node = 0; node < grammar.num_nodes(); ++node) none[node] = {node, 0};
    return none;
  }
  std::map<std::vector<uint32_t>, uint32_t> parts;
  std::vector<uint32_t> to, begins, local, part_of;
  for (Grammar::NodeId node = 0; node < grammar.num_nodes(); ++node) {
    begins.push_back(static_cast<uint32_t>(to.size()));
    local = {grammar.may_end(node)};
    for (const Grammar::Edge& edge : grammar.edges(node)) {
      local.push_back(uint32_t{edge.first} << 8 | edge.last);
      to.push_back(edge.to);
    }
    local.push_back(1 << 16);  // no edge
    for (const Grammar::Call& call : grammar.calls(node)) {
      local.push_back(call.start);
      to.push_back(call.to);
    }
    const auto next = static_cast<uint32_t>(parts.size());
    part_of.push_back(parts.try_emplace(local, next).first->second);
  }
  begins.push_back(static_cast<uint32_t>(to.size()));
  std::vector<LocalPart> nodes;
  for (size_t i = 0; i < part_of.size(); ++i) {
    nodes.push_back({part_of[i], std::span(to).subspan(begins[i], begins[i + 1] - begins[i])});
  }
  std::vector<NodeTwin> twins = FindTwins(nodes);
  // Texts that may not have a mark in them have a node for each beginning of it, which differ by
  // what goes on with the mark.
  std::optional<Grammar::NodeId> before;
  uint64_t looked_at = 0;  // edges and calls
  for (Grammar::NodeId node = 0; node < grammar.num_nodes() && looked_at < kTwinSteps; ++node) {
    if (twins[node].node != node || !grammar.is_wide(node)) continue;
    if (before) looked_at += grammar.edges(*before).size() + grammar.calls(*before).size();
    int num = 0;
    for (int byte = 0; before && byte < 256; ++byte) {
      num += grammar.SameAfter(node, *before, static_cast<uint8_t>(byte)) ? 1 : 0;
    }
    if (num > 256 - Grammar::kWide / 2) {
      twins[node].node = *before;
    } else {
      before = node;
    }
  }
  return twins;
}

void GrammarCompiler::FindFirstBytes(Grammar* grammar,
                                     const std::vector<Grammar::NodeId>& id_of) const {
  std::map<ByteSet, uint32_t> index_of{{ByteSet{}, 0}};
  grammar->first_sets_.push_back({});
  const auto find = [&](Grammar::NodeId node) {
    ByteSet first{};
    for (const Grammar::Edge& edge : grammar->edges(node)) {
      for (uint32_t byte = edge.first; byte <= edge.last; ++byte) {
        first[byte >> 6] |= uint64_t{1} << (byte & 63);
      }
    }
    for (const Grammar::Call& call : grammar->calls(node)) {
      const ByteSet& of_call = grammar->first(call.start);
      for (size_t i = 0; i < first.size(); ++i) first[i] |= of_call[i];
    }
    const auto next = static_cast<uint32_t>(grammar->first_sets_.size());
    const auto [found, is_new] = index_of.try_emplace(first, next);
    if (is_new) grammar->first_sets_.push_back(first);
    grammar->nodes_[node].first = found->second;
  };
  // Starts of rules first, each after those that it calls before it has read a byte.
  for (const uint32_t rule : order_.callees_first()) {
    if (start_[rule]) find(id_of[*start_[rule]]);
  }
  for (Grammar::NodeId node = 0; node < grammar->num_nodes(); ++node) find(node);
  grammar->first_sets_.shrink_to_fit();
}

Result<std::shared_ptr<const Grammar>> GrammarCompiler::Run(RuleId root) {
  std::vector<uint32_t> open{static_cast<uint32_t>(root)};
  std::vector<bool> is_known(code_.num_rules());
  is_known[open[0]] = true;
  while (!open.empty()) {
    const uint32_t rule = open.back();
    open.pop_back();
    if (!AddRule(rule, Way::kDeterministic) && !AddRule(rule, Way::kOneByOne)) {
      return Fail(Code::kInvalidArgument, "rule '{}': more than {} ways lead on in it",
                  source_.rules()[rule].name, kMaxGrammarEdges);
    }
    for (size_t i = first_; i < drafts_.size(); ++i) {
      for (const DraftCall& call : calls(i)) {
        if (!is_known[call.rule]) open.push_back(call.rule);
        is_known[call.rule] = true;
      }
    }
  }
  return Finish(static_cast<uint32_t>(root));
}

Result<std::shared_ptr<const Grammar>> Grammar::Compile(const GrammarSource& source, RuleId root) {
  if (source.rules().size() > kMaxGrammarRules) {
    return Fail(Code::kInvalidArgument, "the grammar has {} rules (at most {})",
                source.rules().size(), kMaxGrammarRules);
  }
  for (const GrammarSource::Rule& rule : source.rules()) {
    if (rule.expression) continue;
    return Fail(Code::kInvalidArgument, "rule '{}' is not defined{}", rule.name,
                rule.place.empty() ? "" : " (" + rule.place + ")");
  }
  KV_ASSIGN(const RuleCode code, RuleCode::Make(source));
  KV_ASSIGN(const RuleOrder order, RuleOrder::Find(source, code));
  return GrammarCompiler(source, code, order).Run(root);
}

}  // namespace kvasir
