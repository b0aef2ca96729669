#include "server/translation_request.h"

#include <filesystem>
#include <memory>
#include <string>
#include <utility>

#include "base/mapped_file.h"
#include "base/result.h"
#include "server/json_fields.h"

namespace kvasir {

Result<TranslationModel> TranslationModelOf(const Engine& engine) {
  TranslationModel model;
  model.decoder_start = *engine.card().decoder_start;
  const Tokenizer* tokenizer = engine.tokenizer();
  if (tokenizer == nullptr || !tokenizer->eos()) return model;
  model.languages = Languages::Of(*tokenizer);
  namespace fs = std::filesystem;
  const fs::path config = fs::path(engine.card().path) / "tokenizer_config.json";
  std::error_code error;
  if (!fs::exists(config, error)) return model;
  constexpr uint64_t kMaxBytes = uint64_t{64} << 20;
  KV_ASSIGN(const std::string text, ReadTextFile(config, kMaxBytes));
  KV_ASSIGN(model.place, LanguagePlaceOf(text));
  return model;
}

namespace {

Result<TokenId> ReadLanguage(JsonFields& fields, const char* name, const Languages& languages) {
  if (!fields.Has(name)) return FailField(Code::kInvalidArgument, name, "is missing");
  std::string code;
  fields.String(name, &code);
  if (fields.error()) return tl::unexpected(*fields.error());
  Result<Language> language = languages.Find(code);
  if (!language) return FailField(Code::kInvalidArgument, name, "{}", language.error().message);
  return language->id;
}

// Fails on fields of what there is not yet, unless they ask for nothing.
void RefuseAbsent(JsonFields& fields, const GenerateRequest& request, const AnswerSpec& spec) {
  const auto refuse = [&fields](const char* name) {
    fields.Fail(
        Error{Code::kUnsupported, "is not supported yet for translations; leave it out", name});
  };
  constexpr int64_t kMostBeams = 16;
  if (fields.Integer("beams", 1, kMostBeams).value_or(1) != 1) refuse("beams");
  if (request.n != 1) refuse("n");
  if (spec.stream) refuse("stream");
  if (request.format) refuse("response_format");
  std::string split = "none";
  fields.String("split", &split);
  if (split != "none") refuse("split");
}

Result<std::vector<std::string_view>> ReadTexts(JsonFields& fields, const ModelView& model) {
  const JsonValue* text = fields.Find("text");
  if (!text) return FailField(Code::kInvalidArgument, "text", "is missing");
  const auto fail = [] {
    return FailField(Code::kInvalidArgument, "text", "must be a string or a list of strings");
  };
  std::vector<std::string_view> texts;
  if (text->is_string()) {
    texts.push_back(text->text());
  } else if (text->is_array() && text->size() > 0) {
    for (const JsonValue& one : text->items()) {
      if (!one.is_string()) return fail();
      texts.push_back(one.text());
    }
  } else {
    return fail();
  }
  if (texts.size() <= model.max_prompts) return texts;
  return FailField(Code::kInvalidArgument, "text", "{} texts; at most {} may run or wait at once",
                   texts.size(), model.max_prompts);
}

Result<std::vector<TokenId>> SourceOf(std::string_view text, TokenId language,
                                      const TranslationModel& translation, const ModelView& model) {
  const size_t most = model.max_text_tokens();
  Result<std::vector<TokenId>> source =
      EncodeSource(*model.tokenizer, text, language, translation.place, most);
  if (!source) return tl::unexpected(EncodeError(source.error(), "text", most, model));
  if (source->size() <= model.ctx_size) return source;
  return FailField(Code::kInvalidArgument, "text",
                   "has {} tokens; the encoder reads at most {} at once", source->size(),
                   model.ctx_size);
}

}  // namespace

Result<GenerationCall> ParseTranslationRequest(std::string_view body, const ModelView& model,
                                               const TranslationModel& translation) {
  KV_ASSIGN(const JsonBody parsed, ParseBody(body, kChatIds));
  JsonFields fields(parsed.fields);
  GenerationCall call;
  std::string name = "default";
  fields.String("model", &name);
  if (fields.error()) return tl::unexpected(*fields.error());
  KV_ASSIGN(call.spec.model, CheckModel(name, model));
  if (translation.languages.empty()) {
    return FailField(Code::kUnsupported, "text", "{}",
                     model.tokenizer ? "the model's tokenizer has no languages" : model.no_text);
  }
  GenerateRequest request;
  ReadGenerationFields(fields, model, &request, &call.spec);
  if (!fields.Has("temperature")) request.sampling.temperature = 0;
  if (request.max_tokens == 0) fields.Fail("max_tokens", "is 0; the language counts, so give 1");
  if (request.max_tokens != UINT32_MAX) --request.max_tokens;  // the language counts
  RefuseAbsent(fields, request, call.spec);
  RefuseUnsupported(fields);
  if (fields.error()) return tl::unexpected(*fields.error());
  KV_ASSIGN(const TokenId source, ReadLanguage(fields, "source", translation.languages));
  KV_ASSIGN(const TokenId target, ReadLanguage(fields, "target", translation.languages));
  KV_ASSIGN(const std::vector<std::string_view> texts, ReadTexts(fields, model));
  request.ignored = fields.Unread();
  request.prompt = {translation.decoder_start, target};
  auto spec = std::make_shared<TranslationSpec>();
  for (const std::string_view text : texts) {
    KV_ASSIGN(std::vector<TokenId> ids, SourceOf(text, source, translation, model));
    constexpr size_t kWithoutText = 2;  // the language and </s>
    if (ids.size() == kWithoutText) {
      spec->request_of.emplace_back();
      continue;
    }
    spec->request_of.emplace_back(call.requests.size());
    call.requests.emplace_back(request).source = std::move(ids);
  }
  call.spec.translation = std::move(spec);
  return call;
}

}  // namespace kvasir
