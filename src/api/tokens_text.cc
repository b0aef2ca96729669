#include "api/tokens_text.h"

#include <algorithm>

namespace kvasir {
namespace {

// Tells whether the token begins with bytes that end a character of the tokens before.
bool BeginsWithinCharacter(TokenId id, const Tokenizer& tokenizer) {
  return TextStream(tokenizer, SpecialTokens::kShow).Append(id).starts_with("\xEF\xBF\xBD");
}

}  // namespace

TokensText::TokensText(std::span<const TokenId> ids, SpecialTokens special,
                       const Tokenizer& tokenizer)
    : ids_(ids), tokenizer_(tokenizer) {
  TextStream stream(tokenizer, special);
  ends_.reserve(ids.size());
  for (const TokenId id : ids) {
    text_ += stream.Append(id);
    ends_.push_back(text_.size());
  }
}

size_t TokensText::TokenWith(size_t bytes) const {
  return static_cast<size_t>(std::ranges::lower_bound(ends_, bytes) - ends_.begin());
}

TokenRange TokensText::Find(const ContentBytes& bytes) const {
  size_t first = TokenWith(bytes.begin + 1);
  if (first < ids_.size()) {
    // A character of several tokens is text when the last of them comes; it begins with the first.
    while (first > 0 && ends_[first - 1] == (first > 1 ? ends_[first - 2] : 0)) --first;
    // A token of other text may end with the first bytes of the character.
    if (first > 0 && BeginsWithinCharacter(ids_[first], tokenizer_)) --first;
  }
  return {first, std::max(first, TokenWith(bytes.end))};
}

std::optional<TokenRange> FindText(std::span<const TokenId> ids, std::string_view content,
                                   const ContentBytes& part, const Tokenizer& tokenizer) {
  const TokensText tokens(ids, SpecialTokens::kSkip, tokenizer);  // a mark may have it too
  const size_t at = tokens.text().find(content);
  if (content.empty() || at == std::string::npos || at != tokens.text().rfind(content)) {
    return std::nullopt;
  }
  return tokens.Find({at + part.begin, at + part.end});
}

}  // namespace kvasir
