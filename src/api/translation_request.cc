#include "api/translation_request.h"

#include <algorithm>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "api/translation_writer.h"
#include "base/result.h"
#include "base/sizes.h"
#include "http/form_body.h"
#include "http/json_body.h"
#include "kvasir/sampling_ranges.h"
#include "text/sentences.h"

namespace kvasir {

namespace {

constexpr uint32_t kLibreBeams = 4;

Result<Direction> ReadDirection(JsonFields& fields, const TranslationModel& translation,
                                const Tokenizer& tokenizer) {
  const auto read = [&fields](const char* name) {
    std::optional<std::string> code;
    if (fields.Has(name)) fields.String(name, &code.emplace());
    return code;
  };
  const std::optional<std::string> source = read("source"), target = read("target");
  if (fields.error()) return tl::unexpected(*fields.error());
  return DirectionOf(translation, tokenizer, source, target);
}

void ReadEarlyStopping(JsonFields& fields, EarlyStopping* out) {
  const JsonValue* value = fields.Find("early_stopping");
  if (!value) return;
  if (value->is_bool()) {
    *out = value->boolean() ? EarlyStopping::kTrue : EarlyStopping::kFalse;
  } else if (value->is_string() && value->text() == "never") {
    *out = EarlyStopping::kNever;
  } else {
    fields.Refuse("early_stopping", R"(false, true or "never")");
  }
}

// Refuses what changes the answer and a beam search does not have.
void RefuseBesideBeams(JsonFields& fields, const GenerateRequest& request, bool streams) {
  const char* const remedy =
      fields.Has("beams") ? "leave out this or beams" : R"(leave it out, or give "beams": 1)";
  const auto refuse = [&fields, remedy](const char* name, std::string_view why) {
    fields.Fail(name, fmt::format("{}; {}", why, remedy));
  };
  const SamplingParams& sampling = request.sampling;
  if (streams) refuse("stream", "a beam search has its answer at the end");
  if (sampling.temperature > 0) refuse("temperature", "a beam search does not sample");
  if (!request.stop.empty()) refuse("stop", "a beam search has no stop strings");
  if (sampling.presence_penalty != 0) refuse("presence_penalty", "a beam search has none");
  if (sampling.frequency_penalty != 0) refuse("frequency_penalty", "a beam search has none");
  if (!sampling.logit_bias.empty()) refuse("logit_bias", "a beam search has none");
  if (sampling.penalty_last_n) refuse("repeat_last_n", "a beam search penalises all tokens");
}

// Reads beams, the numbers of answers, and what else a search is given. Of LibreTranslate's bodies
// `alternatives` says how many answers there are; the caller's tenant may have `max_running`.
void ReadSearch(JsonFields& fields, const TranslationModel& translation, uint32_t max_running,
                bool streams, GenerateRequest* request, TranslationSpec* spec) {
  BeamParams search;
  uint32_t beams = 1;
  if (spec->libre) {
    const uint32_t most = std::min({translation.parallel, kMaxBeams, max_running});
    fields.Unsigned("alternatives", 0, most - 1, &spec->libre->alternatives);
    request->n = spec->libre->alternatives + 1;
    const bool samples = request->sampling.temperature > 0 || !request->stop.empty();
    if (!samples) beams = std::min(std::max(kLibreBeams, request->n), most);
  }
  if (fields.Has("beams")) fields.Unsigned("beams", 1, kMaxBeams, &beams);
  if (beams > translation.parallel) {
    fields.Fail("beams", fmt::format("is {}, but at most {} may run at once (--parallel), and each "
                                     "beam is one",
                                     beams, CountText(translation.parallel, "sequence")));
  }
  const char* const choices = spec->libre ? "alternatives" : "n";
  if (beams > 1 && request->n > beams) {
    fields.Fail(choices,
                fmt::format("{} answers need as many beams, and there are {}", request->n, beams));
  }
  if (beams == 1 && request->n > 1 && request->sampling.temperature == 0) {
    fields.Fail(choices, fmt::format("greedy answers are all the same; give beams of at least {}, "
                                     "or a temperature",
                                     request->n));
  }
  if (streams && request->n > 1) fields.Fail("n", "a stream has one answer to each text");
  fields.Number("length_penalty", kLengthPenaltyRange.least, kLengthPenaltyRange.most,
                &search.length_penalty);
  ReadEarlyStopping(fields, &search.early_stopping);
  fields.Unsigned("no_repeat_ngram_size", 0, kMaxNgram, &request->no_repeat_ngram_size);
  spec->length_penalty = search.length_penalty;
  if (beams == 1) return;
  RefuseBesideBeams(fields, *request, streams);
  search.beams = beams;
  request->beams = search;
  spec->is_search = true;
}

// Reads the texts of a body: one, or a list.
Result<std::vector<std::string_view>> ReadTexts(JsonFields& fields, const char* name) {
  const JsonValue* text = fields.Find(name);
  if (!text) return FailField(Code::kInvalidArgument, name, "is missing");
  const auto fail = [name] {
    return FailField(Code::kInvalidArgument, name, "must be a string or a list of strings");
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
  return texts;
}

Result<std::vector<TokenId>> SourceOf(std::string_view text, const char* field,
                                      const SourceFrame& frame, const ModelView& model,
                                      bool splits_sentences) {
  const size_t most = model.max_text_tokens();
  Result<std::vector<TokenId>> source = EncodeSource(*model.tokenizer, text, frame, most);
  if (source && source->size() <= model.ctx_size) return source;
  if (!source && source.error().code != Code::kExhausted) {
    return tl::unexpected(EncodeError(source.error(), field, most, model));
  }
  auto refused = FailField(
      Code::kInvalidArgument, field, "has {} tokens{}; the encoder reads at most {} at once{}",
      source ? std::to_string(source->size()) : fmt::format("more than {}", most),
      splits_sentences ? " in a sentence" : "", model.ctx_size,
      splits_sentences ? "" : R"(; "split": "sentences" translates it in parts)");
  refused.value().cause = Cause::kContext;
  refused.value().excess = {.prompt_tokens = source ? source->size() : most + 1,
                            .ctx_size = model.ctx_size,
                            .is_least = !source};
  return refused;
}

// Adds the requests of a text.
Status AddText(std::string_view text, const char* field, const SourceFrame& frame,
               const GenerateRequest& request, const ModelView& model, TranslationSpec* spec,
               GenerationCall* call) {
  TranslationSpec::Text& sentences = spec->texts.emplace_back();
  const auto add = [&](std::string_view sentence, std::string_view line_break) -> Status {
    sentences.emplace_back().break_before = line_break;
    KV_ASSIGN(std::vector<TokenId> ids,
              SourceOf(sentence, field, frame, model, spec->splits_sentences));
    if (ids.size() == frame.before.size() + frame.after.size()) return {};  // without text
    if (call->requests.size() == model.max_prompts) {
      return FailField(Code::kInvalidArgument, field,
                       "more than {} {}, which is what may run or wait at once", model.max_prompts,
                       spec->splits_sentences ? "sentences" : "texts");
    }
    sentences.back().request = call->requests.size();
    call->requests.emplace_back(request).source = std::move(ids);
    return {};
  };
  if (!spec->splits_sentences) return add(text, "");
  const Sentences found(text);
  for (size_t i = 0; i < found.size(); ++i) {
    KV_TRY(add(found.At(i), found.BreakBefore(i)));
  }
  return {};
}

// Reads all fields; `texts`: the name of that with the texts.
Result<GenerationCall> ReadCall(JsonFields& fields, const char* texts_field, TranslationSpec spec,
                                const ModelView& model, const TranslationModel& translation,
                                uint32_t max_running) {
  GenerationCall call;
  AskedFields asked;
  std::string name = "default";
  fields.String("model", &name);
  if (fields.error()) return tl::unexpected(*fields.error());
  KV_ASSIGN(call.spec.model, CheckModel(name, model));
  if (!translation.reads_text()) {
    return FailField(Code::kUnsupported, texts_field, "{}",
                     model.tokenizer ? "the model's tokenizer has no languages" : model.no_text);
  }
  GenerateRequest request;
  ReadGenerationFields(fields, model, &request, &call.spec, &asked);
  if (!fields.Has("temperature")) request.sampling.temperature = 0;
  if (request.max_tokens == 0) {
    fields.Fail("max_tokens", translation.pair ? "is 0; give at least 1"
                                               : "is 0; the language counts, so give at least 1");
  }
  if (request.format) {
    fields.Fail(
        Error{Code::kUnsupported, "translations have no format; leave it out", "response_format"});
  }
  if (spec.libre && call.spec.stream) {
    fields.Fail("stream", "is for POST /v1/translations; leave it out here");
  }
  ReadSearch(fields, translation, max_running, call.spec.stream, &request, &spec);
  static constexpr std::string_view kRead[] = {"length_penalty"};
  RefuseUnsupported(fields, kRead);
  std::string split = spec.libre ? "sentences" : "none";
  fields.String("split", &split);
  if (split != "none" && split != "sentences") {
    fields.Refuse("split", R"("none" or "sentences")");
  }
  if (fields.error()) return tl::unexpected(*fields.error());
  spec.splits_sentences = split == "sentences";
  KV_ASSIGN(const Direction direction, ReadDirection(fields, translation, *model.tokenizer));
  KV_ASSIGN(const std::vector<std::string_view> texts, ReadTexts(fields, texts_field));
  KV_TRY(SetTarget(translation.decoder_start, direction.target, &request));
  if (!request.beams && !spec.libre) request.logprobs = 0;  // for the score
  call.spec.n = request.n;
  call.spec.keeps_receipts = true;
  call.spec.keeps_ids = !spec.libre && !call.spec.stream;
  request.ignored = fields.Unread();
  spec.prompt = request.prompt;
  for (const std::string_view text : texts) {
    KV_TRY(AddText(text, texts_field, direction.frame, request, model, &spec, &call));
  }
  call.writer = std::make_unique<TranslationWriter>(std::move(spec));
  return call;
}

// Returns a form as the text of the JSON object that says the same. Fields of LibreTranslate are
// texts; those of ours are numbers and booleans where they look like one.
Result<std::string> JsonOfForm(std::string_view body, std::string_view content_type) {
  static constexpr std::string_view kTexts[] = {"q", "source", "target", "format", "api_key"};
  KV_ASSIGN(const FormFields form, ParseForm(body, content_type));
  nlohmann::ordered_json object = nlohmann::ordered_json::object();
  for (const auto& [name, value] : form) {
    if (object.contains(name)) {
      return FailField(Code::kInvalidArgument, "form", "has the field '{}' twice", name);
    }
    nlohmann::ordered_json typed = value;
    // No tree is made of lists and objects: it takes 80 times their bytes.
    if (std::ranges::find(kTexts, name) == std::end(kTexts) &&
        value.find_first_of("[{") == value.npos) {
      auto parsed = nlohmann::ordered_json::parse(value, nullptr, false);
      if (parsed.is_number() || parsed.is_boolean()) typed = std::move(parsed);
    }
    object[name] = std::move(typed);
  }
  return object.dump();
}

}  // namespace

Result<GenerationCall> ParseTranslationRequest(std::string_view body, const ModelView& model,
                                               const TranslationModel& translation) {
  KV_ASSIGN(const JsonBody parsed, ParseBody(body, kChatIds));
  JsonFields fields(parsed.fields);
  return ReadCall(fields, "text", {}, model, translation, TenantRules::kNoLimit);
}

Result<GenerationCall> ParseLibreRequest(std::string_view body, std::string_view content_type,
                                         const ModelView& model,
                                         const TranslationModel& translation,
                                         uint32_t max_running) {
  std::string converted;
  const bool is_form = IsForm(body, content_type);
  if (is_form) {
    KV_ASSIGN(converted, JsonOfForm(body, content_type));
    body = converted;
  }
  KV_ASSIGN(const JsonBody parsed, ParseBody(body, kChatIds));
  JsonFields fields(parsed.fields);
  std::string format = "text", key;
  fields.String("format", &format);
  if (format != "text") {
    fields.Refuse("format", R"("text": markup is not translated)");
  }
  fields.String("api_key", &key);  // the caller is known by now
  const JsonValue* texts = fields.Find("q");
  TranslationSpec spec;
  spec.libre = {.has_list = texts != nullptr && texts->is_array()};
  return ReadCall(fields, "q", std::move(spec), model, translation, max_running);
}

std::string KeyInLibreBody(std::string_view body, std::string_view content_type) {
  std::string key;
  if (IsForm(body, content_type)) {
    const Result<FormFields> form = ParseForm(body, content_type);
    if (!form) return key;
    for (const auto& [name, value] : *form) {
      if (name == "api_key") key = value;
    }
    return key;
  }
  const Result<JsonBody> parsed = ParseBody(body, kChatIds);
  if (!parsed) return key;
  JsonFields fields(parsed->fields);
  fields.String("api_key", &key);
  return key;
}

}  // namespace kvasir
