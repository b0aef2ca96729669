#include "server/session_prompt.h"

#include <algorithm>
#include <numeric>

#include "base/result.h"
#include "server/session_body.h"

namespace kvasir {
namespace {

// The messages that a prompt has: the system message, then those from `first` on.
struct Shown {
  Shown(const SessionState& state, size_t first) {
    if (state.has_system()) indexes.push_back(0);
    for (size_t i = first; i < state.messages.size(); ++i) indexes.push_back(i);
  }
  std::vector<size_t> indexes;
};

struct Rendered {
  RenderedChat chat;
  ChatPrompt prompt;
};

// Where message `s` of the chat is written.
std::pair<size_t, size_t> BytesOf(const RenderedChat& chat, size_t s) {
  return {s == 0 ? 0 : chat.message_end[s - 1], chat.message_end[s]};
}

// Where the content stands byte for byte in what the template wrote of message `s`.
std::optional<size_t> FindContent(const RenderedChat& chat, size_t s, std::string_view content) {
  const auto [begin, end] = BytesOf(chat, s);
  const auto first =
      std::ranges::upper_bound(chat.literal, begin, {}, &std::pair<size_t, size_t>::second);
  for (auto range = first; range != chat.literal.end() && range->first < end; ++range) {
    const std::string_view text =
        std::string_view(chat.text).substr(range->first, range->second - range->first);
    if (const size_t at = text.find(content); at != text.npos) return range->first + at;
  }
  return std::nullopt;
}

// Where an answer with thoughts and calls stands in it, with the marks that the template writes:
// the place must have all that the message says.
std::optional<size_t> FindWritten(const RenderedChat& chat, size_t s, std::string_view written) {
  const auto [begin, end] = BytesOf(chat, s);
  size_t first = end, last = begin;  // of the message's own bytes
  const auto from =
      std::ranges::upper_bound(chat.literal, begin, {}, &std::pair<size_t, size_t>::second);
  for (auto range = from; range != chat.literal.end() && range->first < end; ++range) {
    first = std::min(first, std::max(range->first, begin));
    last = std::min(range->second, end);
  }
  const size_t least = std::max(begin, last - std::min(last, written.size()));
  const size_t at = std::string_view(chat.text).substr(0, end).find(written, least);
  return first < end && at <= first ? std::optional(at) : std::nullopt;
}

std::vector<KnownIds> KnownOf(const SessionState& state, const Shown& shown,
                              const RenderedChat& chat) {
  std::vector<KnownIds> known;
  if (!state.setup->exact_ids) return known;
  for (size_t s = 0; s < shown.indexes.size() && s < chat.message_end.size(); ++s) {
    const SessionMessage& message = *state.messages[shown.indexes[s]];
    if (message.ids.empty()) continue;
    const std::optional<size_t> at = message.written.empty()
                                         ? FindContent(chat, s, message.content)
                                         : FindWritten(chat, s, message.written);
    if (at && (known.empty() || known.back().end <= *at)) {
      known.push_back({*at, *at + message.ids_bytes, message.ids,
                       message.ids_read_back ? ReadsBack::kAnywhere : ReadsBack::kUnknown});
    }
  }
  return known;
}

Result<Rendered> Render(const SessionState& state, const Shown& shown, const ModelView& model) {
  JsonTree tree;
  std::vector<JsonValue> messages;
  messages.reserve(shown.indexes.size());
  for (const size_t index : shown.indexes) {
    KV_ASSIGN(const JsonValue message, JsonOf(*state.messages[index], &tree));
    messages.push_back(message);
  }
  KV_ASSIGN(std::vector<JsonValue::Member> members, MembersOf(state.setup->fields, &tree));
  members.push_back({"messages", tree.Array(messages)});
  const JsonValue object = tree.Object(std::move(members));
  JsonFields fields(object);
  Rendered rendered;
  KV_ASSIGN(rendered.chat, RenderMessages(fields, &tree, model));
  if (!model.tokenizer) return tl::unexpected(NoTextError("messages", model));
  KV_ASSIGN(rendered.prompt,
            EncodeChat(rendered.chat, model, KnownOf(state, shown, rendered.chat)));
  return rendered;
}

// Where turns begin after `first`: at messages of the user.
std::vector<size_t> LaterTurns(const SessionState& state, size_t first) {
  std::vector<size_t> turns;
  for (size_t i = first + 1; i < state.messages.size(); ++i) {
    if (state.messages[i]->role == "user") turns.push_back(i);
  }
  return turns;
}

Error ContextFull(size_t tokens, const SessionState& state) {
  return {
      Code::kExhausted,
      fmt::format("the prompt has {} tokens, which with 1 to generate do not fit the session's "
                  "context of {}; truncate, edit or forget messages{}",
                  tokens, state.setup->max_context,
                  state.setup->drops_oldest ? ": its last turn alone is too long"
                                            : ", or make sessions with on_full: drop_oldest_turns"),
      "max_context"};
}

bool Fits(const Rendered& rendered, const SessionState& state) {
  return rendered.prompt.ids.size() < state.setup->max_context;
}

struct Fitted {
  Rendered rendered;
  Shown shown;
};

// Drops the oldest turns until three quarters of the context are in use at most: dropping one turn
// at a time would change, and compute, the whole prompt in every turn.
Result<Fitted> DropTurns(const SessionState& state, const ModelView& model, Rendered full) {
  const size_t most = std::max<size_t>(1, uint64_t{state.setup->max_context} * 3 / 4);
  const size_t first = state.first_shown();
  const size_t total = full.prompt.ids.size();
  const Shown all(state, first);
  const size_t system = state.has_system() ? 1 : 0;
  const auto end_of = [&](size_t index) {  // of a message in the full prompt
    const size_t s = system + (index - first);
    return size_t{full.prompt.message_ends[s]};
  };
  const size_t kept = system > 0 ? full.prompt.message_ends[0] : 0;
  const std::vector<size_t> turns = LaterTurns(state, first);
  size_t last_tokens = total;
  for (size_t t = 0; t < turns.size(); ++t) {
    const bool is_last = t + 1 == turns.size();
    if (!is_last && total - (end_of(turns[t] - 1) - kept) > most) continue;
    Shown shown(state, turns[t]);
    KV_ASSIGN(Rendered rendered, Render(state, shown, model));
    last_tokens = rendered.prompt.ids.size();
    if (last_tokens <= most || (is_last && Fits(rendered, state))) {
      return Fitted{std::move(rendered), std::move(shown)};
    }
  }
  return tl::unexpected(ContextFull(last_tokens, state));
}

Result<Fitted> Fit(const SessionState& state, const ModelView& model) {
  Shown shown(state, state.first_shown());
  KV_ASSIGN(Rendered rendered, Render(state, shown, model));
  if (Fits(rendered, state)) return Fitted{std::move(rendered), std::move(shown)};
  if (state.setup->drops_oldest) return DropTurns(state, model, std::move(rendered));
  return tl::unexpected(ContextFull(rendered.prompt.ids.size(), state));
}

// Ends of all messages of the session.
std::vector<uint32_t> AllEnds(const SessionState& state, const Shown& shown,
                              std::span<const uint32_t> ends) {
  std::vector<uint32_t> all(state.messages.size(), 0);
  for (size_t s = 0; s < shown.indexes.size() && s < ends.size(); ++s) {
    all[shown.indexes[s]] = ends[s];
  }
  for (size_t i = 1; i < all.size(); ++i) all[i] = std::max(all[i], all[i - 1]);
  return all;
}

SessionPrompt PromptOf(const SessionState& state, Fitted fitted) {
  SessionPrompt prompt;
  prompt.dropped = static_cast<uint32_t>(state.messages.size() - fitted.shown.indexes.size());
  prompt.chat.message_ends = AllEnds(state, fitted.shown, fitted.rendered.prompt.message_ends);
  prompt.chat.ends_inside_thought = fitted.rendered.prompt.ends_inside_thought;
  prompt.chat.ids = std::move(fitted.rendered.prompt.ids);
  return prompt;
}

}  // namespace

Result<SessionPrompt> PromptOf(const SessionState& state, const ModelView& model) {
  if (state.messages.empty()) return SessionPrompt();
  KV_ASSIGN(Fitted fitted, Fit(state, model));
  return PromptOf(state, std::move(fitted));
}

Result<PlacedPrompt> PlaceOf(const SessionState& state, size_t index,
                             std::optional<size_t> content_byte, const ModelView& model) {
  KV_ASSIGN(Fitted fitted, Fit(state, model));
  const auto& indexes = fitted.shown.indexes;
  const auto shown = std::ranges::find(indexes, index);
  const RenderedChat& chat = fitted.rendered.chat;
  size_t byte = chat.text.size();
  if (shown != indexes.end()) {
    const auto s = static_cast<size_t>(shown - indexes.begin());
    byte = BytesOf(chat, s).first;
    const auto at =
        content_byte ? FindContent(chat, s, state.messages[index]->content) : std::nullopt;
    if (at) byte = *at + *content_byte;
  }
  // The token whose text reaches beyond the byte before.
  TextStream stream(*model.tokenizer, SpecialTokens::kShow);
  size_t first = 0;
  for (size_t bytes = 0; first < fitted.rendered.prompt.ids.size(); ++first) {
    bytes += stream.Append(fitted.rendered.prompt.ids[first]).size();
    if (bytes > byte) break;
  }
  return PlacedPrompt{PromptOf(state, std::move(fitted)), first};
}

AnswerIds IdsOfAnswer(std::span<const TokenId> ids, std::string_view text,
                      const Tokenizer& tokenizer) {
  // Nearly always all of them, or all but the end of sequence.
  for (const size_t end : {size_t{0}, size_t{1}}) {
    if (ids.size() <= end) break;
    const size_t count = ids.size() - end;
    const ReadsBack reads_back = tokenizer.HowReads(ids.first(count), text);
    if (reads_back == ReadsBack::kAnywhere) return {count, text.size(), reads_back};
  }
  const auto decoder = tokenizer.StartDecoder(SpecialTokens::kShow);
  std::string part;
  std::string_view rest = text;
  size_t count = 0;
  for (; count < ids.size(); ++count) {
    decoder->Append(ids[count], &part);
    if (!rest.starts_with(part)) break;
    rest.remove_prefix(part.size());
    part.clear();
  }
  // The last of them may have begun a character that the text does not have.
  constexpr size_t kMostBack = 8;
  for (const size_t least = count - std::min(count, kMostBack); count > least; --count) {
    const std::string said = tokenizer.Decode(ids.first(count), SpecialTokens::kShow);
    if (text.starts_with(said)) {
      return {count, said.size(), tokenizer.HowReads(ids.first(count), said)};
    }
  }
  return {};
}

}  // namespace kvasir
