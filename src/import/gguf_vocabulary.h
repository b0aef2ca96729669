// The vocabulary that a GGUF file holds (`tokenizer.ggml.*`).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "import/gguf.h"
#include "kvasir/status.h"
#include "kvasir/types.h"
#include "text/vocabulary.h"

namespace kvasir {

// Absent: the file has none. kUnsupported: of a kind that is not read, by name. kCorruption: a key
// of a wrong type, lists whose lengths differ; the message names `file`, the key and the fix.
// Tokens may still be wrong (CheckVocabulary).
Result<std::optional<Vocabulary>> ReadGgufVocabulary(const GgufFile& gguf, const std::string& file);

// Returns the tokens that end an answer by what they are called ("<|im_end|>"), whether or not the
// file says so; ascending. Empty without a list of tokens.
std::vector<TokenId> EndsByName(const GgufFile& gguf);

}  // namespace kvasir
