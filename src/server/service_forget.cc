// Forgetting parts of sessions, and whole ones: their text, and the KV of it.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "api/session_forget.h"
#include "base/mutex.h"
#include "http/json_fields.h"
#include "server/service_routes.h"

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

}  // namespace

ForgetScope Service::ScopeOf(const Call& call) const {
  const std::string_view session = call.turn ? call.turn->id() : std::string_view();
  const auto& entry = call.caller.entry;
  return {.model = model_,
          .cache_owner = entry ? entry->rules.cache_owner.value_or(call.tenant()) : call.tenant(),
          .others = sessions_.OthersOf(call.tenant(), session),
          .keeps_whole = std::ranges::all_of(engine_.plan().groups, [](const KvGroupPlan& group) {
            return group.window.has_value();
          })};
}

Outcome Service::ForgetLater(const Call& call, std::vector<ForgetRequest> requests,
                             nlohmann::json body, const Status& on_disk) const {
  struct Sums {
    Mutex mutex;
    Erasure sum KV_GUARDED_BY(mutex);
    size_t left KV_GUARDED_BY(mutex) = 0;
  };
  return LaterAnswer{[this, turn = call.turn, requests = std::move(requests),
                      body = std::move(body), on_disk](LaterAnswer::Reply reply) mutable {
    const auto answer = [turn, body, on_disk, reply = std::move(reply)](const Erasure& sum) {
      if (!on_disk) {
        turn->End();
        return reply(ErrorResponse(
            {Code::kUnavailable,
             "memory is erased, but the session stays on the disk as it was; ask again: " +
                 on_disk.error().message}));
      }
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
    for (ForgetRequest& request : requests) {
      engine_.Forget(std::move(request), [sums, answer](const Erasure& one) {
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
  auto forgetting = kvasir::ForgetPart(call.turn->store(), state, *part, ScopeOf(call));
  if (!forgetting) return ErrorResponse(forgetting.error());
  const size_t messages = forgetting->state.messages.size();
  const Status replaced = call.turn->Replace(std::move(forgetting->state));
  // Where the disk still has it, it leaves memory, and the same call can be made again.
  if (!replaced && !call.turn->LeaveMemory()) return ErrorResponse(replaced.error());
  pieces_.Erase(call.tenant());
  return ForgetLater(call, std::move(forgetting->requests),
                     {{"id", entry->id}, {"object", "session.forgotten"}, {"messages", messages}},
                     replaced);
}

Outcome Service::DeleteSession(const Call& call) {
  const auto entry = call.turn->Read();
  // What a damaged one has read is not known any more; it can be deleted all the same.
  if (!entry && entry.error().code != Code::kCorruption) return ErrorResponse(entry.error());
  std::vector<ForgetRequest> requests;
  if (entry) requests = ForgetAll(*entry->state, ScopeOf(call));
  const Status removed = call.turn->Remove();
  if (!removed && removed.error().code == Code::kNotFound) return ErrorResponse(removed.error());
  pieces_.Erase(call.tenant());
  return ForgetLater(call, std::move(requests),
                     {{"id", call.turn->id()}, {"object", "session.deleted"}, {"deleted", true}},
                     removed);
}

}  // namespace kvasir
