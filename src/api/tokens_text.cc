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

// Returns the bytes that a token adds after others of its kind. (The first token of a text may
// lack a space.)
size_t OwnBytes(std::string_view added, TokenId id, const Tokenizer& tokenizer) {
  TextStream stream(tokenizer, SpecialTokens::kShow);
  const bool continues = BeginsWithinCharacter(stream.Append(id));
  const std::string own = stream.Append(id);
  return continues || !added.ends_with(own) ? added.size() : own.size();
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
      // The text of byte tokens was certain only now; in a long run, that of this one too.
      const size_t own = OwnBytes(added, id, tokenizer);
      if (own == 0) {
        ends_.push_back(0);
        begin += Share(begin, added.size());
        text_ += added;
        continue;
      }
      Share(begin, added.size() - own);
    }
    text_ += added;
    ends_.push_back(text_.size());
    const bool is_mark = begin + 1 == ends_.size() && tokenizer.IsSpecial(id);
    if (!added.empty() || is_mark) begin = ends_.size();
  }
  const std::string rest = stream.Finish();
  if (begin < ends_.size()) Share(begin, rest.size());
  text_ += rest;
  // A token may have other text before half a character.
  if (!ends_.empty()) ends_.back() = text_.size();
}

size_t TokensText::Share(size_t begin, size_t bytes) {
  const size_t count = ends_.size() - begin, each = bytes == 3 * count ? 3 : 1;
  for (size_t i = 0; i < count; ++i) {
    ends_[begin + i] = text_.size() + std::min(bytes, each * (i + 1));
  }
  if (bytes > each * count) ends_.back() = text_.size() + bytes;
  return std::min(count, bytes / each);
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

ContentPart Trimmed(const ContentPart& whole) {
  constexpr std::string_view kSpace = " \t\n\v\f\r";
  const size_t begin = std::min(whole.content.find_first_not_of(kSpace), whole.content.size());
  const size_t end = std::max(begin, whole.content.find_last_not_of(kSpace) + 1);
  const auto clamp = [&](size_t at) { return std::clamp(at, begin, end) - begin; };
  return {whole.content.substr(begin, end - begin),
          {clamp(whole.part.begin), clamp(whole.part.end)}};
}

std::optional<TokenRange> FindText(std::span<const TokenId> ids, const ContentPart& whole,
                                   const Tokenizer& tokenizer) {
  const TokensText tokens(ids, SpecialTokens::kSkip, tokenizer);  // a mark may have it too
  for (const auto& [content, part] : {whole, Trimmed(whole)}) {
    const size_t at = tokens.text().find(content);
    if (content.empty() || at == std::string::npos || at != tokens.text().rfind(content)) continue;
    return tokens.Find({at + part.begin, at + part.end});
  }
  return std::nullopt;
}

}  // namespace kvasir
