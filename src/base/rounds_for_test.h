// How many rounds a random test makes.
#pragma once

namespace kvasir {

// `all`; `few` in builds with a sanitizer, which look for what shows in few rounds, and take ten
// times as long for each.
#ifdef KVASIR_SANITIZED
constexpr auto Rounds(auto, auto few) { return few; }
#else
constexpr auto Rounds(auto all, auto) { return all; }
#endif

}  // namespace kvasir
