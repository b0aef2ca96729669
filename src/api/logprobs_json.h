// Log probabilities in the two shapes of OpenAI's API.
#pragma once

#include <cstdint>
#include <deque>
#include <limits>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "base/parts.h"
#include "kvasir/engine_event.h"
#include "text/tokenizer.h"

namespace kvasir {

// Probabilities of tokens: the model's, as logarithms, or those that they were drawn with.
enum class Probs { kModel, kSampled };

// The value of a token without a log probability, the first of a prompt: null in answers.
inline constexpr float kNoLogprob = std::numeric_limits<float>::quiet_NaN();

// The spelling of a token. `text` is UTF-8; for a token that is part of a character it is
// "bytes:\xe2\x80", as in OpenAI's API, and without a tokenizer "token_id:17".
struct TokenSpelling {
  std::string text;
  std::string bytes;
};
TokenSpelling SpellToken(const Tokenizer* tokenizer, TokenId id);

// {"content": [{"token", "logprob", "bytes", "id", "top_logprobs": [...]}], "refusal": null}.
nlohmann::json ChatLogprobs(const std::vector<GeneratedToken>& tokens, const Tokenizer* tokenizer);

// {"tokens", "token_logprobs", "top_logprobs", "text_offset"}; offsets count characters, from
// `text_offset`. top_logprobs always include the chosen token, so there may be one more.
nlohmann::json LegacyLogprobs(const std::vector<GeneratedToken>& tokens, uint64_t text_offset,
                              const Tokenizer* tokenizer);

// `completion_probabilities` of llama.cpp's server: [{"id", "token", "bytes", "logprob",
// "top_logprobs": [...]}], or "prob" and "top_probs". A part of a character has the text U+FFFD.
nlohmann::json LlamaProbabilities(const std::vector<GeneratedToken>& tokens, Probs probs,
                                  const Tokenizer* tokenizer);

uint64_t CountCharacters(std::string_view utf8);

// The tokens of a choice with their log probabilities, packed until the answer is sent.
class ScoredTokens {
 public:
  void Add(const GeneratedToken& token);
  // Returns the memory of one token.
  static uint64_t TokenBytes(size_t num_top) {
    return sizeof(Entry) + num_top * sizeof(TokenLogprob);
  }

  // Returns the texts of ChatLogprobs and LegacyLogprobs. `this` must outlive them.
  Parts ChatText(const Tokenizer* tokenizer) const;
  Parts LlamaText(Probs probs, const Tokenizer* tokenizer) const;
  Parts LegacyText(uint64_t text_offset, const Tokenizer* tokenizer) const;

 private:
  struct Entry {
    TokenId id;
    float logprob;
    uint32_t characters;  // of its text
    uint32_t num_top;
  };
  // Returns the next token without its text. Moves `top` past its alternatives.
  static GeneratedToken Unpack(const Entry& entry, std::deque<TokenLogprob>::const_iterator* top);

  std::deque<Entry> entries_;  // deques do not double as they grow
  std::deque<TokenLogprob> top_;
};

}  // namespace kvasir
