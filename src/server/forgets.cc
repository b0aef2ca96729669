#include "server/forgets.h"

#include <algorithm>
#include <nlohmann/json.hpp>
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

LaterAnswer ForgetAnswer(const Call& call, std::vector<ForgetRequest> requests, nlohmann::json body,
                         const Status& on_disk) {
  return {[&engine = call.engine, turn = call.turn, requests = std::move(requests),
           body = std::move(body), on_disk](LaterAnswer::Reply reply) mutable {
    auto answer = [turn, body = std::move(body), on_disk,
                   reply = std::move(reply)](const Erasure& sum) {
      if (!on_disk) {
        turn->End();
        return reply(ErrorResponse({Code::kUnavailable,
                                    "memory is erased, but the session stays on "
                                    "the disk as it was; ask again: " +
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
    std::vector<ErasureSink> sinks = SinksOfSum(requests.size(), std::move(answer));
    for (size_t i = 0; i < requests.size(); ++i) {
      engine.Forget(std::move(requests[i]), std::move(sinks[i]));
    }
  }};
}

}  // namespace kvasir
