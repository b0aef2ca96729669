#include "api/answer_parts.h"

namespace kvasir {

std::vector<PartOfAnswer> PartsOf(const Answer::Choice& choice) {
  std::vector<PartOfAnswer> parts;
  const std::string_view text = choice.text;
  size_t at = 0;
  const auto add_text = [&](size_t end) {
    if (end > at) parts.push_back({PartOfAnswer::Kind::kText, text.substr(at, end - at)});
    at = end;
  };
  if (choice.read && !choice.read->reasoning.empty()) {
    parts.push_back({PartOfAnswer::Kind::kThought, choice.read->reasoning});
  }
  for (size_t i = 0; choice.read && i < choice.read->calls.size(); ++i) {
    add_text(choice.read->calls_at[i]);
    parts.push_back({PartOfAnswer::Kind::kCall, {}, &choice.read->calls[i]});
  }
  add_text(text.size());
  return parts;
}

}  // namespace kvasir
