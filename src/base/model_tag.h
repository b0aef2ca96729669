// The tag of a model's name.
#pragma once

#include <string_view>

namespace kvasir {

// Returns a name without ":latest", which Ollama's clients add to it and which means no tag.
inline std::string_view WithoutLatest(std::string_view name) {
  constexpr std::string_view kLatest = ":latest";
  if (name.ends_with(kLatest)) name.remove_suffix(kLatest.size());
  return name;
}

}  // namespace kvasir
