// From a rendered chat to the prompt's tokens.
#include <algorithm>
#include <optional>

#include "api/chat_prompt.h"

namespace kvasir {
namespace {

struct Encoded {
  std::vector<TokenId> ids;
  std::vector<EncodedPart> parts;  // of the chat's text
};

// Appends the ids of bytes [begin, end) of the chat.
Status AppendPart(const RenderedChat& chat, size_t begin, size_t end, const ModelView& model,
                  Encoded* to) {
  if (begin == end) return {};
  std::vector<EncodedPart> parts;
  EncodeOptions options;
  options.add_special = false;  // the template writes special tokens
  options.at_start = begin == 0;
  options.written = *chat.written;
  options.max_tokens = chat.max_tokens.value_or(model.max_text_tokens());
  options.pieces = model.pieces ? &model.pieces : nullptr;
  options.parts = &parts;
  options.finds_reads_back = begin > 0 || end < chat.text.size();
  if (begin > 0 || end < chat.text.size()) {
    options.literal.emplace_back(0, 0);  // a part without literal text is a part of a chat too
  }
  const auto first =
      std::ranges::upper_bound(chat.literal, begin, {}, &std::pair<size_t, size_t>::second);
  for (auto range = first; range != chat.literal.end() && range->first < end; ++range) {
    options.literal.emplace_back(std::max(range->first, begin) - begin,
                                 std::min(range->second, end) - begin);
  }
  const std::string_view part = std::string_view(chat.text).substr(begin, end - begin);
  auto more = model.tokenizer->Encode(part, options);
  if (!more) return FailField(more.error().code, "messages", "{}", more.error().text());
  for (const EncodedPart& one : parts) {
    to->parts.push_back({begin + one.text_end, to->ids.size() + one.ids_end, one.reads_back});
  }
  if (to->ids.empty()) {
    to->ids = std::move(*more);
  } else {
    to->ids.insert(to->ids.end(), more->begin(), more->end());
  }
  return {};
}

Result<Encoded> EncodeAround(const RenderedChat& chat, const ModelView& model,
                             std::span<const KnownIds> known) {
  Encoded encoded;
  size_t done = 0;
  for (const KnownIds& one : known) {
    KV_TRY(AppendPart(chat, done, one.begin, model, &encoded));
    encoded.ids.insert(encoded.ids.end(), one.ids.begin(), one.ids.end());
    encoded.parts.push_back({one.end, encoded.ids.size(), one.reads_back});
    done = one.end;
  }
  KV_TRY(AppendPart(chat, done, chat.text.size(), model, &encoded));
  return encoded;
}

// Where a text ends in ids, and where the next one begins: one token may have both.
struct Border {
  uint32_t end = 0, next = 0;
};

// Finds borders: after the token whose text reaches the last byte, and where that has more, before
// it. Decodes only the parts in which texts end. (Where decoding adds or drops a space, the result
// may be off by one: good enough for a receipt.)
std::vector<Border> Borders(const Encoded& encoded, std::span<const size_t> text_ends,
                            const Tokenizer& tokenizer) {
  std::vector<Border> borders;
  borders.reserve(text_ends.size());
  EncodedPart before;
  auto part = encoded.parts.begin();
  std::optional<TextStream> stream;  // of the part
  size_t bytes = 0, next = 0;        // the text and the ids that it has taken
  for (const size_t end : text_ends) {
    for (; part != encoded.parts.end() && part->text_end < end; ++part) {
      before = *part;
      stream.reset();
    }
    if (part == encoded.parts.end() || part->text_end == end) {
      const auto at = static_cast<uint32_t>(end <= before.text_end        ? before.ids_end
                                            : part == encoded.parts.end() ? encoded.ids.size()
                                                                          : part->ids_end);
      borders.push_back({at, at});
      continue;
    }
    if (!stream) {
      stream.emplace(tokenizer, SpecialTokens::kShow);
      bytes = before.text_end;
      next = before.ids_end;
    }
    while (bytes < end && next < part->ids_end) bytes += stream->Append(encoded.ids[next++]).size();
    const auto at = static_cast<uint32_t>(next);
    borders.push_back({at, bytes > end ? at - 1 : at});
  }
  return borders;
}

std::vector<uint32_t> EndsOf(std::span<const Border> borders) {
  std::vector<uint32_t> ends;
  ends.reserve(borders.size());
  for (const Border& border : borders) ends.push_back(border.end);
  return ends;
}

// Finds where messages begin; `borders`: where they end. Where a template writes them out of their
// order, the token before is taken too: it may have the first bytes.
std::vector<uint32_t> MessageBegins(const Encoded& encoded, const RenderedChat& chat,
                                    std::span<const Border> borders, const Tokenizer& tokenizer) {
  std::vector<uint32_t> begins(borders.size(), 0);
  bool in_order = true;
  for (size_t i = 1; i < begins.size(); ++i) {
    begins[i] = borders[i - 1].next;
    in_order &= chat.message_begin[i] == chat.message_end[i - 1];
  }
  if (in_order) return begins;
  const std::vector<Border> earliest = Borders(encoded, chat.message_begin, tokenizer);
  for (size_t i = 1; i < begins.size(); ++i) {
    begins[i] = std::min(begins[i], earliest[i].end - std::min(earliest[i].end, 1U));
  }
  return begins;
}

bool ReadsBackInParts(const Encoded& encoded) {
  return std::ranges::all_of(encoded.parts, [](const EncodedPart& part) {
    return part.reads_back == ReadsBack::kAnywhere;
  });
}

// Tells whether the ids decode to the text.
bool Reads(const Tokenizer& tokenizer, std::span<const TokenId> ids, std::string_view text) {
  const auto decoder = tokenizer.StartDecoder(SpecialTokens::kShow);
  std::string part;
  const auto take = [&] {
    const bool same = text.starts_with(part);
    if (same) text.remove_prefix(part.size());
    part.clear();
    return same;
  };
  for (const TokenId id : ids) {
    decoder->Append(id, &part);
    if (!take()) return false;
  }
  decoder->Finish(&part);
  return take() && text.empty();
}

// Returns what the ids decode to after other text.
std::string TextInside(const Tokenizer& tokenizer, std::span<const TokenId> ids) {
  std::vector<TokenId> twice(ids.begin(), ids.end());
  const size_t alone = tokenizer.Decode(twice, SpecialTokens::kShow).size();
  twice.insert(twice.end(), ids.begin(), ids.end());
  std::string text = tokenizer.Decode(twice, SpecialTokens::kShow);
  return text.erase(0, alone);
}

// Adds the space before an answer to the bytes of its ids. SentencePiece decodes the space that its
// first token has only after other text: an answer begins without it, and templates write one
// before the answer. Then the ids stand for that space too.
void TakeSpacesBefore(std::string_view text, const Tokenizer& tokenizer,
                      std::vector<KnownIds>* known) {
  size_t done = 0;
  for (KnownIds& one : *known) {
    const auto first = one.ids.first(1);
    const bool may_have_one = one.begin > done && text[one.begin - 1] == ' ';
    if (may_have_one && TextInside(tokenizer, first).size() ==
                            tokenizer.Decode(first, SpecialTokens::kShow).size() + 1) {
      --one.begin;
    }
    done = one.end;
  }
}

// Encodes a chat with the ids that are known, where the whole decodes to what the chat reads.
Result<Encoded> EncodeWith(std::vector<KnownIds> known, const RenderedChat& chat,
                           const ModelView& model) {
  const Tokenizer& tokenizer = *model.tokenizer;
  TakeSpacesBefore(chat.text, tokenizer, &known);
  KV_ASSIGN(Encoded encoded, EncodeAround(chat, model, known));
  if (known.empty() || ReadsBackInParts(encoded) || Reads(tokenizer, encoded.ids, chat.text)) {
    return encoded;
  }
  // Some tokenizers add spaces to what they encode: then the ids must decode to the same.
  KV_ASSIGN(Encoded plain, EncodeAround(chat, model, {}));
  const std::string wanted = tokenizer.Decode(plain.ids, SpecialTokens::kShow);
  if (Reads(tokenizer, encoded.ids, wanted)) return encoded;
  std::erase_if(known, [&](const KnownIds& one) {
    return TextInside(tokenizer, one.ids) != chat.text.substr(one.begin, one.end - one.begin);
  });
  KV_ASSIGN(encoded, EncodeAround(chat, model, known));
  const bool reads =
      Reads(tokenizer, encoded.ids, chat.text) || Reads(tokenizer, encoded.ids, wanted);
  return reads ? std::move(encoded) : std::move(plain);
}

// Finds where the ids of bytes that were known end in the prompt, if these bytes begin and end
// there.
std::optional<uint32_t> EndOf(const Encoded& encoded, const KnownIds& known) {
  const auto part = std::ranges::lower_bound(encoded.parts, known.end, {}, &EncodedPart::text_end);
  if (part == encoded.parts.end() || part->text_end != known.end) return std::nullopt;
  return static_cast<uint32_t>(part->ids_end);
}

}  // namespace

Result<std::vector<TokenId>> EncodePart(const RenderedChat& chat, size_t begin, size_t end,
                                        const ModelView& model) {
  Encoded encoded;
  KV_TRY(AppendPart(chat, begin, end, model, &encoded));
  return std::move(encoded.ids);
}

std::vector<size_t> LineBegins(const RenderedChat& chat) {
  std::vector<size_t> cuts = {0};
  auto literal = chat.literal.begin();
  for (const size_t end : chat.message_end) {
    while (literal != chat.literal.end() && literal->first < cuts.back()) ++literal;
    if (literal != chat.literal.end() && literal->first < end) cuts.push_back(literal->first);
    cuts.push_back(end);
  }
  return LineBegins(chat.text, cuts);
}

Result<std::vector<uint32_t>> TokensBefore(const RenderedChat& chat,
                                           std::span<const size_t> text_ends,
                                           const ModelView& model) {
  KV_ASSIGN(const Encoded encoded, EncodeAround(chat, model, {}));
  return EndsOf(Borders(encoded, text_ends, *model.tokenizer));
}

namespace {

PromptHead HeadOf(const RenderedChat& chat, const ModelView& model) {
  PromptHead head;
  if (!model.heads) return head;
  const std::vector<size_t> begins = LineBegins(chat);
  head.lines = model.heads.LinesOf(chat.text, begins);
  const size_t said = chat.message_end.empty() ? 0 : chat.message_end.back();
  // An entry more than there are lines: where the last one ends.
  const auto after = std::ranges::upper_bound(begins, said);
  head.said_lines = static_cast<uint32_t>(after - begins.begin() - 1);
  return head;
}

}  // namespace

Result<ChatPrompt> EncodeChat(const RenderedChat& chat, const ModelView& model,
                              std::span<const KnownIds> known) {
  KV_ASSIGN(Encoded encoded, EncodeWith({known.begin(), known.end()}, chat, model));
  ChatPrompt prompt;
  prompt.unseen = chat.unseen;
  prompt.head = HeadOf(chat, model);
  for (const KnownIds& one : known) prompt.known_ends.push_back(EndOf(encoded, one));
  prompt.clock_in_prompt = chat.clock_in_prompt;
  prompt.cured = chat.cured;
  prompt.marks = chat.marks;
  prompt.begins_with_system = chat.begins_with_system;
  if (model.think) {
    // A message that is continued belongs to the answer.
    const size_t before = chat.is_continued ? 2 : 1;
    const size_t count = chat.message_end.size();
    const size_t end = count < before ? 0 : chat.message_end[count - before];
    prompt.thought = ThoughtAtEnd(*model.think, std::string_view(chat.text).substr(end));
  }
  const std::vector<Border> borders = Borders(encoded, chat.message_end, *model.tokenizer);
  prompt.message_ends = EndsOf(borders);
  prompt.message_begins = MessageBegins(encoded, chat, borders, *model.tokenizer);
  prompt.ids = std::move(encoded.ids);
  return prompt;
}

}  // namespace kvasir
