// How byte-level vocabularies cut a text into words. GGUF files name the way
// (`tokenizer.ggml.pre`).
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace kvasir {

// What else decides the tokens and is missing in GGUF files.
struct PatternTraits {
  bool nfc = false;          // the text is composed first (Unicode's NFC)
  bool whole_words = false;  // a word that is a token is not merged (`ignore_merges`)
  bool add_bos = false;      // to raw prompts, unless the file says otherwise
};

struct TextPattern {
  const char* names;     // with spaces between them
  const char* steps[8];  // run in order, each on the words of the step before; nullptr: the end
  PatternTraits traits = {};
};

// nullptr: no pattern has this name.
const TextPattern* FindTextPattern(std::string_view name);
// Returns all names, for messages: "default, gpt-2, ...".
std::string TextPatternNames();
// Writes it as "pre_tokenizer" of a tokenizer.json.
nlohmann::json PreTokenizerJson(const TextPattern& pattern);

}  // namespace kvasir
