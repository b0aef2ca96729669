// TokensText: which of some tokens have a part of their text.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvasir/types.h"
#include "text/tokenizer.h"

namespace kvasir {

// Bytes [begin, end) of a text.
struct ContentBytes {
  size_t begin = 0, end = 0;
};
struct TokenRange {
  size_t first = 0, last = 0;  // both included
};

// The text of ids, special tokens shown. Immutable.
class TokensText {
 public:
  // `ids` and `tokenizer` must outlive it. O(ids).
  TokensText(std::span<const TokenId> ids, const Tokenizer& tokenizer);

  const std::string& text() const { return text_; }
  size_t size() const { return ids_.size(); }  // tokens
  // Returns the token with which the text has so many bytes; the number of tokens: none. O(log
  // ids).
  size_t TokenWith(size_t bytes) const;
  // Returns the token whose text reaches beyond the byte before, and the one with the last bytes.
  // Both are the number of tokens where none has text of it. O(log ids).
  TokenRange Find(const ContentBytes& bytes) const;

 private:
  // Gives so many bytes to the tokens from `begin` on: a byte token has one of them, or the U+FFFD
  // that it became. Returns how many tokens have theirs.
  size_t Share(size_t begin, size_t bytes);

  const std::span<const TokenId> ids_;
  const Tokenizer& tokenizer_;
  std::string text_;
  std::vector<size_t> ends_;  // of each token's share
};

// A message's content and a part of it.
struct ContentPart {
  std::string_view content;
  ContentBytes part;
};
// Returns it as templates show it that drop the white space around a content.
ContentPart Trimmed(const ContentPart& whole);

// Returns the tokens that have text of the part, where the ids stand for one message and what a
// template writes around it. Absent: the tokens between two special ones do not have the content,
// or what is left of it without white space around it, once, or nothing of the part. O(text).
std::optional<TokenRange> FindText(std::span<const TokenId> ids, const ContentPart& whole,
                                   const Tokenizer& tokenizer);

}  // namespace kvasir
