// Translations: POST /v1/translations, and LibreTranslate's POST /translate and GET /languages.
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "api/translation_writer.h"
#include "server/service_routes.h"
#include "text/language_names.h"

namespace kvasir {
namespace {

using nlohmann::json;

// What this model translates from: each language, with all that it translates into. The list of
// those is the same for each, and long, so that a part has one of them at a time.
Parts LanguageList(const Languages& languages) {
  json codes = json::array();
  for (const Language& language : languages.all()) codes.push_back(language.code);
  const std::string targets = codes.dump();
  std::string out = "[";
  for (const Language& language : languages.all()) {
    if (&language != languages.all().data()) out += ',';
    out += R"({"code":)" + json(language.code).dump() + R"(,"name":)" +
           json(EnglishName(language)).dump() + R"(,"targets":)" + targets + "}";
    if (out.size() >= kPartBytes) co_yield out;
  }
  out += "]";
  co_yield out;
}

}  // namespace

Outcome Service::Translate(const Call& call) {
  return StartTranslation(ParseTranslationRequest(call.request.body, model_, *translation_), call,
                          "text");
}

Outcome Service::TranslateAsLibre(const Call& call) {
  const auto& entry = call.caller.entry;
  const uint32_t most = entry ? entry->rules.max_running : TenantRules::kNoLimit;
  return StartTranslation(
      ParseLibreRequest(call.request.body, call.request.content_type, model_, *translation_, most),
      call, "q");
}

Outcome Service::StartTranslation(Result<GenerationCall> parsed, const Call& call,
                                  std::string texts_field) {
  if (!parsed || !parsed->requests.empty()) {
    return Start(std::move(parsed), call, std::move(texts_field));
  }
  const bool streams = parsed->spec.stream;
  const WrittenAnswer answer(std::move(parsed->spec), 0, "", UnixS(), model_.tokenizer,
                             std::move(parsed->writer));
  HttpResponse response;
  if (streams) {  // of empty texts
    response.content_type = "text/event-stream; charset=utf-8";
    response.body = answer.EmptyStream();
    return response;
  }
  Parts body = answer.Body();  // of empty texts
  for (std::string part = body.Next(); !part.empty(); part = body.Next()) response.body += part;
  return response;
}

Outcome Service::ListLanguages(const Call&) {
  HttpResponse response;
  if (const auto& pair = translation_->pair) {
    json list = json::array();
    if (!pair->source.empty()) {
      const Language source{.name = pair->source, .code = pair->source};
      list.push_back(
          {{"code", pair->source}, {"name", EnglishName(source)}, {"targets", {pair->target}}});
    }
    response.body = list.dump();
    return response;
  }
  response.rest = LanguageList(translation_->languages);
  response.rest_bytes = 4 * kPartBytes;
  return response;
}

// Whether the model is of the kind that a path is for.
std::optional<HttpResponse> Service::CheckKind(const Route& route) const {
  const bool translates = translation_.has_value();
  if (route.for_model == Route::kAnyModel) return {};
  if (translates == (route.for_model == Route::kTranslator)) return {};
  return ErrorResponse({Code::kInvalidArgument,
                        translates
                            ? "this model translates; use POST /v1/translations"
                            : "this model does not translate; use POST /v1/chat/completions"});
}

bool Service::AwaitsKey(const HttpRequest& head) const {
  const Route* route = routes_.Find(head);
  return route != nullptr && route->key_in_body != nullptr && head.authorization.empty() &&
         head.api_key.empty() && credentials()->required();
}

std::optional<HttpResponse> Service::TakeKey(HttpRequest* request) const {
  if (!AwaitsKey(*request)) return {};
  request->api_key = routes_.Find(*request)->key_in_body(request->body, request->content_type);
  if (request->api_key.empty()) return NoValidKey();
  return CheckHead(*request, request->body.size());
}

void Service::ShapeError(const HttpRequest& request, HttpResponse* response) const {
  if (!response->refusal) return;
  const Route* route = routes_.FindPath(PathOf(request.target));
  if (route == nullptr || !route->plain_errors) return;
  const json body = json::parse(response->body, nullptr, false);
  response->body = json{{"error", body.at("error").at("message")}}.dump();
}

}  // namespace kvasir
