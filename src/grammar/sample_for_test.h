// Random texts of grammars.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/random.h"
#include "grammar/matcher.h"

namespace kvasir {

// Draws bytes that are legal, prefers the end where the text is long enough, and of the bytes those
// of `closing`, two times in three. Absent where it gets longer than `max_bytes`.
inline std::optional<std::string> SampleText(std::shared_ptr<const Grammar> grammar, Random& random,
                                             size_t max_bytes, std::string_view closing) {
  Matcher matcher(std::move(grammar));
  const size_t enough = random.Below(max_bytes / 8 + 1);
  std::string text;
  while (text.size() < max_bytes) {
    if (matcher.IsAtEnd() || (matcher.Accepts() && text.size() >= enough)) return text;
    std::string legal, preferred;
    for (int byte = 0; byte < 256; ++byte) {
      const char c = static_cast<char>(byte);
      Matcher next = matcher;
      if (!next.Advance({&c, 1})) continue;
      legal += c;
      if (closing.find(c) != closing.npos) preferred += c;
    }
    const std::string& from = preferred.empty() || random.Below(3) == 0 ? legal : preferred;
    if (from.empty()) return std::nullopt;  // what would follow has too many places
    text += from[random.Below(from.size())];
    (void)matcher.Advance({&text.back(), 1});
  }
  return matcher.Accepts() ? std::optional(text) : std::nullopt;
}

}  // namespace kvasir
