// Normalizers of tokenizer.json: change the text before it is split.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "kvasir/status.h"

namespace kvasir {

// What comes before a text: nothing; a special token or other words; or text that was encoded apart
// and that this one goes on from, so that nothing is put between them.
enum class TextStart : uint8_t { kBegin, kInside, kContinues };

// Text, and which of its bytes come from users: one flag (0 or 1) per byte, or no flags when they
// are not needed.
struct MarkedText {
  std::string text;
  std::string literal;
  TextStart start = TextStart::kBegin;
};

// One step of normalisation. Immutable; thread-safe.
class Normalizer {
 public:
  // Parses the value of "normalizer"; null is the empty sequence. kUnsupported names a type that is
  // not implemented.
  static Result<std::unique_ptr<Normalizer>> Parse(const nlohmann::json& value);
  virtual ~Normalizer() = default;

  // REQUIRES: text is well-formed UTF-8. Results of flagged bytes are flagged.
  virtual Status Apply(MarkedText* text) const = 0;
};

}  // namespace kvasir
