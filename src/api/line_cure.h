// Takes lines that change with each prompt out of system messages, or to the prompt's end.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kvasir/status.h"
#include "text/regex.h"

namespace kvasir {

// Which lines are meant: by the names that all know, or by patterns. Immutable; thread-safe.
class LineRules {
 public:
  static const std::vector<std::string_view>& names();

  // Adds the rule of a name, once. kInvalidArgument lists the names.
  Status AddName(std::string_view name);
  // Adds a name's rule, or a pattern (text/regex.h) that is found anywhere in a line. Errors as
  // Regex::Compile's.
  Status Add(std::string_view name_or_pattern);

  bool empty() const { return rules_.empty(); }
  // Tells whether a line is meant. kInvalidArgument: a pattern takes too long for it.
  Result<bool> Match(std::string_view line) const;

 private:
  struct Rule {
    std::string shown;
    std::shared_ptr<const Regex> pattern;
  };
  std::vector<Rule> rules_;
};

struct LineCure {
  LineRules dropped, moved;
  bool empty() const { return dropped.empty() && moved.empty(); }
};

struct CuredText {
  std::string text;
  std::vector<std::string> moved;  // lines, in their order
  uint32_t dropped = 0;            // how many lines
};

// Takes the lines of a text that are to be dropped and moved; a line of both is dropped. Errors as
// LineRules::Match's.
Result<CuredText> Cure(std::string_view text, const LineCure& cure);

}  // namespace kvasir
