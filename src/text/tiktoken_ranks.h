// Ranks of tiktoken (*.tiktoken): a token in base64 and its id on each line.
#pragma once

#include <string>
#include <string_view>

#include "kvasir/status.h"
#include "text/vocabulary.h"

namespace kvasir {

// Tells whether `bytes` begin as such a file does. Llama 3's tokenizer.model is one.
bool LooksLikeTiktoken(std::string_view bytes);

// Returns the patterns: the file's name (cl100k_base, o200k_base, ...) or else the model's
// architecture ("qwen2") decides the pattern and the special tokens, whose ids follow the ranks.
// kCorruption: a line that is not a token and an id, or an id twice. kUnsupported: neither of them
// is known.
Result<Vocabulary> ParseTiktoken(std::string_view bytes, const std::string& file,
                                 std::string_view architecture);

}  // namespace kvasir
