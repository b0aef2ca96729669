// NaiveGrammar: a random grammar and, by its definition, which texts it has.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/random.h"
#include "grammar/grammar.h"
#include "grammar/grammar_source.h"

namespace kvasir {

// Slow and plain: the twin that the compiled grammar is compared with.
class NaiveGrammar {
 public:
  explicit NaiveGrammar(Random& random) : random_(random) {
    const size_t num = 1 + random.Below(3);
    for (size_t i = 0; i < num; ++i) source_.AddRule("r" + std::to_string(i));
    for (size_t i = 0; i < num; ++i) source_.Define(static_cast<RuleId>(i), Make(3));
  }

  Result<std::shared_ptr<const Grammar>> Compile() const {
    return Grammar::Compile(source_, RuleId{0});
  }
  // REQUIRES: the grammar compiles (no left recursion).
  bool Has(const std::string& text) {
    text_ = text;
    known_.clear();
    return Ends(*source_.rule(RuleId{0}).expression, 0).contains(text.size());
  }

 private:
  using Kind = GrammarSource::Kind;

  ExpressionId Make(int depth) {
    const uint64_t kind = random_.Below(depth == 0 ? 3 : 9);
    const auto parts = [&] {
      std::vector<ExpressionId> made(random_.Below(4));
      for (ExpressionId& part : made) part = Make(depth - 1);
      return made;
    };
    switch (kind) {
      case 0: {
        std::string text;
        for (uint64_t i = random_.Below(3); i > 0; --i) text += "ab"[random_.Below(2)];
        return source_.Literal(text);
      }
      case 1:
        return source_.Class({{U'a', U'a' + static_cast<char32_t>(random_.Below(2))}});
      case 2:
        return source_.Call(static_cast<RuleId>(random_.Below(source_.rules().size())));
      case 3:
      case 4:
        return source_.Sequence(parts());
      case 5:
        return source_.Choice(parts());
      case 6: {
        const auto min = static_cast<uint32_t>(random_.Below(3));
        std::optional<uint32_t> max;
        if (random_.Below(2) == 0) max = min + static_cast<uint32_t>(random_.Below(3));
        return source_.Repeat(Make(depth - 1), min, max);
      }
      case 7: {
        std::vector<std::string> marks(1 + random_.Below(2));
        for (std::string& mark : marks) {
          for (uint64_t i = 1 + random_.Below(3); i > 0; --i) mark += "ab"[random_.Below(2)];
        }
        return random_.Below(2) == 0 ? source_.Until(marks) : source_.Without(marks);
      }
      default: {
        std::vector<GrammarSource::ListItem> items(random_.Below(4));
        for (auto& item : items) item = {Make(depth - 1), random_.Below(2) == 0};
        return source_.List(source_.Literal("b"), items, Make(0));
      }
    }
  }

  // Returns where texts of the expression that begin at `begin` end.
  std::set<size_t> Ends(ExpressionId id, size_t begin) {
    const auto key = std::pair(id, begin);
    if (const auto found = known_.find(key); found != known_.end()) return found->second;
    return known_[key] = Find(source_.expression(id), begin);
  }
  std::set<size_t> After(const std::set<size_t>& begins, ExpressionId id) {
    std::set<size_t> all;
    for (const size_t begin : begins) all.merge(Ends(id, begin));
    return all;
  }
  std::set<size_t> Find(const GrammarSource::Expression& of, size_t begin) {
    switch (of.kind) {
      case Kind::kLiteral: {
        const std::string_view bytes = source_.bytes(of);
        if (std::string_view(text_).substr(begin, bytes.size()) != bytes) return {};
        return {begin + bytes.size()};
      }
      case Kind::kClass: {
        const CharRange range = source_.ranges(of)[0];
        if (begin == text_.size() || static_cast<char32_t>(text_[begin]) > range.last ||
            static_cast<char32_t>(text_[begin]) < range.first) {
          return {};
        }
        return {begin + 1};
      }
      case Kind::kSequence: {
        std::set<size_t> ends{begin};
        for (const auto& part : source_.items(of)) ends = After(ends, part.expression);
        return ends;
      }
      case Kind::kChoice: {
        std::set<size_t> ends;
        for (const auto& part : source_.items(of)) ends.merge(Ends(part.expression, begin));
        return ends;
      }
      case Kind::kRepeat: {
        std::set<size_t> now{begin}, ends;
        // More than the text's size repetitions only add empty ones.
        const uint32_t most = std::min<uint32_t>(of.max.value_or(100), 3 + 2 + 8);
        for (uint32_t i = 0; i <= most && !now.empty(); ++i) {
          if (i >= of.min) ends.insert(now.begin(), now.end());
          now = i < most ? After(now, *of.of) : std::set<size_t>();
        }
        return ends;
      }
      case Kind::kCall:
        return Ends(*source_.rule(of.rule).expression, begin);
      case Kind::kUntil:
      case Kind::kWithout:
        return FindMarked(of, begin);
      case Kind::kList:
        return FindList(of, begin);
    }
    return {};
  }

  std::set<size_t> FindMarked(const GrammarSource::Expression& of, size_t begin) {
    std::set<size_t> without;
    for (size_t end = begin; end <= text_.size(); ++end) {
      const std::string_view read = std::string_view(text_).substr(begin, end - begin);
      for (const auto& item : source_.items(of)) {
        const std::string_view mark = source_.bytes(source_.expression(item.expression));
        if (read.find(mark) == read.npos) continue;
        return of.kind == Kind::kUntil ? std::set<size_t>{end} : without;
      }
      without.insert(end);
    }
    return of.kind == Kind::kUntil ? std::set<size_t>{} : without;
  }
  std::set<size_t> FindList(const GrammarSource::Expression& of, size_t begin) {
    std::set<size_t> none{begin}, some;  // where it stands without and with an item
    const auto items = source_.items(of);
    for (const auto& item : items.first(items.size() - 1)) {
      std::set<size_t> with = After(none, item.expression);
      with.merge(After(After(some, *of.of), item.expression));
      if (item.is_optional) {
        some.merge(with);
      } else {
        none.clear();
        some = with;
      }
    }
    some = After(some, items.back().expression);
    some.merge(none);
    return some;
  }

  Random& random_;
  GrammarSource source_;
  std::string text_;
  std::map<std::pair<ExpressionId, size_t>, std::set<size_t>> known_;
};

}  // namespace kvasir
