#include "grammar/rule_code.h"

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/result.h"
#include "grammar/grammar.h"

namespace kvasir {
namespace {

// Expressions emitted, so that repetitions of the empty text end too.
constexpr uint32_t kMaxEmitted = 4 * kMaxGrammarNodes;

// Writes a character as UTF-8, which takes `size` bytes.
void EncodeChar(char32_t c, int size, uint8_t* bytes) {
  static constexpr uint8_t kLead[] = {0, 0, 0xC0, 0xE0, 0xF0};
  for (int i = size - 1; i > 0; --i, c >>= 6) bytes[i] = static_cast<uint8_t>(0x80 | (c & 0x3F));
  bytes[0] = static_cast<uint8_t>(kLead[size] | c);
}

int SizeOfChar(char32_t c) { return c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4; }

// Returns where [first, last] is cut, so that both parts are nearer to one sequence of byte ranges:
// the last character of the first part; `last` where it is one already.
char32_t CutOf(char32_t first, char32_t last) {
  for (const char32_t edge : {0x7FU, 0x7FFU, 0xD7FFU, 0xDFFFU, 0xFFFFU}) {
    if (first <= edge && last > edge) return edge;
  }
  for (int i = 1; i < SizeOfChar(first); ++i) {
    const char32_t low = (char32_t{1} << (6 * i)) - 1;
    if ((first & ~low) == (last & ~low)) continue;
    if ((first & low) != 0) return first | low;
    if ((last & low) != low) return (last & ~low) - 1;
  }
  return last;
}

// The automaton of Aho and Corasick (1975): a state for each beginning of a mark.
class MarkStates {
 public:
  explicit MarkStates(std::vector<std::string_view> marks) : marks_(std::move(marks)) {
    states_.emplace_back();
    for (const std::string_view mark : marks_) {
      for (size_t size = 1; size <= mark.size(); ++size) {
        const std::string_view state = mark.substr(0, size);
        if (!IndexOf(state)) states_.push_back(state);
      }
    }
  }

  size_t size() const { return states_.size(); }
  bool is_mark(size_t state) const {
    return std::ranges::any_of(marks_, [&](auto mark) { return states_[state].ends_with(mark); });
  }
  size_t Next(size_t state, char byte) const {
    if (byte == kHiddenToken) return state;
    const std::string text = std::string(states_[state]) + byte;
    for (size_t skip = 0;; ++skip) {
      if (const auto next = IndexOf(std::string_view(text).substr(skip))) return *next;
    }
  }

 private:
  std::optional<size_t> IndexOf(std::string_view text) const {
    const auto found = std::ranges::find(states_, text);
    if (found == states_.end()) return std::nullopt;
    return static_cast<size_t>(found - states_.begin());
  }

  const std::vector<std::string_view> marks_;
  std::vector<std::string_view> states_;
};

}  // namespace

Result<RuleCode> RuleCode::Make(const GrammarSource& source) {
  RuleCode code(source);
  code.Add({Kind::kFail});
  for (const GrammarSource::Rule& rule : source.rules()) {
    const uint32_t begin = code.size();
    const uint32_t end = code.Add({Kind::kEnd});
    const uint32_t start = code.Emit(*rule.expression, end);
    if (code.is_full_) {
      return Fail(Code::kInvalidArgument,
                  "rule '{}': the grammar is larger than {} nodes (a byte of a text is one), with "
                  "its repetitions written out; give it fewer or shorter texts, or let parts "
                  "repeat less often",
                  rule.name, kMaxGrammarNodes);
    }
    code.rules_.push_back({begin, code.size(), start});
  }
  return code;
}

uint32_t RuleCode::Add(Instruction instruction) {
  if (size() >= kMaxGrammarNodes) {
    is_full_ = true;
    return kNowhere;
  }
  code_.push_back(instruction);
  return size() - 1;
}

uint32_t RuleCode::Either(uint32_t one, uint32_t other) {
  if (one == kNowhere || one == other) return other;
  if (other == kNowhere) return one;
  return Add({Kind::kFork, 0, 0, one, other});
}

uint32_t RuleCode::Emit(ExpressionId id, uint32_t next) {
  if (is_full_ || ++steps_ > kMaxEmitted) {
    is_full_ = true;
    return kNowhere;
  }
  const GrammarSource::Expression& of = source_->expression(id);
  switch (of.kind) {
    case GrammarSource::Kind::kLiteral: {
      const std::string_view bytes = source_->bytes(of);
      for (size_t i = bytes.size(); i-- > 0;) {
        const auto byte = static_cast<uint8_t>(bytes[i]);
        next = Add({Kind::kBytes, byte, byte, next});
      }
      return next;
    }
    case GrammarSource::Kind::kClass:
      return EmitClass(of, next);
    case GrammarSource::Kind::kSequence: {
      const auto parts = source_->items(of);
      for (size_t i = parts.size(); i-- > 0;) next = Emit(parts[i].expression, next);
      return next;
    }
    case GrammarSource::Kind::kChoice: {
      uint32_t entry = kNowhere;
      for (const auto& part : source_->items(of))
        entry = Either(Emit(part.expression, next), entry);
      return entry;
    }
    case GrammarSource::Kind::kRepeat:
      return EmitRepeat(of, next);
    case GrammarSource::Kind::kCall:
      return Add({Kind::kCall, 0, 0, next, static_cast<uint32_t>(of.rule)});
    case GrammarSource::Kind::kList:
      return EmitList(of, next);
    case GrammarSource::Kind::kUntil:
    case GrammarSource::Kind::kWithout:
      return EmitMarks(of, next);
  }
  return kNowhere;
}

uint32_t RuleCode::EmitClass(const GrammarSource::Expression& of, uint32_t next) {
  Tails tails;
  uint32_t entry = kNowhere;
  for (const CharRange& range : source_->ranges(of)) {
    EmitRange(range.first, range.last, next, &tails, &entry);
  }
  return entry;
}

void RuleCode::EmitRange(char32_t first, char32_t last, uint32_t next, Tails* tails,
                         uint32_t* entry) {
  while (first <= last && !is_full_) {
    char32_t cut = last;
    for (char32_t nearer; (nearer = CutOf(first, cut)) != cut;) cut = nearer;
    if (first < 0xD800 || first > 0xDFFF) {
      uint8_t low[4], high[4];
      const int size = SizeOfChar(first);
      EncodeChar(first, size, low);
      EncodeChar(cut, size, high);
      uint32_t to = next;
      for (int i = size - 1; i >= 0; --i) {
        const auto key = std::tuple(low[i], high[i], to);
        const auto [found, is_new] = tails->try_emplace(key, kNowhere);
        if (is_new) found->second = Add({Kind::kBytes, low[i], high[i], to});
        to = found->second;
      }
      *entry = Either(to, *entry);
    }
    first = cut + 1;
  }
}

uint32_t RuleCode::EmitRepeat(const GrammarSource::Expression& of, uint32_t next) {
  uint32_t entry = next;
  if (!of.max) {
    entry = Add({Kind::kFork, 0, 0, kNowhere, next});
    const uint32_t body = Emit(*of.of, entry);
    if (!is_full_) code_[entry].to = body;
  } else {
    for (uint32_t i = of.min; i < *of.max && !is_full_; ++i) {
      entry = Either(Emit(*of.of, entry), next);
    }
  }
  for (uint32_t i = 0; i < of.min && !is_full_; ++i) entry = Emit(*of.of, entry);
  return entry;
}

uint32_t RuleCode::EmitList(const GrammarSource::Expression& of, uint32_t next) {
  const auto items = source_->items(of);
  uint32_t first = next;  // before and after an item was written
  uint32_t later = Emit(items.back().expression, next);
  for (size_t i = items.size() - 1; i-- > 0;) {
    const uint32_t item = Emit(items[i].expression, later);
    const uint32_t separated = Emit(*of.of, item);
    first = items[i].is_optional ? Either(item, first) : item;
    later = items[i].is_optional ? Either(separated, later) : separated;
  }
  return first;
}

uint32_t RuleCode::EmitMarks(const GrammarSource::Expression& of, uint32_t next) {
  std::vector<std::string_view> marks;
  for (const auto& item : source_->items(of)) {
    marks.push_back(source_->bytes(source_->expression(item.expression)));
  }
  const bool is_until = of.kind == GrammarSource::Kind::kUntil;
  const MarkStates states(std::move(marks));
  std::vector<uint32_t> entries;
  for (size_t state = 0; state < states.size(); ++state) {
    entries.push_back(Add({Kind::kFork, 0, 0, kNowhere, is_until ? kNowhere : next}));
  }
  for (size_t state = 0; state < states.size() && !is_full_; ++state) {
    if (states.is_mark(state)) continue;
    uint32_t ways = kNowhere;
    for (int byte = 0, first = 0; byte < 256; ++byte) {
      const size_t to = states.Next(state, static_cast<char>(byte));
      if (byte < 255 && states.Next(state, static_cast<char>(byte + 1)) == to) continue;
      const uint32_t mark = is_until ? next : kNowhere;
      const uint32_t entry = states.is_mark(to) ? mark : entries[to];
      if (entry != kNowhere) {
        ways = Either(
            Add({Kind::kBytes, static_cast<uint8_t>(first), static_cast<uint8_t>(byte), entry}),
            ways);
      }
      first = byte + 1;
    }
    if (!is_full_) code_[entries[state]].to = ways;
  }
  return is_full_ ? kNowhere : entries[0];
}

}  // namespace kvasir
