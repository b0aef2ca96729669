#include "server/translation_routes.h"

#include <fmt/format.h>

#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>

#include "api/translation_request.h"
#include "api/written_answer.h"
#include "base/clock.h"
#include "base/result.h"
#include "http/errors.h"
#include "kvasir/sampling_ranges.h"
#include "server/request_schema.h"
#include "text/language_names.h"

namespace kvasir {
namespace {

using nlohmann::json;

// Lists each language that the model translates from, with all that it translates into. The targets
// are the same for each, and long, so that a part of the answer has one list of them.
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

class TranslationHandlers {
 public:
  TranslationHandlers(std::optional<TranslationModel> model, GenerationStarter& generations)
      : model_(std::move(model)), generations_(generations) {}

  // REQUIRES, as for the others: the engine's model translates (Route::kTranslator).
  Outcome Translate(const Call& call);
  Outcome TranslateAsLibre(const Call& call);
  Outcome ListLanguages(const Call& call);

 private:
  Outcome Start(Result<GenerationCall> parsed, const Call& call, std::string texts_field);

  const std::optional<TranslationModel> model_;
  GenerationStarter& generations_;
};

Outcome TranslationHandlers::Translate(const Call& call) {
  return Start(ParseTranslationRequest(call.request.body, call.model, *model_), call, "text");
}

Outcome TranslationHandlers::TranslateAsLibre(const Call& call) {
  const auto& entry = call.caller.entry;
  const uint32_t most = entry ? entry->rules.max_running : TenantRules::kNoLimit;
  return Start(
      ParseLibreRequest(call.request.body, call.request.content_type, call.model, *model_, most),
      call, "q");
}

Outcome TranslationHandlers::Start(Result<GenerationCall> parsed, const Call& call,
                                   std::string texts_field) {
  if (!parsed || !parsed->requests.empty()) {
    return generations_.Start(std::move(parsed), call, std::move(texts_field));
  }
  const bool streams = parsed->spec.stream;
  const WrittenAnswer answer(std::move(parsed->spec), 0, "", UnixS(), call.model.tokenizer,
                             std::move(parsed->writer));
  HttpResponse response;
  if (streams) {  // of empty texts
    response.content_type = "text/event-stream; charset=utf-8";
    response.body = answer.EmptyStream();
    return response;
  }
  Parts body = answer.Body();
  for (std::string part = body.Next(); !part.empty(); part = body.Next()) response.body += part;
  return response;
}

Outcome TranslationHandlers::ListLanguages(const Call&) {
  HttpResponse response;
  if (const auto& pair = model_->pair) {
    json list = json::array();
    if (!pair->source.empty()) {
      const Language source{.name = pair->source, .code = pair->source};
      list.push_back(
          {{"code", pair->source}, {"name", EnglishName(source)}, {"targets", {pair->target}}});
    }
    response.body = list.dump();
    return response;
  }
  response.rest = LanguageList(model_->languages);
  response.rest_bytes = 4 * kPartBytes;
  return response;
}

constexpr const char* kTextSchema =
    R"("text":{"type":["string","array"],"minItems":1,"items":{"type":"string"}},
    "source":{"type":"string"},"target":{"type":"string"})";
constexpr const char* kLibreSchema =
    R"("q":{"type":["string","array"],"minItems":1,"items":{"type":"string"}},
    "source":{"type":"string"},"target":{"type":"string"},"format":{"enum":["text"]})";

}  // namespace

Status AddTranslationRoutes(const Engine& engine, GenerationStarter& generations,
                            RouteTable* table) {
  std::optional<TranslationModel> model;
  if (engine.card().decoder_start) {
    KV_ASSIGN(model, TranslationModelOf(engine));
  }
  const auto own = std::make_shared<TranslationHandlers>(std::move(model), generations);
  Route row{.path = "/v1/translations",
            .method = "POST",
            .handler = std::bind_front(&TranslationHandlers::Translate, own),
            .access = Access::kTenant,
            .work = Route::kGeneration,
            .for_model = Route::kTranslator};
  const std::string beams = fmt::format(
      R"("beams":{{"type":"integer","minimum":1,"maximum":{}}},
      "split":{{"enum":["none","sentences"]}},
      "length_penalty":{{"type":"number","minimum":{},"maximum":{}}},
      "early_stopping":{{"enum":[false,true,"never"]}},
      "no_repeat_ngram_size":{{"type":"integer","minimum":0,"maximum":{}}})",
      kMaxBeams, kLengthPenaltyRange.least, kLengthPenaltyRange.most, kMaxNgram);
  row.description = {.summary = "Translates texts.",
                     .properties = JoinedFields({SamplingSchema(), kTextSchema, beams}),
                     .required = R"(["text","source","target"])",
                     .streams = true};
  table->Add(row);

  row.errors = &kPlainErrors;
  const std::string alternatives = fmt::format(
      R"("alternatives":{{"type":"integer","minimum":0,"maximum":{}}},"api_key":{{"type":"string"}})",
      kMaxBeams - 1);
  Route libre = At("/translate", row);
  libre.handler = std::bind_front(&TranslationHandlers::TranslateAsLibre, own);
  libre.key_in_body = KeyInLibreBody;
  libre.description = {.summary = "Translates texts, for clients of LibreTranslate.",
                       .properties = JoinedFields({kLibreSchema, alternatives}),
                       .required = R"(["q","source","target"])",
                       .takes_form = true};
  table->Add(std::move(libre));
  table->Add({.path = "/languages",
              .method = "GET",
              .handler = std::bind_front(&TranslationHandlers::ListLanguages, own),
              .access = Access::kOpen,
              .for_model = Route::kTranslator,
              .errors = &kPlainErrors,
              .description = {.summary = "The languages of the model, as LibreTranslate says them.",
                              .answer = "Answers"}});
  return {};
}

}  // namespace kvasir
