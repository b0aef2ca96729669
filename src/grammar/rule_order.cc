#include "grammar/rule_order.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/result.h"

namespace kvasir {
namespace {

enum class Reading : uint8_t { kNothing, kBytes };

// Walks the code of all rules from their starts at once. A call is passed as soon as the walk has
// come to the end of the called rule.
class RuleWalk {
 public:
  RuleWalk(const RuleCode& code, Reading reading)
      : code_(code),
        reading_(reading),
        seen_(code.size()),
        waiting_(code.num_rules()),
        ended_(code.num_rules()),
        callees_(code.num_rules()) {
    for (uint32_t rule = 0; rule < code.num_rules(); ++rule) Walk(rule, code.rule(rule).start);
  }

  std::vector<bool>& ended() { return ended_; }  // rules whose end was reached
  // Returns the rules that were called on the way, by rule.
  const std::vector<std::vector<uint32_t>>& callees() const { return callees_; }

 private:
  struct Place {
    uint32_t rule, instruction;
  };

  void Walk(uint32_t rule, uint32_t instruction) {
    std::vector<Place> open{{rule, instruction}};
    while (!open.empty()) {
      const Place place = open.back();
      open.pop_back();
      if (seen_[place.instruction]) continue;
      seen_[place.instruction] = true;
      Pass(place, &open);
    }
  }

  void Pass(const Place& place, std::vector<Place>* open) {
    const RuleCode::Instruction& at = code_.at(place.instruction);
    switch (at.kind) {
      case RuleCode::Kind::kBytes:
        if (reading_ == Reading::kBytes) open->push_back({place.rule, at.to});
        break;
      case RuleCode::Kind::kFork:
        open->push_back({place.rule, at.to});
        open->push_back({place.rule, at.other});
        break;
      case RuleCode::Kind::kCall:
        callees_[place.rule].push_back(at.other);
        if (ended_[at.other]) {
          open->push_back({place.rule, at.to});
        } else {
          waiting_[at.other].push_back({place.rule, at.to});
        }
        break;
      case RuleCode::Kind::kEnd:
        ended_[place.rule] = true;
        open->insert(open->end(), waiting_[place.rule].begin(), waiting_[place.rule].end());
        waiting_[place.rule].clear();
        break;
      case RuleCode::Kind::kFail:
        break;
    }
  }

  const RuleCode& code_;
  const Reading reading_;
  std::vector<bool> seen_;
  std::vector<std::vector<Place>> waiting_;  // for the end of a rule
  std::vector<bool> ended_;
  std::vector<std::vector<uint32_t>> callees_;
};

}  // namespace

Result<RuleOrder> RuleOrder::Find(const GrammarSource& source, const RuleCode& code) {
  RuleOrder order;
  RuleWalk first(code, Reading::kNothing);
  order.may_be_empty_ = std::move(first.ended());
  KV_TRY(order.Sort(source, first.callees()));
  RuleWalk whole(code, Reading::kBytes);
  const std::vector<bool>& ended = whole.ended();
  const auto endless = std::ranges::find(ended, false);
  if (endless == ended.end()) return order;
  // The last of the endless rules that each call the next one: others cannot end because of it.
  std::vector<bool> seen = ended;
  auto rule = static_cast<uint32_t>(endless - ended.begin());
  for (bool goes_on = true; goes_on;) {
    seen[rule] = true;
    const std::vector<uint32_t>& callees = whole.callees()[rule];
    const auto next = std::ranges::find_if(callees, [&](uint32_t one) { return !seen[one]; });
    goes_on = next != callees.end();
    if (goes_on) rule = *next;
  }
  return Fail(Code::kInvalidArgument, "rule '{}' cannot end: no text matches it",
              source.rules()[rule].name);
}

Status RuleOrder::Sort(const GrammarSource& source,
                       const std::vector<std::vector<uint32_t>>& callees) {
  enum class State : uint8_t { kNew, kOpen, kDone };
  struct Visit {
    uint32_t rule;
    size_t next;  // of its callees
  };
  std::vector<State> states(callees.size(), State::kNew);
  std::vector<Visit> path;
  for (uint32_t rule = 0; rule < callees.size(); ++rule) {
    if (states[rule] == State::kNew) path.push_back({rule, 0});
    states[rule] = path.empty() ? states[rule] : State::kOpen;
    while (!path.empty()) {
      Visit& visit = path.back();
      if (visit.next == callees[visit.rule].size()) {
        states[visit.rule] = State::kDone;
        callees_first_.push_back(visit.rule);
        path.pop_back();
        continue;
      }
      const uint32_t callee = callees[visit.rule][visit.next++];
      if (states[callee] == State::kOpen) {
        return Fail(Code::kInvalidArgument,
                    "rule '{}' is left-recursive: '{}' calls it before a byte is read",
                    source.rules()[callee].name, source.rules()[visit.rule].name);
      }
      if (states[callee] == State::kDone) continue;
      states[callee] = State::kOpen;
      path.push_back({callee, 0});
    }
  }
  return {};
}

}  // namespace kvasir
