#include "api/session_prompt.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "api/session_body.h"
#include "base/result.h"

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
  std::optional<ChatPrompt> prompt;  // absent: it has more than ModelView::max_text_tokens tokens
};

// Returns where message `s` of the chat is written.
std::pair<size_t, size_t> BytesOf(const RenderedChat& chat, size_t s) {
  return {chat.message_begin[s], chat.message_end[s]};
}

// Finds where the content stands byte for byte in what the template wrote of message `s`.
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

// Finds where an answer with thoughts and calls stands in it, with the marks that the template
// writes: the place must have all that the message says.
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
    const std::optional<size_t> at = message.more().written.empty()
                                         ? FindContent(chat, s, message.content)
                                         : FindWritten(chat, s, message.more().written);
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
  members.push_back(
      {"continue_final_message", JsonValue(false)});  // messages of sessions are whole
  const JsonValue object = tree.Object(std::move(members));
  JsonFields fields(object);
  Rendered rendered;
  KV_ASSIGN(rendered.chat, RenderMessages(fields, &tree, model));
  if (!model.tokenizer) return tl::unexpected(NoTextError("messages", model));
  auto prompt = EncodeChat(rendered.chat, model, KnownOf(state, shown, rendered.chat));
  if (prompt) rendered.prompt = std::move(*prompt);
  if (!prompt && prompt.error().code != Code::kExhausted) return tl::unexpected(prompt.error());
  return rendered;
}

// Finds where turns begin after `first`: at messages of the user.
std::vector<size_t> LaterTurns(const SessionState& state, size_t first) {
  std::vector<size_t> turns;
  for (size_t i = first + 1; i < state.messages.size(); ++i) {
    if (state.messages[i]->role == "user") turns.push_back(i);
  }
  return turns;
}

// Returns the error of a prompt of so many tokens; absent: of more than are counted.
Error ContextFull(std::optional<size_t> tokens, const SessionState& state, const ModelView& model) {
  const std::string count =
      tokens ? std::to_string(*tokens) : fmt::format("more than {}", model.max_text_tokens());
  Error error{
      Code::kExhausted,
      fmt::format("the prompt has {} tokens, which with 1 to generate do not fit the session's "
                  "context of {}; truncate, edit or forget messages{}",
                  count, MaxContextOf(state, model),
                  state.setup->drops_oldest ? ": its last turn alone is too long"
                                            : ", or make sessions with on_full: drop_oldest_turns"),
      "max_context"};
  error.cause = Cause::kContext;
  error.excess = {.prompt_tokens = tokens.value_or(model.max_text_tokens() + 1),
                  .ctx_size = MaxContextOf(state, model),
                  .is_least = !tokens};
  return error;
}

std::optional<size_t> TokensOf(const Rendered& rendered) {
  return rendered.prompt ? std::optional(rendered.prompt->ids.size()) : std::nullopt;
}

struct Fitted {
  Rendered rendered;  // it has a prompt
  Shown shown;
};

// Drops the oldest turns until three quarters of the context are in use at most: dropping one turn
// at a time would change, and compute, the whole prompt in every turn. Of the last turn the whole
// context may be in use. Renders from the end on, 1, 2, 4, ... turns more, and then halves: a few
// renderings of about what stays, however long the session is. `tokens`: of all of it.
Result<Fitted> DropTurns(const SessionState& state, const ModelView& model,
                         std::optional<size_t> tokens) {
  const size_t max_context = MaxContextOf(state, model);
  const size_t most = std::max<size_t>(1, max_context * 3 / 4);
  const std::vector<size_t> turns = LaterTurns(state, state.first_shown());
  std::optional<Fitted> best;
  size_t fits = turns.size(), least = 0;  // those before `least` do not fit
  for (size_t more = 1; least < fits;) {
    const size_t t = fits - std::min(more, (fits - least + 1) / 2);
    Shown shown(state, turns[t]);
    KV_ASSIGN(Rendered rendered, Render(state, shown, model));
    const bool is_last = t + 1 == turns.size();
    const std::optional<size_t> has = TokensOf(rendered);
    if (is_last) tokens = has;
    if (has && (*has <= most || (is_last && *has < max_context))) {
      best.emplace(std::move(rendered), std::move(shown));
      fits = t;
      more *= 2;
    } else {
      least = t + 1;
    }
  }
  if (best) return std::move(*best);
  return tl::unexpected(ContextFull(tokens, state, model));
}

Result<Fitted> Fit(const SessionState& state, const ModelView& model) {
  Shown shown(state, state.first_shown());
  KV_ASSIGN(Rendered rendered, Render(state, shown, model));
  const std::optional<size_t> tokens = TokensOf(rendered);
  if (tokens && *tokens < MaxContextOf(state, model)) {
    return Fitted{std::move(rendered), std::move(shown)};
  }
  if (state.setup->drops_oldest) return DropTurns(state, model, tokens);
  return tl::unexpected(ContextFull(tokens, state, model));
}

// Ends, or begins, of all messages of the session.
std::vector<uint32_t> AllPlaces(const SessionState& state, const Shown& shown,
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
  prompt.chat.message_ends = AllPlaces(state, fitted.shown, fitted.rendered.prompt->message_ends);
  prompt.chat.message_begins =
      AllPlaces(state, fitted.shown, fitted.rendered.prompt->message_begins);
  prompt.chat.thought = fitted.rendered.prompt->thought;
  prompt.chat.head = std::move(fitted.rendered.prompt->head);
  prompt.chat.cured = fitted.rendered.prompt->cured;
  prompt.chat.clock_in_prompt = fitted.rendered.prompt->clock_in_prompt;
  prompt.chat.begins_with_system = fitted.rendered.prompt->begins_with_system;
  prompt.chat.unseen = std::move(fitted.rendered.prompt->unseen);
  for (jinja::ChatPart& part : prompt.chat.unseen) {
    using Kind = jinja::ChatPart::Kind;
    if (part.kind == Kind::kTools || part.kind == Kind::kVariable) continue;
    part.message = static_cast<uint32_t>(fitted.shown.indexes[part.message]);
  }
  prompt.chat.ids = std::move(fitted.rendered.prompt->ids);
  return prompt;
}

}  // namespace

uint32_t MaxContextOf(const SessionState& state, const ModelView& model) {
  return std::min(state.setup->max_context, model.ctx_size);
}

void ClipAnswer(const SessionState& state, const ModelView& model, size_t prompt_tokens,
                const RetentionChoice& otherwise, GenerateRequest* request) {
  const RetentionChoice& retention = request->retention ? *request->retention : otherwise;
  if (retention.policy != Retention::kFull) return;
  const auto room = static_cast<uint32_t>(MaxContextOf(state, model) - prompt_tokens);
  request->max_tokens = std::min(request->max_tokens, room);
}

Result<SessionPrompt> PromptOf(const SessionState& state, const ModelView& model) {
  if (state.messages.empty()) return SessionPrompt();
  KV_ASSIGN(Fitted fitted, Fit(state, model));
  return PromptOf(state, std::move(fitted));
}

Result<SessionPrompt> WholePromptOf(const SessionState& state, const ModelView& model) {
  if (state.messages.empty()) return SessionPrompt();
  Shown shown(state, state.first_shown());
  KV_ASSIGN(Rendered rendered, Render(state, shown, model));
  if (!rendered.prompt) return tl::unexpected(ContextFull(std::nullopt, state, model));
  return PromptOf(state, Fitted{std::move(rendered), std::move(shown)});
}

namespace {

// Where a text stands in a prompt.
struct Place {
  TokenRange text;
  size_t closing;  // the token after the content; absent content: the number of tokens
  size_t end;      // the token after the last one that has text of the message alone
};

// Finds it by its bytes in the chat, which are those of the tokens' text.
Place PlaceByBytes(const RenderedChat& chat, size_t s, const std::optional<ContentPart>& whole,
                   const TokensText& tokens) {
  const auto [begin, end] = BytesOf(chat, s);
  if (whole) {
    for (const auto& [content, part] : {*whole, Trimmed(*whole)}) {
      if (content.empty() && !whole->content.empty()) break;
      const auto at = FindContent(chat, s, content);
      if (!at) continue;
      return {tokens.Find({*at + part.begin, *at + part.end}),
              tokens.TokenWith(*at + content.size()) + 1, tokens.TokenWith(end + 1)};
    }
  }
  return {tokens.Find({begin, end}), tokens.size(), tokens.size()};
}

// Finds it in the tokens of its message, where the tokenizer changes texts (normalises, adds or
// drops spaces).
Place PlaceByText(const ChatPrompt& prompt, size_t s, const std::optional<ContentPart>& whole,
                  const Tokenizer& tokenizer) {
  const size_t begin = prompt.message_begins[s], end = prompt.message_ends[s];
  const size_t num_ids = prompt.ids.size();
  if (begin >= end) return {{num_ids, num_ids}, num_ids, num_ids};
  const auto message = std::span(prompt.ids).subspan(begin, end - begin);
  const auto found = whole ? FindText(message, *whole, tokenizer) : std::nullopt;
  if (!found) return {{begin, end - 1}, num_ids, num_ids};
  const auto all = FindText(message, {whole->content, {0, whole->content.size()}}, tokenizer);
  const size_t next = s + 1 < prompt.message_begins.size() ? prompt.message_begins[s + 1] : end;
  return {{begin + found->first, begin + found->last}, begin + all->last + 1, std::min(end, next)};
}

}  // namespace

Result<PlacedPrompt> PlaceOf(const SessionState& state, size_t index,
                             std::optional<ContentBytes> part, const ModelView& model) {
  KV_ASSIGN(Fitted fitted, Fit(state, model));
  const auto& indexes = fitted.shown.indexes;
  const auto shown = std::ranges::find(indexes, index);
  const RenderedChat& chat = fitted.rendered.chat;
  const ChatPrompt& prompt = *fitted.rendered.prompt;
  const size_t num_ids = prompt.ids.size();
  PlacedPrompt placed{.prompt = {}, .first_token = num_ids, .last_token = num_ids};
  if (shown != indexes.end()) {
    const auto s = static_cast<size_t>(shown - indexes.begin());
    std::optional<ContentPart> whole;
    if (part) whole = {state.messages[index]->content, *part};
    const TokensText tokens(prompt.ids, *model.tokenizer);
    const Place place = tokens.text() == chat.text
                            ? PlaceByBytes(chat, s, whole, tokens)
                            : PlaceByText(prompt, s, whole, *model.tokenizer);
    placed.first_token = place.text.first;
    placed.last_token = place.text.last;
    const auto message = std::span(prompt.ids).first(place.end);
    const auto after = message.subspan(std::min(place.closing, place.end));
    const auto is_mark = [&](TokenId id) { return model.tokenizer->IsSpecial(id); };
    const auto mark = std::ranges::find_if(after, is_mark);
    placed.closing.assign(after.begin(), mark == after.end() ? mark : mark + 1);
  }
  placed.prompt = PromptOf(state, std::move(fitted));
  return placed;
}

std::vector<SessionPath::Begin> BeginsOf(const SessionState& state, const ChatPrompt& prompt) {
  std::vector<SessionPath::Begin> begins;
  for (size_t i = 0; i < state.messages.size(); ++i) {
    const bool is_system = i == 0 && state.has_system();
    if (!is_system && i < state.first_shown()) continue;
    begins.push_back({state.messages[i]->number, state.messages[i]->version,
                      prompt.message_begins[i], state.messages[i]->is_system()});
  }
  return begins;
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

PathSpace SpaceOf(const GenerateRequest& request) {
  return {request.cache_owner.value_or(request.tenant), request.cache_salt,
          request.adapter_digest.value_or("")};
}

namespace {

// Tells whether a delete of the session, whatever is edited before, takes this prompt too: the
// session has read it up to the end of the first message that somebody said.
bool IsKnown(const SessionPaths& paths, const GenerateRequest& prompt,
             std::span<const SessionPath::Begin> begins) {
  const PathSpace space = SpaceOf(prompt);
  size_t end = 0;
  for (size_t k = 0; k < begins.size() && end == 0; ++k) {
    if (begins[k].is_system) continue;
    end = k + 1 < begins.size() ? begins[k + 1].at : prompt.prompt.size();
  }
  for (size_t i = paths.size(); i-- > 0 && end > 0;) {
    if (paths[i]->space != space) continue;
    const std::vector<TokenId> ids = IdsOf(paths, i);
    if (ids.size() >= end &&
        std::equal(ids.begin(), ids.begin() + static_cast<ptrdiff_t>(end), prompt.prompt.begin())) {
      return true;
    }
  }
  return false;
}

}  // namespace

// Adds the prompt to the session's paths. What may be on the disk before the answer ends must be in
// the file before it is computed, if a later delete would not find it: the process may be killed
// meanwhile. Nearly always it would.
Status NotePrompt(SessionStore::Turn& turn, const GenerateRequest& prompt,
                  std::vector<SessionPath::Begin> begins, SessionState* state) {
  using Durable = SessionStore::Turn::Durable;
  KV_ASSIGN(const SessionStore::Entry entry, turn.Read());
  const Durable durable =
      IsKnown(entry.state->paths, prompt, begins) ? Durable::kLater : Durable::kNow;
  KV_ASSIGN(state->paths, AddPath(turn.store(), entry.state->paths, prompt.prompt,
                                  std::move(begins), SpaceOf(prompt)));
  SessionState read = *entry.state;
  read.paths = state->paths;
  return turn.Replace(std::move(read), durable);
}

}  // namespace kvasir
