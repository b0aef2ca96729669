// Log probabilities in the two shapes of OpenAI's API.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "kvasir/engine.h"

namespace kvasir {

// What one token stands for. `text` is UTF-8; a token that is part of a character is spelt as
// OpenAI does, "bytes:\xe2\x80", and without a tokenizer as "token_id:17".
struct TokenSpelling {
  std::string text;
  std::string bytes;
};
TokenSpelling SpellToken(const Tokenizer* tokenizer, TokenId id);

// {"content": [{"token", "logprob", "bytes", "id", "top_logprobs": [...]}], "refusal": null}.
nlohmann::json ChatLogprobs(const std::vector<GeneratedToken>& tokens, const Tokenizer* tokenizer);

// {"tokens", "token_logprobs", "top_logprobs", "text_offset"}; offsets count characters, from
// `text_offset`. The chosen token is always among its top_logprobs, so they may be one more.
nlohmann::json LegacyLogprobs(const std::vector<GeneratedToken>& tokens, uint64_t text_offset,
                              const Tokenizer* tokenizer);

uint64_t CountCharacters(std::string_view utf8);

}  // namespace kvasir
