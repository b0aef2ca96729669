#include "api/tokens_text.h"

#include <algorithm>

namespace kvasir {
namespace {

// Returns the text of a token alone.
std::string TextOf(TokenId id, const Tokenizer& tokenizer) {
  return TextStream(tokenizer, SpecialTokens::kShow).Append(id);
}

// Tells whether a token's text begins with bytes that end a character of the tokens before.
bool BeginsWithinCharacter(std::string_view text) { return text.starts_with("\xEF\xBF\xBD"); }

// Returns how many of the bytes that came with a token are its own; the others are of byte tokens
// before it, which were certain only then.
size_t OwnBytes(std::string_view added, TokenId id, const Tokenizer& tokenizer) {
  const std::string own = TextOf(id, tokenizer);
  return BeginsWithinCharacter(own) || !added.ends_with(own) ? added.size() : own.size();
}

}  // namespace

TokensText::TokensText(std::span<const TokenId> ids, SpecialTokens special,
                       const Tokenizer& tokenizer)
    : ids_(ids), tokenizer_(tokenizer) {
  TextStream stream(tokenizer, special);
  ends_.reserve(ids.size());
  size_t begin = 0;  // of the tokens whose text has not come
  for (const TokenId id : ids) {
    const std::string added = stream.Append(id);
    if (begin < ends_.size() && !added.empty()) {
      Share(begin, added.size() - OwnBytes(added, id, tokenizer));
    }
    text_ += added;
    ends_.push_back(text_.size());
    if (!added.empty()) begin = ends_.size();
  }
  const std::string rest = stream.Finish();
  if (begin < ends_.size()) Share(begin, rest.size());
  text_ += rest;
}

void TokensText::Share(size_t begin, size_t bytes) {
  const size_t count = ends_.size() - begin, each = bytes % count == 0 ? bytes / count : 0;
  for (size_t i = 0; i < count; ++i) ends_[begin + i] = text_.size() + each * (i + 1);
  ends_.back() = text_.size() + bytes;
}

size_t TokensText::TokenWith(size_t bytes) const {
  return static_cast<size_t>(std::ranges::lower_bound(ends_, bytes) - ends_.begin());
}

TokenRange TokensText::Find(const ContentBytes& bytes) const {
  size_t first = TokenWith(bytes.begin + 1);
  if (first < ids_.size()) {
    // A character of several tokens is text when the last of them comes; it begins with the first.
    while (first > 0 && ends_[first - 1] == (first > 1 ? ends_[first - 2] : 0) &&
           !tokenizer_.IsSpecial(ids_[first - 1])) {
      --first;
    }
    // A token of other text may end with the first bytes of the character.
    if (first > 0 && BeginsWithinCharacter(TextOf(ids_[first], tokenizer_))) --first;
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
