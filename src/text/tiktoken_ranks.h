// Ranks of tiktoken (*.tiktoken): a token in base64 and its id on each line.
#pragma once

#include <string>
#include <string_view>

#include "kvasir/status.h"
#include "text/vocabulary.h"

namespace kvasir {

// Whether `bytes` begin as such a file does. Llama 3's tokenizer.model is one.
bool LooksLikeTiktoken(std::string_view bytes);

// architecture: of the model ("qwen2"), which decides the pattern and the special tokens behind the
// ranks; where it does not, the file's name does (cl100k_base, o200k_base, ...).
// kCorruption: a line that is no token and id, an id twice. kUnsupported: the pattern is not known.
Result<Vocabulary> ParseTiktoken(std::string_view bytes, const std::string& file,
                                 std::string_view architecture);

}  // namespace kvasir
