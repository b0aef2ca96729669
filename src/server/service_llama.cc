// The endpoints of llama.cpp's server: completions in its form, and its slots.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>

#include "server/json_fields.h"
#include "server/service_routes.h"

namespace kvasir {
namespace {

using nlohmann::json;

struct SlotAction {
  std::string_view name;
  const char* instead;
};
constexpr SlotAction kSlotActions[] = {
    {"save",
     "the cache keeps every prompt by itself, over restarts with --disk; POST /v1/cache/flush "
     "answers when all of it is on the disk"},
    {"restore", "the cache finds the prompt of a request by itself, on the disk too"},
    {"erase",
     "DELETE /v1/cache erases all that is cached for the caller, POST "
     "/v1/sessions/{id}/forget a part of a session"},
};

bool Runs(const SequenceState& state) {
  constexpr std::string_view kIdle[] = {"waiting", "following", "preempted"};
  return std::ranges::find(kIdle, state.state) == std::end(kIdle);
}

// The states that run come first; slots without one are idle.
json SlotsJson(std::vector<SequenceState> states, uint32_t num_slots, uint32_t ctx_size) {
  std::erase_if(states, [](const SequenceState& state) { return !Runs(state); });
  json slots = json::array();
  for (uint32_t i = 0; i < num_slots; ++i) {
    const SequenceState state = i < states.size() ? states[i] : SequenceState();
    slots.push_back({{"id", i},
                     {"is_processing", i < states.size()},
                     {"n_ctx", ctx_size},
                     {"n_prompt_tokens", state.prompt_tokens},
                     {"n_cached_tokens", state.cached_tokens},
                     {"n_decoded", state.tokens - state.prompt_tokens}});
  }
  return slots;
}

}  // namespace

Outcome Service::CompleteAsLlama(const Call& call) {
  ModelView model = model_;
  model.sampling = llama_sampling_;
  return Start(ParseLlamaRequest(call.request.body, model), call, "prompt");
}

Outcome Service::Infill(const Call& call) {
  ModelView model = model_;
  model.sampling = llama_sampling_;
  return Start(ParseInfillRequest(call.request.body, model), call, "input_prefix");
}

// The caller's own runs; the operator's key shows all.
Outcome Service::ListSlots(const Call& call) {
  if (!options_.has_slots) {
    return ErrorResponse(
        {Code::kUnsupported, "/slots is off: the server was started with --no-slots", "slots"});
  }
  std::optional<std::string> tenant;
  if (!call.caller.is_admin) tenant = call.tenant();
  return LaterAnswer{[this, tenant = std::move(tenant)](LaterAnswer::Reply reply) {
    const uint32_t ctx_size = engine_.card().ctx_size, num_slots = engine_.options().parallel;
    engine_.ListSequences(tenant, [=](std::vector<SequenceState> states) {
      reply(JsonResponse(SlotsJson(std::move(states), num_slots, ctx_size)));
    });
  }};
}

Outcome Service::ActOnSlot(const Call& call) {
  const std::string action = QueryValue(call.request.target, "action").value_or("");
  const auto* known = std::ranges::find(kSlotActions, action, &SlotAction::name);
  if (known == std::end(kSlotActions)) {
    return ErrorResponse(
        {Code::kInvalidArgument,
         fmt::format("'{}' is not an action (known: save, restore, erase)", action.substr(0, 64)),
         "action"});
  }
  return ErrorResponse({Code::kUnsupported,
                        fmt::format("{} is not supported: {}", action, known->instead), "slots"});
}

}  // namespace kvasir
