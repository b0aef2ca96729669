// Normalizers of tokenizer.json: text to text before anything is split.
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "kvasir/status.h"

namespace kvasir {

// Text, and which of its bytes users wrote: one flag (0 or 1) a byte, or no flags at all when
// nobody asks.
struct MarkedText {
  std::string text;
  std::string literal;
};

// One step of normalisation. Immutable; thread-safe.
class Normalizer {
 public:
  // From the value of "normalizer"; null is the empty sequence. kUnsupported names a type that we
  // do not have.
  static Result<std::unique_ptr<Normalizer>> Parse(const nlohmann::json& value);
  virtual ~Normalizer() = default;

  // REQUIRES: text is well-formed UTF-8. What comes from flagged bytes is flagged.
  virtual Status Apply(MarkedText* text) const = 0;
};

}  // namespace kvasir
