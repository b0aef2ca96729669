#include "server/generation_starter.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "base/clock.h"
#include "base/digest.h"
#include "base/hex.h"
#include "base/log.h"
#include "base/random_bytes.h"
#include "base/result.h"
#include "base/sizes.h"
#include "http/errors.h"
#include "http/request_memory.h"
#include "kvasir/request_bytes.h"

namespace kvasir {
namespace {

// Returns system_fingerprint: a digest of all that decides the bits of an answer except the
// request, which is weights, config, tokenizer, numerics version (ModelCard::content) and the KV
// format. 15 characters.
std::string FingerprintOf(const Engine& engine) {
  const EngineOptions& options = engine.options();
  const std::string whole = fmt::format("{} {} {}", engine.card().content, options.kv_format,
                                        fmt::join(options.kv_skip_layers, ","));
  return "fp_" + ToHex(Sha256Of(whole)).substr(0, 12);
}

// Returns the fingerprint of an answer that is computed with adapters; `adapters`:
// Receipt::adapter_digest.
std::string FingerprintWith(const std::string& plain, const std::string& adapters) {
  if (adapters.empty()) return plain;
  return "fp_" + ToHex(Sha256Of(plain + adapters)).substr(0, 12);
}

// Returns the bytes of requests that wait for their turn (GenerationStart::at_once).
uint64_t BytesOf(std::span<const GenerateRequest> requests) {
  uint64_t bytes = 0;
  for (const GenerateRequest& one : requests) {
    bytes += sizeof(one) + AllocatedBytes(one);
  }
  return bytes;
}

}  // namespace

GenerationStarter::GenerationStarter(const ServerOptions& options, const Engine& engine,
                                     const ModelView& model, Slots& slots,
                                     std::shared_ptr<SpanExporter> spans)
    : options_(options),
      engine_(engine),
      model_(model),
      slots_(slots),
      spans_(std::move(spans)),
      fingerprint_(FingerprintOf(engine)),
      max_answer_bytes_(Divide(engine.options().request_memory_bytes, options.max_body_bytes,
                               options.max_connections)
                            .answers_bytes) {}

// Traces the request if it is sampled.
Status GenerationStarter::Trace(std::string_view traceparent, const std::string& id,
                                GenerateRequest& request) const {
  if (!spans_) return {};
  KV_ASSIGN(const TraceContext context, ContextOf(traceparent, options_.trace_sample));
  if (!context.sampled) return {};
  SpanId root;
  KV_TRY(FillRandom(root));
  root[0] |= 1;  // not all zeros
  request.on_trace = [spans = spans_, context, root, id = id,
                      model = model_.names.front()](RequestTrace trace) mutable {
    spans->Add({std::move(trace), context, root, std::move(id), std::move(model)});
  };
  return {};
}

// Logs, once of each kind, what the chat template does not show of requests. The names are ours:
// those of fields that a client made up, which `ignored` has too, are not for the log.
void GenerationStarter::NoteUnseen(std::span<const std::string> names) {
  for (const std::string& name : names) {
    const bool is_tools = name == "tools";
    std::atomic<bool>& noted = is_tools ? noted_tools_ : noted_messages_;
    if (noted.exchange(true, std::memory_order_relaxed)) continue;
    Log(LogLevel::kWarning,
        is_tools
            ? "the chat template does not show tools: the model does not see those of requests "
              "(\"ignored\" in their receipts; said once)"
            : "the chat template does not show all that messages say (\"ignored\" in the "
              "receipts of such requests; said once)",
        LogField("first", name));
  }
}

Outcome GenerationStarter::Start(Result<GenerationCall> call, const Call& from,
                                 std::string prompt_field) {
  if (!call) return ErrorResponse(call.error());
  GenerationStart start;
  start.heads = from.heads;
  for (GenerateRequest& request : call->requests) {
    if (const Status chosen = engine_.ChooseAdapters(request); !chosen) {
      return ErrorResponse(chosen.error());
    }
  }
  const std::string adapters =
      call->requests.empty() ? "" : call->requests.front().adapter_digest.value_or("");
  call->spec.fingerprint = FingerprintWith(fingerprint_, adapters);
  NoteUnseen(call->unseen);
  // A session's prompts belong to the session; what shares nothing, or is computed with adapters,
  // belongs to no slot.
  const bool has_slot = call->requests.size() == 1 && !call->spec.session &&
                        call->requests.front().reuse != Reuse::kNothing && adapters.empty();
  std::optional<uint32_t> slot;
  if (has_slot) slot = call->slot;
  start.requests = std::move(call->requests);
  start.head = std::move(call->head);
  start.at_once = call->at_once;
  start.prompt_field = std::move(prompt_field);
  start.tenant = from.tenant();
  std::array<uint8_t, 16> id;  // random, so that it shows nothing about other requests
  if (const Status drawn = FillRandom(id); !drawn) return ErrorResponse(drawn.error());
  start.answer =
      std::make_unique<WrittenAnswer>(std::move(call->spec), start.requests.size(), ToHex(id),
                                      UnixS(), model_.tokenizer, std::move(call->writer));
  for (GenerateRequest& request : start.requests) {
    request.tenant = from.tenant();
    request.id = start.answer->id();
    LimitTime(from.request, &request);
    if (from.caller.entry) {
      const TenantEntry& entry = *from.caller.entry;
      request.cache_owner = entry.rules.cache_owner;
      if (!entry.remote) request.use_remote = RemoteUse::kNone;
      request.priority = std::clamp(request.priority, entry.least_priority, entry.most_priority);
    }
    if (const Status traced = Trace(from.request.traceparent, start.answer->id(), request);
        !traced) {
      return ErrorResponse(traced.error());
    }
  }
  if (start.at_once > 0) start.answer->Hold(BytesOf(start.requests));
  uint64_t num_choices = 0, tokens = 0;
  for (const GenerateRequest& request : start.requests) {
    const uint64_t context = std::min<uint64_t>(model_.ctx_size, engine_.plan().max_tokens + 1);
    const uint64_t room = context - std::min<uint64_t>(context, request.prompt.size());
    num_choices += request.n;
    tokens += request.n * std::min<uint64_t>(request.max_tokens, room);
  }
  start.answer_bytes = start.answer->ExpectedBytes(start.answer->streams() ? 0 : tokens);
  if (slot) {
    auto keeper = std::make_unique<SlotKeeper>(slots_, *slot, start.requests.front());
    start.answer_bytes += keeper->held_bytes();
    start.answer->KeepIn(std::move(keeper));
  }
  if (start.answer_bytes <= max_answer_bytes_) return start;
  return ErrorResponse(
      {Code::kInvalidArgument,
       fmt::format("up to {} tokens in {} answers may take {} bytes until they are sent, and {} "
                   "are there for all answers (--request-memory); ask for fewer tokens, answers or "
                   "logprobs, or stream them",
                   tokens, num_choices, start.answer_bytes, max_answer_bytes_),
       "max_tokens"});
}

void GenerationStarter::Follow(std::shared_ptr<AskedChat> chat, const HeadSpace& heads,
                               bool has_answers, bool prepares, GenerationStart* start) const {
  GenerateRequest& request = start->requests.front();
  const bool shares =
      engine_.options().cache_mode == CacheMode::kPrefix && request.reuse != Reuse::kNothing;
  const bool explains = has_answers || !start->head.lines.empty();
  if (!shares || !(explains || prepares)) return;
  chat->NoteHead(std::move(start->head), request, heads, start->answer->answer());
  request.caller_explains = explains;
  if (prepares) chat->PrepareAfter(request);
  // A prepared answer is kept too.
  const uint64_t bytes = chat->held_bytes() + (prepares ? start->answer_bytes : 0);
  start->answer->Hold(bytes);
  start->answer_bytes += bytes;
  start->chat = std::move(chat);
}

void GenerationStarter::FollowChat(std::string body, const Call& from, TurnPreparer& preparer,
                                   GenerationStart* start) const {
  if (body.empty() || body.size() > AskedChat::kMaxBodyBytes) return;
  const bool has_answers = body.find("\"assistant\"") != body.npos;
  const GenerateRequest& request = start->requests.front();
  const bool prepares = from.options.prepare && request.n == 1 && request.max_tokens > 0 &&
                        !request.spans;  // the next turn does not begin with its tokens
  Follow(std::make_shared<AskedChat>(std::move(body), from.model, preparer), from.heads,
         has_answers, prepares, start);
}

Outcome GenerationStarter::StartChat(Result<GenerationCall> call, std::string chat,
                                     const Call& from, std::string prompt_field,
                                     TurnPreparer& preparer) {
  Outcome outcome = Start(std::move(call), from, std::move(prompt_field));
  auto* start = std::get_if<GenerationStart>(&outcome);
  if (start) FollowChat(std::move(chat), from, preparer, start);
  return outcome;
}

void GenerationStarter::LimitTime(const HttpRequest& head, GenerateRequest* request) const {
  std::optional<uint64_t>& limit = request->timeout_ms;
  if (const auto ms = ParseUint(head.timeout_ms)) limit = std::min(limit.value_or(*ms), *ms);
  if (!limit) limit = options_.timeout_ms;
  if (const auto most = options_.max_timeout_ms) limit = std::min(limit.value_or(*most), *most);
}

}  // namespace kvasir
