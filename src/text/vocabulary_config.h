// What the JSON files of a Hugging Face folder say about a vocabulary without a tokenizer.json.
#pragma once

#include <string>
#include <string_view>

#include "kvasir/status.h"
#include "text/vocabulary.h"

namespace kvasir {

// Texts of the files, "" where absent.
struct VocabularyConfig {
  std::string_view tokenizer_config_json;  // added_tokens_decoder, bos_token, legacy, ...
  std::string_view special_tokens_json;    // special_tokens_map.json
  std::string_view added_tokens_json;      // {"text": id}
};

// Adds tokens after (or in the place of) those of the vocabulary, and BOS, EOS, add_bos_token,
// add_eos_token, add_prefix_space and legacy where the files have them. kCorruption names the file.
Status Apply(const VocabularyConfig& config, Vocabulary* vocabulary);

}  // namespace kvasir
