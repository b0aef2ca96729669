#include "server/slot_routes.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "api/raw_prompts.h"
#include "base/atomic_file.h"
#include "base/clock.h"
#include "base/file_name.h"
#include "http/errors.h"
#include "http/json_body.h"
#include "server/forgets.h"

namespace kvasir {
namespace {

using nlohmann::json;

struct SlotAction {
  std::string_view name;
  const char* instead;  // without --slot-save-path
};
constexpr SlotAction kSlotActions[] = {
    {"save",
     "the cache keeps every prompt by itself, over restarts with "
     "--disk; POST /v1/cache/flush "
     "answers when all of it is on the disk"},
    {"restore", "the cache finds the prompt of a request by itself, on the disk too"},
    {"erase",
     "DELETE /v1/cache erases all that is cached for the caller, POST "
     "/v1/sessions/{id}/forget a part of a session"},
};

double MsSince(uint64_t begin_ns) { return static_cast<double>(MonotonicNs() - begin_ns) * 1e-6; }

constexpr uint64_t kMaxSlotHeadBytes = 4096;  // of its file, beside the ids

bool Runs(const SequenceState& state) {
  constexpr std::string_view kIdle[] = {"waiting", "following", "preempted"};
  return std::ranges::find(kIdle, state.state) == std::end(kIdle);
}

// Lists the slots: first the states that run; the other slots are idle.
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

class SlotHandlers {
 public:
  explicit SlotHandlers(const SlotSources& from)
      : generations_(from.generations),
        keys_(from.keys),
        sessions_(from.sessions),
        texts_(from.texts),
        slots_(from.slots) {}

  Outcome List(const Call& call);
  Outcome Act(const Call& call);

 private:
  Outcome Save(const Call& call, uint32_t slot, const std::string& file);
  Outcome Restore(const Call& call, uint32_t slot, const std::string& file);
  Outcome Erase(const Call& call, uint32_t slot);

  const GenerationStarter& generations_;
  const KeyRing& keys_;
  const SessionStore& sessions_;
  KeptTexts& texts_;
  Slots& slots_;
};

// Lists the caller's own runs; the operator's key shows all.
Outcome SlotHandlers::List(const Call& call) {
  if (!call.options.has_slots) {
    return ErrorResponse(
        {Code::kUnsupported, "/slots is off: the server was started with --no-slots", "slots"});
  }
  std::optional<std::string> tenant;
  if (!call.caller.is_admin) tenant = call.tenant();
  return LaterAnswer{[&engine = call.engine, tenant = std::move(tenant)](LaterAnswer::Reply reply) {
    const uint32_t ctx_size = engine.card().ctx_size, num_slots = engine.options().parallel;
    engine.ListSequences(tenant, [=](std::vector<SequenceState> states) {
      reply(JsonResponse(SlotsJson(std::move(states), num_slots, ctx_size)));
    });
  }};
}

Outcome SlotHandlers::Act(const Call& call) {
  const std::string action = QueryValue(call.request.target, "action").value_or("");
  const auto* known = std::ranges::find(kSlotActions, action, &SlotAction::name);
  if (known == std::end(kSlotActions)) {
    return ErrorResponse(
        {Code::kInvalidArgument,
         fmt::format("'{}' is not an action (known: save, restore, erase)", action.substr(0, 64)),
         "action"});
  }
  if (!call.options.slot_save_path) {
    return ErrorResponse({Code::kUnsupported,
                          fmt::format("{} needs a server with --slot-save-path; without it: {}",
                                      action, known->instead),
                          "slots"});
  }
  if (keys_.current()->num_tenants() > 1) {
    return ErrorResponse({.code = Code::kPermissionDenied,
                          .message = "slots have no owner, and this server has "
                                     "several keys: sessions (POST "
                                     "/v1/sessions) are each key's own",
                          .field = "slots",
                          .cause = Cause::kNotAdmin});
  }
  const std::string number(SegmentOf(call.path, 1));
  uint32_t slot = 0;
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), slot);
  if (error != std::errc() || end != number.data() + number.size() || slot >= slots_.size()) {
    return ErrorResponse({Code::kInvalidArgument,
                          fmt::format("'{}' is not a slot; they are 0 to {} (--parallel)",
                                      Printable(number.substr(0, 20)), slots_.size() - 1),
                          "id_slot"});
  }
  if (action == "erase") return Erase(call, slot);
  const auto body = ParseBody(call.request.body);
  if (!body) return ErrorResponse(body.error());
  JsonFields fields(body->fields);
  std::string file;
  fields.String("filename", &file);
  if (!fields.Has("filename")) fields.Fail("filename", "is missing");
  if (fields.error()) return ErrorResponse(*fields.error());
  if (const Status safe = CheckSlotFile(file); !safe) return ErrorResponse(safe.error());
  return action == "save" ? Save(call, slot, file) : Restore(call, slot, file);
}

Outcome SlotHandlers::Save(const Call& call, uint32_t slot, const std::string& file) {
  const uint64_t begin_ns = MonotonicNs();
  const auto last = slots_.Get(slot, call.tenant());
  if (!last) {
    return ErrorResponse({Code::kInvalidArgument,
                          fmt::format("slot {} has nothing to save: no request with this id_slot "
                                      "has been answered",
                                      slot),
                          "id_slot"});
  }
  // An answer that dropped tokens may be longer; what a context holds can be read again.
  SlotPath path = *last;
  path.ids.resize(std::min<size_t>(path.ids.size(), call.model.ctx_size));
  const std::string bytes =
      EncodeSlot(path, SlotIdentity(call.engine.card().content, call.tenant()));
  const Status written =
      WriteAtomicFile(std::filesystem::path(*call.options.slot_save_path) / file, bytes, {});
  if (!written) return ErrorResponse(written.error());
  return JsonResponse({{"id_slot", slot},
                       {"filename", file},
                       {"n_saved", path.ids.size()},
                       {"n_written", bytes.size()},
                       {"timings", {{"save_ms", MsSince(begin_ns)}}}});
}

// Computes what the cache has lost.
Outcome SlotHandlers::Restore(const Call& call, uint32_t slot, const std::string& file) {
  const uint64_t begin_ns = MonotonicNs();
  const uint64_t max_bytes = uint64_t{call.model.ctx_size} * sizeof(TokenId) + kMaxSlotHeadBytes;
  const auto bytes = ReadSlotFile(*call.options.slot_save_path, file, max_bytes);
  if (!bytes) return ErrorResponse(bytes.error());
  auto path = DecodeSlot(*bytes, SlotIdentity(call.engine.card().content, call.tenant()),
                         call.tenant(), file);
  if (!path) return ErrorResponse(path.error());
  if (const Status fits = CheckLength(path->ids.size(), 0, "filename", call.model); !fits) {
    return ErrorResponse(fits.error());
  }
  GenerateRequest request;
  request.tenant = call.tenant();
  request.prompt = path->ids;
  request.cache_salt = path->space.salt;
  request.adapters.emplace();  // a slot has what the model alone computed
  request.max_tokens = 0;
  if (call.caller.entry) request.cache_owner = call.caller.entry->rules.cache_owner;
  path->space = SpaceOf(request);
  generations_.LimitTime(call.request, &request);
  const json answer = {{"id_slot", slot},
                       {"filename", file},
                       {"n_restored", path->ids.size()},
                       {"n_read", bytes->size()}};
  return LaterAnswer{[this, &engine = call.engine, slot, begin_ns, answer,
                      request = std::move(request), epoch = slots_.epoch(),
                      path = std::move(*path)](LaterAnswer::Reply reply) mutable {
    const auto sent = std::make_shared<LaterAnswer::Reply>(std::move(reply));
    const auto id = engine.Submit(
        std::move(request),
        [this, slot, begin_ns, answer, epoch, sent,
         path = std::make_shared<SlotPath>(std::move(path))](const Event& event) {
          if (!event.last) return;
          if (event.error || event.finish_reason == FinishReason::kCancelled) {
            return (*sent)(ErrorResponse(event.error.value_or(
                Error{Code::kUnavailable, "the restore was cancelled: the server is stopping"})));
          }
          slots_.Set(slot, std::move(*path), epoch);
          json with = answer;
          with["timings"] = {{"restore_ms", MsSince(begin_ns)}};
          (*sent)(JsonResponse(with));
        });
    if (!id) (*sent)(ErrorResponse(id.error()));
  }};
}

Outcome SlotHandlers::Erase(const Call& call, uint32_t slot) {
  const auto path = slots_.Get(slot, call.tenant());
  slots_.Forget(slot);
  json answer = {{"id_slot", slot}, {"n_erased", path ? path->ids.size() : 0}};
  if (!path) return JsonResponse(answer);
  texts_.Erase(call.tenant());
  ForgetRequest request = ForgetPrompt(path->ids, path->space, ScopeOf(call, sessions_));
  return LaterAnswer{[&engine = call.engine, answer = std::move(answer),
                      request = std::move(request)](LaterAnswer::Reply reply) mutable {
    engine.Forget(std::move(request), [answer, reply = std::move(reply)](const Erasure& erasure) {
      reply(erasure.error ? ErrorResponse(*erasure.error) : JsonResponse(answer));
    });
  }};
}

}  // namespace

void AddSlotRoutes(const SlotSources& from, RouteTable* table) {
  const auto own = std::make_shared<SlotHandlers>(from);
  table->Add({.path = "/slots",
              .method = "GET",
              .handler = std::bind_front(&SlotHandlers::List, own),
              .description = {.summary = "The caller's requests that run, as "
                                         "slots of llama.cpp's server.",
                              .answer = "Answers"}});
  table->Add(
      {.path = "/slots/{id}",
       .method = "POST",
       .handler = std::bind_front(&SlotHandlers::Act, own),
       .access = Access::kTenant,
       .work = Route::kPrepared,
       .files = Route::kOtherFiles,
       .description = {.summary = "Saves, restores or erases a slot; 501 without "
                                  "--slot-save-path.",
                       .properties = R"("filename":{"type":"string"})",
                       .parameters = {{"action", R"({"enum":["save","restore","erase"]})"}}}});
}

}  // namespace kvasir
