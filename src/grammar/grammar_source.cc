#include "grammar/grammar_source.h"

#include <algorithm>
#include <utility>

#include "base/result.h"

namespace kvasir {

std::vector<CharRange> Complement(std::vector<CharRange> ranges) {
  std::sort(ranges.begin(), ranges.end(),
            [](const CharRange& a, const CharRange& b) { return a.first < b.first; });
  std::vector<CharRange> others;
  char32_t next = 0;  // the first character that no range so far decides
  for (const CharRange& range : ranges) {
    if (range.first > next) others.push_back({next, range.first - 1});
    next = std::max<char32_t>(next, range.last + 1);
  }
  if (next <= kLastChar) others.push_back({next, kLastChar});
  return others;
}

Status GrammarSource::CheckSize() const {
  if (!is_full_) return {};
  return Fail(Code::kInvalidArgument, "the grammar is larger than {} parts or {} MiB",
              kMaxExpressions, kMaxKeptBytes >> 20);
}

Status GrammarSource::Spend(uint64_t steps) {
  const bool is_enough = steps <= kMaxSteps - steps_;
  steps_ = is_enough ? steps_ + steps : kMaxSteps;
  if (is_enough) return CheckSize();
  return Fail(Code::kInvalidArgument, "its schemas take more than {} steps to join and compare",
              kMaxSteps);
}

// Returns whether so many bytes may be kept.
bool GrammarSource::TakeRoom(size_t bytes) {
  is_full_ = is_full_ || bytes > kMaxKeptBytes - kept_bytes_;
  if (!is_full_) kept_bytes_ += bytes;
  return !is_full_;
}

ExpressionId GrammarSource::Add(Expression expression) {
  is_full_ = is_full_ || expressions_.size() >= kMaxExpressions;
  if (!TakeRoom(sizeof(Expression))) return kNoRoom;
  expressions_.push_back(expression);
  return static_cast<ExpressionId>(expressions_.size() - 1);
}

ExpressionId GrammarSource::Literal(std::string_view bytes) {
  if (!TakeRoom(bytes.size())) return kNoRoom;
  const auto begin = static_cast<uint32_t>(bytes_.size());
  bytes_ += bytes;
  return Add({Kind::kLiteral, begin, static_cast<uint32_t>(bytes_.size())});
}

ExpressionId GrammarSource::Class(std::vector<CharRange> ranges) {
  // Each once: a class may stand in many repetitions.
  std::ranges::sort(ranges, {}, &CharRange::first);
  size_t num = 0;
  for (const CharRange& range : ranges) {
    if (num > 0 && range.first <= ranges[num - 1].last) {
      ranges[num - 1].last = std::max(ranges[num - 1].last, range.last);
    } else {
      ranges[num++] = range;
    }
  }
  ranges.resize(num);
  if (!TakeRoom(ranges.size() * sizeof(CharRange))) return kNoRoom;
  const auto begin = static_cast<uint32_t>(ranges_.size());
  ranges_.insert(ranges_.end(), ranges.begin(), ranges.end());
  return Add({Kind::kClass, begin, static_cast<uint32_t>(ranges_.size())});
}

ExpressionId GrammarSource::AddParts(Kind kind, std::span<const ExpressionId> parts) {
  if (!TakeRoom(parts.size() * sizeof(ListItem))) return kNoRoom;
  const auto begin = static_cast<uint32_t>(items_.size());
  for (const ExpressionId part : parts) items_.push_back({part, false});
  return Add({kind, begin, static_cast<uint32_t>(items_.size())});
}

ExpressionId GrammarSource::Sequence(std::span<const ExpressionId> parts) {
  return parts.size() == 1 ? parts[0] : AddParts(Kind::kSequence, parts);
}

ExpressionId GrammarSource::Sequence(std::initializer_list<ExpressionId> parts) {
  return Sequence(std::span(parts.begin(), parts.size()));
}

ExpressionId GrammarSource::Choice(std::span<const ExpressionId> parts) {
  return parts.size() == 1 ? parts[0] : AddParts(Kind::kChoice, parts);
}

ExpressionId GrammarSource::Choice(std::initializer_list<ExpressionId> parts) {
  return Choice(std::span(parts.begin(), parts.size()));
}

ExpressionId GrammarSource::Repeat(ExpressionId of, uint32_t min, std::optional<uint32_t> max) {
  Expression repeat{Kind::kRepeat};
  repeat.of = of, repeat.min = min, repeat.max = max;
  return Add(repeat);
}

ExpressionId GrammarSource::Call(RuleId rule) {
  Expression call{Kind::kCall};
  call.rule = rule;
  return Add(call);
}

ExpressionId GrammarSource::List(ExpressionId separator, std::span<const ListItem> items,
                                 ExpressionId after) {
  if (!TakeRoom((items.size() + 1) * sizeof(ListItem))) return kNoRoom;
  const auto begin = static_cast<uint32_t>(items_.size());
  items_.insert(items_.end(), items.begin(), items.end());
  items_.push_back({after, false});
  Expression list{Kind::kList, begin, static_cast<uint32_t>(items_.size())};
  list.of = separator;
  return Add(list);
}

ExpressionId GrammarSource::AddMarks(Kind kind, std::span<const std::string> marks) {
  std::vector<ExpressionId> literals;
  for (const std::string& mark : marks) literals.push_back(Literal(mark));
  return AddParts(kind, literals);
}

ExpressionId GrammarSource::Until(std::span<const std::string> marks) {
  return AddMarks(Kind::kUntil, marks);
}

ExpressionId GrammarSource::Without(std::span<const std::string> marks) {
  return AddMarks(Kind::kWithout, marks);
}

RuleId GrammarSource::AddRule(std::string name, std::string place) {
  is_full_ = is_full_ || rules_.size() >= kMaxRules;
  if (!TakeRoom(sizeof(Rule) + name.size() + place.size())) name.clear(), place.clear();
  rules_.push_back({std::move(name), std::nullopt, std::move(place)});
  return static_cast<RuleId>(rules_.size() - 1);
}

void GrammarSource::Define(RuleId rule, ExpressionId expression) {
  rules_[static_cast<uint32_t>(rule)].expression = expression;
}

}  // namespace kvasir
