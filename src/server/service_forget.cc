// Forgetting parts of sessions, and whole ones: their text, and the KV of it.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/mutex.h"
#include "server/json_fields.h"
#include "server/service_routes.h"
#include "server/session_prompt.h"

namespace kvasir {
namespace {

// Which part a body of forget names.
Result<SessionPart> ReadPart(std::string_view body, const SessionState& state) {
  KV_ASSIGN(const JsonBody parsed, ParseBody(body));
  JsonFields fields(parsed.fields);
  std::string segment;
  fields.String("segment", &segment);
  const auto index = fields.Integer("index", 0, INT64_MAX);
  uint32_t begin = 0, end = 0;
  fields.Unsigned("begin", 0, UINT32_MAX, &begin);
  fields.Unsigned("end", 0, UINT32_MAX, &end);
  const bool has_begin = fields.Has("begin"), has_end = fields.Has("end");
  if (fields.Has("segment") && (index || has_begin || has_end)) {
    fields.Fail("segment", "stands alone: give it, or an index with begin and end or without");
  }
  if (!fields.Has("segment") && !index) fields.Fail("index", "is missing; or give a segment");
  if (has_begin != has_end) fields.Fail(has_begin ? "end" : "begin", "is missing");
  if (fields.error()) return tl::unexpected(*fields.error());
  if (fields.Has("segment")) return FindSegment(state, segment);
  SessionPart part{static_cast<size_t>(*index), begin, std::nullopt};
  if (has_end) part.end = end;
  return part;
}

size_t SharedIds(std::span<const TokenId> a, std::span<const TokenId> b) {
  return static_cast<size_t>(std::ranges::mismatch(a, b).in1 - a.begin());
}

// Whether the ids begin with those that a request forgets.
bool Contains(std::span<const TokenId> ids, const ForgetRequest& request) {
  return SharedIds(ids, request.ids) > request.first;
}

}  // namespace

std::string Service::CacheOwnerOf(const Call& call) const {
  const auto& entry = call.caller.entry;
  return entry ? entry->rules.cache_owner.value_or(call.tenant()) : call.tenant();
}

// Prompts of the tenant's other sessions that have what a request forgets.
std::vector<std::vector<TokenId>> Service::KeptPrompts(const Call& call, const SessionState& own,
                                                       const ForgetRequest& request) const {
  std::vector<std::vector<TokenId>> kept;
  const auto keep = [&](std::vector<TokenId> ids) {
    if (Contains(ids, request)) kept.push_back(std::move(ids));
  };
  for (const auto& state : sessions_.OthersOf(call.tenant(), call.turn->id())) {
    const std::vector<uint32_t> ends = ContainedTokens(*state);
    for (size_t i = 0; i < state->paths.size(); ++i) {
      if (state->paths[i]->cache_salt != request.cache_salt) continue;
      std::vector<TokenId> ids = IdsOf(state->paths, i);
      ids.resize(ends[i]);
      keep(std::move(ids));
    }
    // What it says and has not read yet; only where it begins as this session does.
    const auto& messages = state->messages;
    if (!state->paths.empty() || request.cache_salt || messages.empty() || own.messages.empty() ||
        messages.front()->content != own.messages.front()->content) {
      continue;
    }
    if (auto prompt = PromptOf(*state, model_)) keep(std::move(prompt->chat.ids));
  }
  return kept;
}

Outcome Service::ForgetLater(const Call& call, std::vector<ForgetRequest> requests,
                             nlohmann::json body) const {
  struct Sums {
    Mutex mutex;
    Erasure sum KV_GUARDED_BY(mutex);
    size_t left KV_GUARDED_BY(mutex) = 0;
  };
  return LaterAnswer{[this, turn = call.turn, requests = std::move(requests),
                      body = std::move(body)](LaterAnswer::Reply reply) mutable {
    const auto answer = [turn, body, reply = std::move(reply)](const Erasure& sum) {
      if (sum.error) return reply(ErrorResponse(*sum.error));
      nlohmann::json with = body;
      with["erased_blocks"] = sum.blocks;
      with["erased_tokens"] = sum.tokens;
      with["kept_shared"] = sum.kept_shared;
      turn->End();  // before the client can call again
      reply(JsonResponse(with));
    };
    if (requests.empty()) return answer(Erasure());
    auto sums = std::make_shared<Sums>();
    {
      const MutexLock lock(sums->mutex);
      sums->left = requests.size();
    }
    for (const ForgetRequest& request : requests) {
      engine_.Forget(request, [sums, answer](const Erasure& one) {
        std::optional<Erasure> sum;
        {
          const MutexLock lock(sums->mutex);
          sums->sum.blocks += one.blocks;
          sums->sum.tokens += one.tokens;
          sums->sum.kept_shared = std::max(sums->sum.kept_shared, one.kept_shared);
          if (one.error) sums->sum.error = one.error;
          if (--sums->left == 0) sum = sums->sum;
        }
        if (sum) answer(*sum);
      });
    }
  }};
}

Outcome Service::ForgetPart(const Call& call) {
  const auto entry = call.turn->Read();
  if (!entry) return ErrorResponse(entry.error());
  const SessionState& state = *entry->state;
  const auto part = ReadPart(call.request.body, state);
  if (!part) return ErrorResponse(part.error());
  auto changed = Remove(sessions_, state, *part);
  if (!changed) return ErrorResponse(changed.error());
  std::vector<ForgetRequest> requests;
  const auto add = [&](ForgetRequest request) {
    for (const ForgetRequest& other : requests) {
      const bool same = other.cache_salt == request.cache_salt && other.first <= request.first;
      if (same && Contains(request.ids, other)) return;
    }
    request.owner = CacheOwnerOf(call);
    request.kept = KeptPrompts(call, *changed, request);
    requests.push_back(std::move(request));
  };
  const SessionMessage& message = *state.messages[part->index];
  // Its place in the prompt that would come next; then wherever else it was read.
  std::optional<PlacedPrompt> now;
  const bool is_whole = !part->end;
  // What the template writes before the content is not forgotten: other prompts have it too.
  std::optional<size_t> byte;
  if (!is_whole || message.fields.empty()) byte = ByteOfCodePoint(message.content, part->begin);
  if (auto placed = PlaceOf(state, part->index, byte, model_)) {
    now = std::move(*placed);
  }
  std::vector<ForgottenPath> forgotten;
  for (size_t i = 0; i < state.paths.size(); ++i) {
    const SessionPath& path = *state.paths[i];
    for (const SessionPath::Begin& begin : path.begins) {
      if (begin.number != message.number) continue;
      std::vector<TokenId> ids = IdsOf(state.paths, i);
      uint32_t first = begin.at;
      if (now && SharedIds(ids, now->prompt.chat.ids) > now->first_token) {
        first = std::max(first, static_cast<uint32_t>(now->first_token));
      }
      forgotten.push_back({i, first});
      add({.cache_salt = path.cache_salt, .ids = std::move(ids), .first = first});
    }
  }
  if (now && now->first_token < now->prompt.chat.ids.size()) {
    add({.ids = std::move(now->prompt.chat.ids), .first = static_cast<uint32_t>(now->first_token)});
  }
  changed->paths =
      *WithoutForgotten(sessions_, changed->paths, forgotten, SessionStore::Room::kMayExceed);
  const size_t messages = changed->messages.size();
  const Status replaced = call.turn->Replace(std::move(*changed));
  if (!replaced) return ErrorResponse(replaced.error());
  return ForgetLater(call, std::move(requests),
                     {{"id", entry->id}, {"object", "session.forgotten"}, {"messages", messages}});
}

Outcome Service::DeleteSession(const Call& call) {
  const auto entry = call.turn->Read();
  if (!entry) return ErrorResponse(entry.error());
  const SessionState& state = *entry->state;
  std::vector<ForgetRequest> requests;
  for (size_t i = 0; i < state.paths.size(); ++i) {
    if (state.paths[i]->shared > 0) continue;
    ForgetRequest request{.owner = CacheOwnerOf(call),
                          .cache_salt = state.paths[i]->cache_salt,
                          .ids = IdsOf(state.paths, i)};
    request.kept = KeptPrompts(call, state, request);
    requests.push_back(std::move(request));
  }
  const Status removed = call.turn->Remove();
  if (!removed) return ErrorResponse(removed.error());
  return ForgetLater(call, std::move(requests),
                     {{"id", entry->id}, {"object", "session.deleted"}, {"deleted", true}});
}

}  // namespace kvasir
