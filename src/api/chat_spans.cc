#include "api/chat_spans.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string_view>

#include "base/result.h"

namespace kvasir {
namespace {

// A text part of a message that is a span.
struct SpanText {
  size_t message, part;
  std::string_view text;

  std::string path() const { return fmt::format("messages[{}].content[{}]", message, part); }
};

std::vector<SpanText> SpanTextsOf(const JsonValue& messages) {
  std::vector<SpanText> spans;
  for (size_t i = 0; i < messages.size(); ++i) {
    const JsonValue* content = messages.items()[i].Find("content");
    if (!content || !content->is_array()) continue;
    for (size_t j = 0; j < content->size(); ++j) {
      const JsonValue* span = content->items()[j].Find("span");
      if (!span || !span->is_bool() || !span->boolean()) continue;
      spans.push_back({i, j, content->items()[j].Find("text")->text()});
    }
  }
  return spans;
}

// Returns the byte of the chat at which the span begins.
Result<size_t> PlaceOf(const SpanText& span, const RenderedChat& chat) {
  const size_t begin = chat.message_begin[span.message], end = chat.message_end[span.message];
  const std::string_view text = std::string_view(chat.text).substr(0, end);
  const size_t at = span.text.empty() ? text.npos : text.find(span.text, begin);
  if (at == text.npos) {
    return FailField(Code::kInvalidArgument, span.path(),
                     "the chat template does not show this span as it is; leave out its span, or "
                     "what the template changes of its text");
  }
  if (text.find(span.text, at + 1) == text.npos) return at;
  return FailField(Code::kInvalidArgument, span.path(),
                   "the message has the text of this span twice; leave out its span");
}

// Returns where the ids stand in the prompt; absent where the tokenizer joins them with others.
std::optional<PromptSpan> RangeOf(const ChatPrompt& prompt, size_t index,
                                  std::span<const TokenId> ids) {
  const auto end = prompt.known_ends[index];
  if (!end || *end < ids.size()) return std::nullopt;
  const auto begin = static_cast<uint32_t>(*end - ids.size());
  if (!std::ranges::equal(std::span(prompt.ids).subspan(begin, ids.size()), ids)) {
    return std::nullopt;
  }
  return PromptSpan{begin, *end};
}

// Names the field of an error of the encoder.
template <typename T>
Result<T> EncodedOrNamed(Result<T> encoded, const RenderedChat& chat, const ModelView& model) {
  if (encoded) return encoded;
  const size_t most = chat.max_tokens.value_or(model.max_text_tokens());
  return tl::unexpected(EncodeError(encoded.error(), "messages", most, model));
}

}  // namespace

Result<SpannedPrompt> EncodeSpans(JsonFields& fields, const RenderedChat& chat,
                                  const ModelView& model) {
  SpannedPrompt spanned;
  const std::vector<SpanText> spans = SpanTextsOf(*fields.Find("messages"));
  if (spans.empty()) {
    KV_ASSIGN(spanned.prompt, EncodedOrNamed(EncodeChat(chat, model), chat, model));
    return spanned;
  }
  if (spans.size() > kMaxSpans) {
    return FailField(Code::kInvalidArgument, "messages", "{} spans; a prompt has at most {}",
                     spans.size(), kMaxSpans);
  }
  std::vector<std::vector<TokenId>> ids(spans.size());
  std::vector<KnownIds> known;
  for (size_t i = 0; i < spans.size(); ++i) {
    KV_ASSIGN(const size_t begin, PlaceOf(spans[i], chat));
    if (!known.empty() && begin < known.back().end) {
      return FailField(Code::kInvalidArgument, spans[i].path(),
                       "the chat template shows this span before or in another one");
    }
    const size_t end = begin + spans[i].text.size();
    KV_ASSIGN(ids[i], EncodedOrNamed(EncodePart(chat, begin, end, model), chat, model));
    known.push_back({begin, end, ids[i]});
  }
  KV_ASSIGN(spanned.prompt, EncodedOrNamed(EncodeChat(chat, model, known), chat, model));
  for (size_t i = 0; i < spans.size(); ++i) {
    const auto range = RangeOf(spanned.prompt, i, ids[i]);
    if (!range) {
      return FailField(Code::kInvalidArgument, spans[i].path(),
                       "the tokens of this span alone read otherwise in the chat; leave out its "
                       "span");
    }
    spanned.spans.push_back(*range);
  }
  return spanned;
}

}  // namespace kvasir
