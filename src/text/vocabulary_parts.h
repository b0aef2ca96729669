// What surrounds the merging of a Vocabulary: its normalizer, words, special tokens and decoder.
#pragma once

#include <nlohmann/json.hpp>

#include "kvasir/status.h"
#include "text/vocabulary.h"

namespace kvasir {

struct VocabularyParts {
  nlohmann::json json;  // as in a tokenizer.json, but without "model"
  bool whole_words = false, add_bos = false;
};

// kUnsupported: `pre` is unknown. The rest of the vocabulary may be wrong.
Result<VocabularyParts> PartsOf(const Vocabulary& vocabulary);

}  // namespace kvasir
