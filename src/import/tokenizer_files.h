// The text files beside a model's weights: its tokenizer and chat template.
#pragma once

#include <filesystem>

#include "import/gguf.h"
#include "import/importer.h"
#include "kvasir/status.h"

namespace kvasir {

// Reads tokenizer.json, tokenizer_config.json, and the chat templates where the model has none yet:
// chat_template.jinja, else what tokenizer_config.json says, else chat_template.json; the named
// ones from these and from additional_chat_templates/*.jinja. special_tokens_map.json where
// special_tokens_json is empty. Without a tokenizer.json and a vocabulary of the model's own:
// tokenizer.model, else *.tiktoken, else sentencepiece.bpe.model (M2M-100, NLLB), whose errors stay
// in model.vocabulary. What is absent stays empty. Errors as ReadTextFile; kCorruption for a JSON
// file that is not an object.
Status ReadTokenizerFiles(const std::filesystem::path& folder, ImportedModel& model);

// Returns what a GGUF file says of its special tokens, as special_tokens_json: their ids, the texts
// that tokenizer.ggml.tokens has for them, and whether they are added to raw prompts. "" if
// nothing.
std::string GgufSpecialTokens(const GgufFile& gguf);

}  // namespace kvasir
