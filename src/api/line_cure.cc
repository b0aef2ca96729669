#include "api/line_cure.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/result.h"

namespace kvasir {
namespace {

struct NamedRule {
  std::string_view name, pattern;
};
// Lines as clients write them: "Today's date: 2026-03-31", "- Current time is 10:15", "Tokens left:
// 12034", "Session ID: 7f3a", and Claude Code's first block.
constexpr NamedRule kNamed[] = {
    {"date",
     R"((?i)^\W*(it is|(the )?(today|current|local|now)\b|(the )?(date|time|day)( and (date|time))?\b\W*(is\b|:|=|today\b|now\b)).*)"
     R"((\d|(mon|tues|wednes|thurs|fri|satur|sun)day))"},
    {"tokens-left",
     R"((?i)\btokens?\b.*\b(left|remain\w*|available|used)\b.*\d|\d.*\btokens?\b.*\b(left|remain\w*|available|used)\b|)"
     R"(\b(left|remain\w*|available|used)\b.*\btokens?\b.*\d)"},
    {"id", R"((?i)^\W*([\w-]+ ){0,3}(uu)?id\W*[:=]\W*[\w-]+\W*$)"},
    {"billing", R"(^x-anthropic-billing-header:)"}};

// Returns the compiled patterns, in the order of kNamed.
const std::vector<std::shared_ptr<const Regex>>& NamedPatterns() {
  static const std::vector<std::shared_ptr<const Regex>> patterns = [] {
    std::vector<std::shared_ptr<const Regex>> all;
    for (const NamedRule& rule : kNamed) {
      auto regex = Regex::Compile(rule.pattern);
      KV_CHECK(regex);
      all.push_back(std::make_shared<const Regex>(std::move(*regex)));
    }
    return all;
  }();
  return patterns;
}

}  // namespace

const std::vector<std::string_view>& LineRules::names() {
  static const std::vector<std::string_view> names = [] {
    std::vector<std::string_view> all;
    for (const NamedRule& rule : kNamed) all.push_back(rule.name);
    return all;
  }();
  return names;
}

Status LineRules::AddName(std::string_view name) {
  const auto named = std::ranges::find(kNamed, name, &NamedRule::name);
  if (named == std::end(kNamed)) {
    return Fail(Code::kInvalidArgument,
                "\"{}\" is not one of {} (patterns are for --drop-lines and --move-lines)", name,
                fmt::join(names(), ", "));
  }
  const auto& pattern = NamedPatterns()[static_cast<size_t>(named - std::begin(kNamed))];
  if (std::ranges::count(rules_, pattern, &Rule::pattern) == 0) {
    rules_.push_back({std::string(name), pattern});
  }
  return {};
}

Status LineRules::Add(std::string_view name_or_pattern) {
  if (std::ranges::count(names(), name_or_pattern) > 0) return AddName(name_or_pattern);
  KV_ASSIGN(Regex regex, Regex::Compile(name_or_pattern));
  rules_.push_back({std::string(name_or_pattern), std::make_shared<const Regex>(std::move(regex))});
  return {};
}

Result<bool> LineRules::Match(std::string_view line) const {
  for (const Rule& rule : rules_) {
    const auto found = Regex::Finder(*rule.pattern, line).Next();
    if (!found) {
      return Fail(Code::kInvalidArgument, "'{}', by which lines are dropped or moved, {}",
                  rule.shown, found.error().text());
    }
    if (*found) return true;
  }
  return false;
}

Result<CuredText> Cure(std::string_view text, const LineCure& cure) {
  CuredText cured;
  cured.text.reserve(text.size());
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    const size_t with_end = std::min(end + 1, text.size());
    KV_ASSIGN(const bool is_dropped, cure.dropped.Match(line));
    KV_ASSIGN(const bool is_moved, cure.moved.Match(line));
    if (is_dropped) {
      ++cured.dropped;
    } else if (is_moved) {
      cured.moved.emplace_back(line);
    } else {
      cured.text += text.substr(0, with_end);
    }
    text.remove_prefix(with_end);
  }
  return cured;
}

}  // namespace kvasir
