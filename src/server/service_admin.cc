// The endpoints around generating: models, cache, tokens, templates, state.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "observe/metrics.h"
#include "plan/plan_json.h"
#include "server/json_fields.h"
#include "server/logprobs_json.h"
#include "server/service_routes.h"

namespace kvasir {
namespace {

using nlohmann::json;

constexpr size_t kMaxTokens = size_t{1} << 20;  // of /tokenize and /detokenize

json ModelEntry(const std::string& name, const ModelCard& card, int64_t created) {
  return {{"id", name},
          {"object", "model"},
          {"created", created},
          {"owned_by", "kvasir"},
          {"max_model_len", card.ctx_size},
          {"meta",
           {{"architecture", card.architecture},
            {"dtype", card.dtype},
            {"n_vocab", card.vocab_size},
            {"n_ctx_train", card.max_positions},
            {"n_params", card.parameters}}}};
}

// A path segment as sent: "%2F" is "/".
std::string PercentDecoded(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto digit = [&](size_t at) {
      const char c = at < text.size() ? text[at] : '\0';
      return c >= '0' && c <= '9'                 ? c - '0'
             : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 87
                                                  : -1;
    };
    if (text[i] == '%' && digit(i + 1) >= 0 && digit(i + 2) >= 0) {
      out += static_cast<char>(digit(i + 1) * 16 + digit(i + 2));
      i += 2;
    } else {
      out += text[i];
    }
  }
  return out;
}

// {"id", "piece"} of a token.
json PieceJson(TokenId id, const Tokenizer* tokenizer) {
  const TokenSpelling spelling = SpellToken(tokenizer, id);
  json piece = spelling.text;
  if (spelling.text != spelling.bytes) {
    piece = json::array();  // no whole character: its bytes, as llama.cpp sends them
    for (const char c : spelling.bytes) piece.push_back(static_cast<unsigned char>(c));
  }
  return {{"id", id}, {"piece", std::move(piece)}};
}

// `out`, then the ids, or the PieceJson of each, and the end of the object.
Parts TokensText(std::string out, std::vector<TokenId> ids, const Tokenizer* pieces_of) {
  out += "\"tokens\":[";
  for (size_t i = 0; i < ids.size(); ++i) {
    if (i > 0) out += ',';
    out += pieces_of ? Dump(PieceJson(ids[i], pieces_of)) : std::to_string(ids[i]);
    if (out.size() >= kPartBytes) co_yield out;
  }
  out += "]}";
  co_yield out;
}

// An object whose keys all have the same text.
Parts SameText(std::vector<std::string> keys, std::string text) {
  std::string out;
  for (const std::string& key : keys) {
    out += (out.empty() ? "{\"" : "\",\"") + key + "\":\"";
    std::string_view rest = text;
    while (!rest.empty()) {
      AppendEscaped(&rest, &out);
      if (out.size() >= kPartBytes) co_yield out;
    }
  }
  out += "\"}";
  co_yield out;
}

HttpResponse TextResponse(std::vector<std::string> keys, std::string text) {
  HttpResponse response;
  response.rest_bytes = text.capacity();
  response.rest = SameText(std::move(keys), std::move(text));
  return response;
}

json CacheJson(const EngineStats& stats, const char* mode) {
  return {{"mode", mode},
          {"blocks",
           {{"free", stats.free_blocks},
            {"idle", stats.idle_blocks},
            {"pinned", stats.pinned_blocks},
            {"committed", stats.committed_blocks},
            {"evicted", stats.evicted_blocks},
            {"copied", stats.copied_blocks},
            {"deduplicated", stats.deduplicated_blocks}}},
          {"tokens",
           {{"cached", stats.cached_tokens},
            {"live", stats.live_tokens},
            {"prompt", stats.prompt_tokens},
            {"computed", stats.computed_tokens},
            {"reused_pool", stats.reused_pool},
            {"reused_partial", stats.reused_partial},
            {"generated", stats.generated_tokens}}},
          {"cursors", stats.cursors},
          {"cursor_hits", stats.cursor_hits},
          {"waste", stats.waste},
          {"worst_waste", stats.worst_waste}};
}

json OwnJson(const TenantActivity& own, const char* mode) {
  return {{"mode", mode},
          {"answers", own.answers},
          {"tokens",
           {{"prompt", own.prompt},
            {"computed", own.computed},
            {"reused_pool", own.reused_pool},
            {"reused_partial", own.reused_partial},
            {"generated", own.generated}}}};
}

const char* ModeName(CacheMode mode) {
  switch (mode) {
    case CacheMode::kPrefix:
      return "prefix";
    case CacheMode::kSequence:
      return "sequence";
    case CacheMode::kNone:
      return "none";
  }
  return "";
}

}  // namespace

HttpResponse JsonResponse(const json& body) {
  HttpResponse response;
  response.body = Dump(body);
  return response;
}

Outcome Service::Models(const Call&) {
  json data = json::array();
  for (const std::string& name : model_.names) {
    data.push_back(ModelEntry(name, engine_.card(), started_));
  }
  return JsonResponse({{"object", "list"}, {"data", std::move(data)}});
}

Outcome Service::OneModel(const Call& call) {
  const auto name =
      CheckModel(PercentDecoded(call.path.substr(call.path.find("models/") + 7)), model_);
  if (!name) return ErrorResponse(name.error());
  return JsonResponse(ModelEntry(*name, engine_.card(), started_));
}

// With several keys a tenant is told of its own requests: what the others did is theirs.
Outcome Service::CacheState(const Call& call) {
  json body = PlanJson(engine_.plan());
  const char* mode = ModeName(engine_.options().cache_mode);
  const bool all = call.caller.is_admin || credentials_.num_keys() <= 1;
  body["cache"] =
      all ? CacheJson(engine_.Stats(), mode) : OwnJson(activity_.Of(call.tenant()), mode);
  body["model"] = model_.names.front();
  body["target"] = engine_.target();
  return JsonResponse(body);
}

Outcome Service::EraseCache(const Call& call) {
  return LaterAnswer{[this, tenant = call.tenant()](LaterAnswer::Reply reply) {
    erase_queue_.Erase(tenant, [reply = std::move(reply)](const Erasure& erasure) {
      reply(JsonResponse({{"erased", true},
                          {"tiers", json::array({"pool"})},
                          {"tokens", erasure.tokens},
                          {"blocks", erasure.blocks},
                          {"cursors", erasure.cursors}}));
    });
  }};
}

Outcome Service::FlushCache(const Call&) {
  return ErrorResponse({Code::kUnsupported,
                        "nothing here is durable: the server runs without a disk tier (--disk DIR, "
                        "which this version does not have yet)"});
}

Outcome Service::Tokenize(const Call& call) {
  const auto body = ParseBody(call.request.body);
  if (!body) return ErrorResponse(body.error());
  JsonFields fields(body->fields);
  const char* name = fields.Has("content") || !fields.Has("prompt") ? "content" : "prompt";
  std::string_view text;
  fields.Text(name, &text);
  if (!fields.Has(name)) fields.Fail(name, "is missing");
  // Each name with its server's default: llama.cpp adds none, vLLM adds them.
  EncodeOptions options;
  options.add_special = name == std::string_view("prompt");
  options.max_tokens = kMaxTokens;
  bool with_pieces = false;
  fields.Bool("add_special_tokens", &options.add_special);
  fields.Bool("add_special", &options.add_special);
  fields.Bool("parse_special", &options.parse_special);
  fields.Bool("with_pieces", &with_pieces);
  if (fields.error()) return ErrorResponse(*fields.error());
  auto ids = EncodeText(text, name, options, model_);
  if (!ids) return ErrorResponse(ids.error());
  ids->shrink_to_fit();
  HttpResponse response;
  response.rest_bytes = ids->size() * sizeof(TokenId);
  std::string counts =
      fmt::format(R"({{"count":{},"max_model_len":{},)", ids->size(), model_.ctx_size);
  response.rest =
      TokensText(std::move(counts), std::move(*ids), with_pieces ? model_.tokenizer : nullptr);
  return response;
}

Outcome Service::Detokenize(const Call& call) {
  const auto body = ParseBody(call.request.body, kDetokenizeIds);
  if (!body) return ErrorResponse(body.error());
  JsonFields fields(body->fields);
  std::vector<TokenId> ids;
  fields.Ids("tokens", model_.vocab_size, &ids);
  if (!fields.Has("tokens")) fields.Fail("tokens", "is missing");
  if (!model_.tokenizer) fields.Fail("tokens", "the model has no tokenizer.json");
  if (fields.error()) return ErrorResponse(*fields.error());
  if (ids.size() > kMaxTokens) {
    fields.Fail("tokens", fmt::format("has {} ids; at most {} are taken", ids.size(), kMaxTokens));
    return ErrorResponse(*fields.error());
  }
  auto text = DecodeIds(ids, "tokens", model_);
  if (!text) return ErrorResponse(text.error());
  return TextResponse({"content", "prompt"}, std::move(*text));
}

Outcome Service::ApplyTemplate(const Call& call) {
  auto body = ParseBody(call.request.body, kChatIds);
  if (!body) return ErrorResponse(body.error());
  JsonFields fields(body->fields);
  auto chat = RenderMessages(fields, &body->tree, model_);
  if (!chat) return ErrorResponse(chat.error());
  return TextResponse({"prompt"}, std::move(chat->text));
}

Outcome Service::Props(const Call&) {
  const ModelCard& card = engine_.card();
  const SamplingParams& sampling = model_.sampling;
  const json params = {{"temperature", sampling.temperature},
                       {"top_k", sampling.top_k},
                       {"top_p", sampling.top_p},
                       {"min_p", sampling.min_p},
                       {"repeat_penalty", sampling.repetition_penalty}};
  json body = {
      {"default_generation_settings", {{"n_ctx", card.ctx_size}, {"params", params}}},
      {"total_slots", engine_.options().parallel},
      {"model_alias", model_.names.front()},
      {"model_path", card.path},
      {"modalities", {{"vision", false}, {"audio", false}}},
      {"chat_template", template_text_},
      {"bos_token", model_.tokenizer ? model_.tokenizer->bos_text() : ""},
      {"eos_token", model_.tokenizer ? model_.tokenizer->eos_text() : ""},
      {"build_info", "kvasir " + options_.version},
      {"target", engine_.target()},
  };
  return JsonResponse(body);
}

Outcome Service::Health(const Call&) { return JsonResponse({{"status", "ok"}}); }

// Names the model to those only who may call it.
Outcome Service::Ready(const Call& call) {
  if (draining_.load(std::memory_order_relaxed)) {
    return ErrorResponse({Code::kUnavailable, "the server is stopping"});
  }
  if (const Status model = engine_.CheckModel(); !model) {
    // Without the path, which is not for who has no key.
    return ErrorResponse({model.error().code,
                          "a file of the model was changed while the model is served: restart the "
                          "server (its log names the file)"});
  }
  json body = {{"status", "ready"}};
  if (call.caller.tenant || call.caller.is_admin) body["model"] = model_.names.front();
  return JsonResponse(body);
}

Outcome Service::Metrics(const Call&) {
  HttpResponse response;
  response.content_type = "text/plain; version=0.0.4; charset=utf-8";
  response.body = PrometheusText(engine_.Stats());
  return response;
}

Outcome Service::Home(const Call&) {
  return JsonResponse({{"name", "kvasir"},
                       {"version", options_.version},
                       {"model", model_.names.front()},
                       {"openai_base_url_path", "/v1"},
                       {"endpoints", Endpoints()}});
}

}  // namespace kvasir
