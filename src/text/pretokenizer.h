// Pre-tokenizers of tokenizer.json: split normalised text into words for BPE.
#pragma once

#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "kvasir/status.h"
#include "text/normalizer.h"

namespace kvasir {

// Words as ranges of one text; no range is empty.
struct Words {
  struct Range {
    size_t begin, end;
    TextStart start;  // kBegin: where the user's whole text begins (for prepend_scheme "first")
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
  // Parses the value of "pre_tokenizer"; null leaves the words as they are. kUnsupported names a
  // type that is not implemented.
  static Result<std::unique_ptr<PreTokenizer>> Parse(const nlohmann::json& value);
  virtual ~PreTokenizer() = default;

  // REQUIRES: words->text is well-formed UTF-8.
  virtual Status Apply(Words* words) const = 0;
  // Like Apply, for a text of any length: `sink` gets the words in order, some thousands at a time,
  // so memory does not grow with their number. Ends with the first error of `sink`.
  using BatchSink = std::function<Status(const Words& batch)>;
  virtual Status ApplyInBatches(Words words, const BatchSink& sink) const {
    KV_TRY(Apply(&words));
    return sink(words);
  }
};

}  // namespace kvasir
