// RuleOrder: which rules may be empty, and which call others before they have read a byte.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "grammar/rule_code.h"

namespace kvasir {

// Immutable after Find.
class RuleOrder {
 public:
  // kInvalidArgument names rules that call themselves before they have read a byte (left
  // recursion), and rules that cannot end. O(instructions).
  static Result<RuleOrder> Find(const GrammarSource& source, const RuleCode& code);

  bool may_be_empty(uint32_t rule) const { return may_be_empty_[rule]; }
  // Returns all rules, each after those that it calls before it has read a byte.
  std::span<const uint32_t> callees_first() const { return callees_first_; }

 private:
  Status Sort(const GrammarSource& source, const std::vector<std::vector<uint32_t>>& callees);

  std::vector<bool> may_be_empty_;
  std::vector<uint32_t> callees_first_;
};

}  // namespace kvasir
