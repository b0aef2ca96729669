// How byte-level vocabularies cut a text into words, by the names that GGUF files have for it
// (`tokenizer.ggml.pre`).
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace kvasir {

// What decides tokens beside the words, and is in no GGUF file either.
struct PatternTraits {
  bool nfc = false;          // the text is composed first (Unicode's NFC)
  bool whole_words = false;  // a word that is a token is not merged (`ignore_merges`)
  bool add_bos = false;      // to raw prompts, unless the file says otherwise
};

struct TextPattern {
  const char* names;     // with spaces between them
  const char* steps[8];  // one after the other, each on the words of those before; nullptr: no more
  PatternTraits traits = {};
};

// nullptr: no pattern has this name.
const TextPattern* FindTextPattern(std::string_view name);
// All names, for messages: "default, gpt-2, ...".
std::string TextPatternNames();
// As "pre_tokenizer" of a tokenizer.json.
nlohmann::json PreTokenizerJson(const TextPattern& pattern);

}  // namespace kvasir
