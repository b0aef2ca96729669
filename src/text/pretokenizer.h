// Pre-tokenizers of tokenizer.json: normalised text to the words that BPE sees.
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "kvasir/status.h"

namespace kvasir {

// Words as ranges of one text; no range is empty.
struct Words {
  struct Range {
    size_t begin, end;
    bool at_start;  // begins where the user's whole text begins (for prepend_scheme "first")
  };
  std::string text;
  std::vector<Range> ranges;

  std::string_view At(size_t i) const {
    return std::string_view(text).substr(ranges[i].begin, ranges[i].end - ranges[i].begin);
  }
};

// One step of splitting. Immutable; thread-safe.
class PreTokenizer {
 public:
  // From the value of "pre_tokenizer"; null leaves the words as they are. kUnsupported names a type
  // that we do not have.
  static Result<std::unique_ptr<PreTokenizer>> Parse(const nlohmann::json& value);
  virtual ~PreTokenizer() = default;

  // REQUIRES: words->text is well-formed UTF-8.
  virtual Status Apply(Words* words) const = 0;
};

}  // namespace kvasir
