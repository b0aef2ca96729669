#include "api/tokens_text.h"

#include <algorithm>
#include <utility>

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

TokensText::TokensText(std::span<const TokenId> ids, const Tokenizer& tokenizer)
    : ids_(ids), tokenizer_(tokenizer) {
  TextStream stream(tokenizer, SpecialTokens::kShow);
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
  const size_t count = ends_.size() - begin;
  if (bytes > count && bytes != 3 * count) {  // some are of bytes that make no character
    std::fill(ends_.begin() + static_cast<std::ptrdiff_t>(begin), ends_.end(), text_.size());
    ends_.back() += bytes;
    return count;
  }
  const size_t each = bytes == 3 * count ? 3 : 1;
  for (size_t i = 0; i < count; ++i) {
    ends_[begin + i] = text_.size() + std::min(bytes, each * (i + 1));
  }
  return std::min(count, bytes / each);
}

size_t TokensText::TokenWith(size_t bytes) const {
  return static_cast<size_t>(std::ranges::lower_bound(ends_, bytes) - ends_.begin());
}

TokenRange TokensText::Find(const ContentBytes& bytes) const {
  size_t first = TokenWith(bytes.begin + 1);
  if (first < ids_.size()) {
    size_t own = first;  // the first of its tokens that is not empty
    // A character of several tokens is text when the last of them comes; it begins with the first.
    while (first > 0 && ends_[first - 1] == (first > 1 ? ends_[first - 2] : 0) &&
           !tokenizer_.IsSpecial(ids_[first - 1])) {
      if (!tokenizer_.TokenText(ids_[--first]).empty()) own = first;
    }
    // A token of other text may end with the first bytes of the character, or of half a one.
    const bool has_half = BeginsWithinCharacter(std::string_view(text_).substr(bytes.begin));
    if (first > 0 && (has_half || BeginsWithinCharacter(TextOf(ids_[own], tokenizer_)))) --first;
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
  // Marks may have the content too, and end a character that an answer was cut in.
  const auto is_mark = [&](TokenId id) { return tokenizer.IsSpecial(id); };
  std::vector<std::pair<size_t, TokensText>> texts;  // between marks, and where they begin
  for (size_t begin = 0, end; begin < ids.size(); begin = end + 1) {
    end = static_cast<size_t>(std::find_if(ids.begin() + begin, ids.end(), is_mark) - ids.begin());
    texts.emplace_back(begin, TokensText(ids.subspan(begin, end - begin), tokenizer));
  }
  for (const auto& [content, part] : {whole, Trimmed(whole)}) {
    if (content.empty()) continue;
    std::optional<TokenRange> found;
    size_t count = 0;
    for (const auto& [begin, tokens] : texts) {
      const size_t at = tokens.text().find(content);
      if (at == std::string::npos) continue;
      count += at == tokens.text().rfind(content) ? 1 : 2;
      const TokenRange range = tokens.Find({at + part.begin, at + part.end});
      if (range.last < tokens.size()) found = {begin + range.first, begin + range.last};
    }
    if (count == 1) return found;
  }
  return std::nullopt;
}

}  // namespace kvasir
