// RuleCode: the rules of a GrammarSource as instructions, before they become a Grammar.
#pragma once

#include <cstdint>
#include <map>
#include <tuple>
#include <vector>

#include "grammar/grammar_source.h"
#include "kvasir/status.h"

namespace kvasir {

// Instructions of all rules; those of one rule stand side by side. Immutable after Make.
class RuleCode {
 public:
  enum class Kind : uint8_t {
    kBytes,  // reads a byte of [first, last], then `to`
    kCall,   // reads a text of rule `other`, then `to`
    kFork,   // `to` or `other`
    kEnd,    // the rule may end
    kFail,   // leads nowhere
  };
  struct Instruction {
    Kind kind;
    uint8_t first = 0, last = 0;
    uint32_t to = 0, other = 0;
  };
  static constexpr uint32_t kNowhere = 0;  // the kFail that all rules share
  struct Span {
    uint32_t begin, end;  // of the rule's instructions; its kEnd is the first
    uint32_t start;       // where it begins
  };

  // REQUIRES: all rules are defined. kInvalidArgument names the rule whose repetitions make more
  // than kMaxGrammarNodes instructions. O(instructions).
  static Result<RuleCode> Make(const GrammarSource& source);

  const Instruction& at(uint32_t i) const { return code_[i]; }
  const Span& rule(uint32_t rule) const { return rules_[rule]; }
  uint32_t num_rules() const { return static_cast<uint32_t>(rules_.size()); }
  uint32_t size() const { return static_cast<uint32_t>(code_.size()); }

 private:
  // (first byte, last byte, next instruction) -> an instruction of the same class.
  using Tails = std::map<std::tuple<uint8_t, uint8_t, uint32_t>, uint32_t>;

  explicit RuleCode(const GrammarSource& source) : source_(&source) {}

  // Adds the code of an expression that goes on at `next` and returns where it begins.
  uint32_t Emit(ExpressionId id, uint32_t next);
  uint32_t EmitClass(const GrammarSource::Expression& of, uint32_t next);
  uint32_t EmitRepeat(const GrammarSource::Expression& of, uint32_t next);
  uint32_t EmitList(const GrammarSource::Expression& of, uint32_t next);
  uint32_t EmitMarks(const GrammarSource::Expression& of, uint32_t next);
  void EmitRange(char32_t first, char32_t last, uint32_t next, Tails* tails, uint32_t* entry);
  uint32_t Either(uint32_t one, uint32_t other);
  uint32_t Add(Instruction instruction);

  const GrammarSource* source_;
  std::vector<Instruction> code_;
  std::vector<Span> rules_;
  uint32_t steps_ = 0;
  bool is_full_ = false;
};

}  // namespace kvasir
