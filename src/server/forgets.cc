#include "server/forgets.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>

#include "http/errors.h"
#include "server/erase_queue.h"

namespace kvasir {

ForgetScope ScopeOf(const Call& call, const SessionStore& sessions) {
  const std::string_view session = call.turn ? call.turn->id() : std::string_view();
  return {.model = call.model,
          .cache_owner = call.cache_owner(),
          .others = sessions.OthersOf(call.tenant(), session),
          .keeps_whole = std::ranges::all_of(call.engine.plan().groups, [](const auto& group) {
            return group.window.has_value();
          })};
}

namespace {

// Returns the error of an erase that left blocks somewhere although the session is changed: clients
// ask again after a 5xx, and would change it once more.
HttpResponse BlocksStay(Error error) {
  error.message =
      "the session is changed and erased from memory, so do not repeat the call; but: " +
      error.message;
  HttpResponse response = ErrorResponse(error);
  response.headers = {{"x-should-retry", "false"}};
  return response;
}

// Whether an answer says what left the disk: records of a path are the caller's own. Those of an
// erase of all are said to one tenant alone (DELETE /v1/cache).
enum class DiskSums : uint8_t { kShown, kHidden };

// Answers with `body` and what was erased, or with why the disk still has the session (`kept`).
ErasureSink Answering(const std::shared_ptr<SessionStore::Turn>& turn, nlohmann::json body,
                      const Status& kept, DiskSums disk, LaterAnswer::Reply reply) {
  return [turn, body = std::move(body), kept, disk, reply = std::move(reply)](const Erasure& sum) {
    if (!kept) {
      turn->End();
      return reply(ErrorResponse({Code::kUnavailable,
                                  "memory is erased, but the session stays on "
                                  "the disk as it was; ask again: " +
                                      kept.error().message}));
    }
    if (sum.error) return reply(BlocksStay(*sum.error));
    nlohmann::json with = body;
    with["erased_blocks"] = sum.blocks;
    with["erased_tokens"] = sum.tokens;
    with["kept_shared"] = sum.kept_shared;
    if (disk == DiskSums::kShown) {
      with["disk_blocks"] = sum.disk_blocks;
      with["disk_bytes"] = sum.disk_bytes;
    }
    turn->End();  // before the client can call again
    reply(JsonResponse(with));
  };
}

}  // namespace

LaterAnswer ForgetAnswer(const Call& call, std::vector<ForgetRequest> requests, nlohmann::json body,
                         const Status& on_disk) {
  return {[&engine = call.engine, turn = call.turn, requests = std::move(requests),
           body = std::move(body), on_disk](LaterAnswer::Reply reply) mutable {
    const DiskSums disk = engine.DiskStats() ? DiskSums::kShown : DiskSums::kHidden;
    ErasureSink answer = Answering(turn, std::move(body), on_disk, disk, std::move(reply));
    if (requests.empty()) return answer(Erasure());
    std::vector<ErasureSink> sinks = SinksOfSum(requests.size(), std::move(answer));
    for (size_t i = 0; i < requests.size(); ++i) {
      engine.Forget(std::move(requests[i]), std::move(sinks[i]));
    }
  }};
}

LaterAnswer EraseAnswer(const Call& call, nlohmann::json body, const Status& on_disk) {
  std::vector<std::string> owners = {call.tenant()};
  if (call.cache_owner() != call.tenant()) owners.push_back(call.cache_owner());
  return {[&engine = call.engine, turn = call.turn, owners = std::move(owners),
           body = std::move(body), on_disk](LaterAnswer::Reply reply) mutable {
    std::vector<ErasureSink> sinks =
        SinksOfSum(owners.size(),
                   Answering(turn, std::move(body), on_disk, DiskSums::kHidden, std::move(reply)));
    for (size_t i = 0; i < owners.size(); ++i) engine.Erase(owners[i], std::move(sinks[i]));
  }};
}

Outcome DeleteKept(const Call& call, const SessionStore& sessions, KeptTexts& texts,
                   const char* object) {
  const auto entry = call.turn->Read();
  // Its memory is not there, or a newer version wrote it: what it has read is on its paths alone.
  const bool is_unread = !entry && (entry.error().code == Code::kExhausted ||
                                    entry.error().code == Code::kUnsupported);
  if (is_unread) return DeleteUnreadKept(call, texts, object);
  // A damaged session does not know what it has read; it can be deleted all the same.
  if (!entry && entry.error().code != Code::kCorruption) return ErrorResponse(entry.error());
  std::vector<ForgetRequest> requests;
  if (entry) requests = ForgetAll(*entry->state, ScopeOf(call, sessions));
  const Status removed = call.turn->Remove();
  if (!removed && removed.error().code == Code::kNotFound) return ErrorResponse(removed.error());
  texts.Erase(call.tenant());
  return ForgetAnswer(call, std::move(requests),
                      {{"id", call.turn->id()}, {"object", object}, {"deleted", true}}, removed);
}

// Deletes a chat that could not be read. It may be gone already: the memory may have ended after
// that.
Outcome DeleteUnreadKept(const Call& call, KeptTexts& texts, const char* object) {
  Status removed = call.turn->Remove();
  if (!removed && removed.error().code == Code::kNotFound) removed = {};
  texts.Erase(call.tenant());
  return EraseAnswer(
      call,
      {{"id", call.turn->id()}, {"object", object}, {"deleted", true}, {"cache_erased", true}},
      removed);
}

}  // namespace kvasir
