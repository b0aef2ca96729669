// The "pattern" of Replace and Split: {"String": ...} or {"Regex": ...}.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "text/regex.h"

namespace kvasir {

// Immutable; thread-safe.
class Pattern {
 public:
  // Parses object["pattern"].
  static Result<Pattern> Parse(const nlohmann::json& object);
  explicit Pattern(Regex regex) : regex_(std::move(regex)) {}

  bool is_regex() const { return regex_.has_value(); }
  const std::string& text() const { return text_; }  // of a String

  // Calls visit(begin, end, is_match) for the parts of text, in order, without gaps.
  template <typename Visit>
  Status Split(std::string_view text, const Visit& visit) const {
    size_t done = 0;
    const auto put = [&](size_t begin, size_t end) {
      if (begin > done) visit(done, begin, false);
      visit(begin, end, true);
      done = end;
    };
    if (regex_) {
      Regex::Finder finder(*regex_, text);
      while (true) {
        KV_ASSIGN(const std::optional<TextMatch> match, finder.Next());
        if (!match) break;
        put(match->begin, match->end);
      }
    } else {
      for (size_t at = text.find(text_); at != text.npos; at = text.find(text_, done)) {
        put(at, at + text_.size());
      }
    }
    if (done < text.size()) visit(done, text.size(), false);
    return {};
  }

 private:
  explicit Pattern(std::string text) : text_(std::move(text)) {}
  std::string text_;  // not empty without regex_
  std::optional<Regex> regex_;
};

}  // namespace kvasir
