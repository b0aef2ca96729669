#include "api/llama_request.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "api/infill_prompt.h"
#include "api/llama_writer.h"
#include "api/raw_prompts.h"
#include "api/request_limits.h"
#include "api/samplers_field.h"
#include "base/result.h"
#include "kvasir/sampling_ranges.h"

namespace kvasir {
namespace {

using nlohmann::json;

constexpr uint64_t kRandomSeed = 0xffffffff;  // llama.cpp's number for "choose one"
constexpr uint32_t kPenaltyTokens = 64;

// Fields that are read here, though they are not supported elsewhere.
constexpr std::string_view kReadHere[] = {"n_probs"};

// Fields that must have the number that switches them off.
struct SwitchedOff {
  const char* name;
  double off;
  const char* instead;
};
constexpr SwitchedOff kSwitchedOff[] = {
    {"n_cache_reuse", 0,
     "to reuse text in another place, mark it: spans (cache.spans, \"span\": true of a chat's text "
     "parts) do not depend on what a slot held"},
};

void RefuseSwitchedOn(JsonFields& fields) {
  for (const SwitchedOff& field : kSwitchedOff) {
    const JsonValue* value = fields.Find(field.name);
    if (!value || (value->is_number() && value->number() == field.off)) continue;
    fields.Fail({Code::kUnsupported,
                 fmt::format("only {} is supported: another value would change the answer; {}",
                             field.off, field.instead),
                 field.name});
  }
  const JsonValue* images = fields.Find("image_data");
  if (images && images->size() > 0) {
    fields.Fail(
        {Code::kUnsupported, "is not supported in this version: models read text", "image_data"});
  }
}

// Reads what these paths have beside OpenAI's.
void ReadLlamaFields(JsonFields& fields, GenerateRequest* request, AnswerSpec* spec,
                     LlamaSpec* llama) {
  fields.Unsigned("n_cmpl", 1, kMaxChoices, &request->n);
  if (const auto keep = fields.Integer("n_keep", -1, INT32_MAX)) {
    request->llama_quirks.n_keep = static_cast<int32_t>(*keep);
  }
  spec->n = request->n;
  auto& seed = request->sampling.seed;
  if (seed == kRandomSeed || seed == static_cast<uint64_t>(-1)) seed.reset();
  uint32_t num_probs = 0;
  fields.Unsigned("n_probs", 0, kMaxTopLogprobs, &num_probs);
  if (num_probs > 0) request->logprobs = spec->logprobs = num_probs;
  fields.Bool("post_sampling_probs", &llama->post_sampling_probs);
  request->llama_quirks.sampled_logprobs = llama->post_sampling_probs;
  if (const auto limit_ms = fields.Integer("t_max_predict_ms", -1, kMaxTimeoutMs);
      limit_ms.value_or(0) > 0) {
    request->llama_quirks.line_timeout_ms = static_cast<uint64_t>(*limit_ms);
  }
  // llama.vim's [""] is an answer without fields.
  fields.Strings("response_fields", kMaxResponseFields, kMaxResponseFieldBytes,
                 &llama->response_fields,
                 /*min_bytes=*/0);
  llama->id_slot = fields.Integer("id_slot", -1, INT32_MAX).value_or(-1);
  RefuseSwitchedOn(fields);
}

struct Begun {
  GenerateRequest request;
  AnswerSpec spec;
  AskedFields asked;
  LlamaSpec llama;
};

Result<Begun> Begin(JsonFields& fields, const ModelView& model) {
  Begun begun;
  std::string name = "default";
  fields.String("model", &name);
  if (!fields.error()) {
    KV_ASSIGN(begun.spec.model, CheckModel(name, model));
  }
  ReadGenerationFields(fields, model, &begun.request, &begun.spec, &begun.asked);
  ReadLlamaFields(fields, &begun.request, &begun.spec, &begun.llama);
  RefuseUnsupported(fields, kReadHere);
  begun.llama.ctx_size = model.ctx_size;
  if (fields.error()) return tl::unexpected(*fields.error());
  return begun;
}

bool Wants(const LlamaSpec& llama, std::string_view field) {
  const auto& fields = llama.response_fields;
  return fields.empty() || std::ranges::find(fields, field) != fields.end();
}

// Returns the texts of the prompts, with special tokens. `remedy`: of texts that are too long.
Result<std::vector<std::string>> TextsOf(std::span<const std::vector<TokenId>* const> prompts,
                                         const ModelView& model, std::string_view remedy) {
  std::vector<std::string> texts;
  size_t bytes = 0;
  for (const auto* ids : prompts) {
    KV_ASSIGN(std::string text, DecodeIds(*ids, "prompt", model));
    bytes += text.size();
    if (bytes > model.max_decoded_bytes) {
      return FailField(Code::kInvalidArgument, "prompt",
                       "the prompts have more than {} bytes of text; {}", model.max_decoded_bytes,
                       remedy);
    }
    texts.push_back(std::move(text));
  }
  return texts;
}

Status AddTexts(const RawPrompts& prompts, const ModelView& model, LlamaSpec* llama) {
  if (!model.tokenizer || !Wants(*llama, "prompt")) return {};
  std::vector<const std::vector<TokenId>*> all;
  for (const auto& ids : prompts) all.push_back(&ids);
  KV_ASSIGN(llama->prompts,
            TextsOf(all, model, "name the fields that you want in response_fields"));
  return {};
}

Result<GenerationCall> Finish(Begun begun, RawPrompts prompts, const JsonFields& fields,
                              const ModelView& model) {
  KV_TRY(AddTexts(prompts, model, &begun.llama));
  begun.request.ignored = fields.Unread();
  begun.llama.settings = Dump(LlamaSettings(begun.request, begun.spec, begun.asked, model.ends));
  GenerationCall call;
  for (std::vector<TokenId>& ids : prompts) {
    begun.llama.prompt_tokens.push_back(static_cast<uint32_t>(ids.size()));
    call.requests.emplace_back(begun.request).prompt = std::move(ids);
  }
  call.spec = std::move(begun.spec);
  call.spec.keeps_receipts = true;
  call.writer = std::make_unique<LlamaWriter>(std::move(begun.llama));
  call.slot = begun.asked.slot;
  return call;
}

// `forbidden` beside those of the request.
json BiasesJson(const SamplingParams& sampling, std::span<const TokenId> forbidden) {
  json biases = json::array();
  for (const auto& [token, bias] : sampling.logit_bias) {
    biases.push_back({{"token", token}, {"bias", bias == kForbidden ? json() : json(bias)}});
  }
  for (const TokenId token : forbidden) biases.push_back({{"token", token}, {"bias", json()}});
  return biases;
}

// "": the answer has no format, or one in another language.
std::string GrammarOf(const GenerateRequest& request) {
  const bool is_gbnf = request.format && request.format->text &&
                       request.format->text->language == FormatLanguage::kGbnf;
  return is_gbnf ? request.format->text->text : "";
}

// Lists the adapters that a request says.
json ChoicesJson(const GenerateRequest& request) {
  json list = json::array();
  if (!request.adapters) return list;
  for (const AdapterChoice& choice : *request.adapters) {
    list.push_back({{"id", choice.id}, {"scale", choice.scale}});
  }
  return list;
}

}  // namespace

SamplingParams LlamaSampling() {
  SamplingParams params;
  params.temperature = 0.8f;
  params.top_k = 40;
  params.top_p = 0.95f;
  params.min_p = 0.05f;
  params.penalty_last_n = kPenaltyTokens;
  params.temperature_last = true;
  return params;
}

Result<GenerationCall> ParseLlamaRequest(std::string_view body, const ModelView& model) {
  KV_ASSIGN(const JsonBody parsed, ParseBody(body, kCompletionIds));
  JsonFields fields(parsed.fields);
  KV_ASSIGN(Begun begun, Begin(fields, model));
  EncodeOptions options;
  options.max_tokens = MaxTextTokens(begun.request, model);
  fields.Bool("add_special", &options.add_special);
  fields.Bool("parse_special", &options.parse_special);
  if (fields.error()) return tl::unexpected(*fields.error());
  KV_ASSIGN(const auto list, ListPrompts(fields, begun.request.n, model));
  KV_TRY(CheckSpans(list, begun.request));
  RawPrompts prompts;
  for (const JsonValue* one : list) {
    KV_ASSIGN(prompts.emplace_back(), IdsOf(*one, options, model));
    KV_TRY(CheckLength(prompts.back().size(), begun.request, "prompt", model));
  }
  return Finish(std::move(begun), std::move(prompts), fields, model);
}

Result<GenerationCall> ParseInfillRequest(std::string_view body, const ModelView& model) {
  KV_TRY(CheckInfill(model));
  KV_ASSIGN(const JsonBody parsed, ParseBody(body));
  JsonFields fields(parsed.fields);
  KV_ASSIGN(Begun begun, Begin(fields, model));
  RawPrompts prompts(1);
  KV_TRY(CheckSpans({}, begun.request));
  KV_ASSIGN(prompts[0], InfillPrompt(fields, model, MaxTextTokens(begun.request, model)));
  KV_TRY(CheckLength(prompts[0].size(), begun.request, "input_prefix", model));
  AddInfillEnds(model, &begun.request);
  return Finish(std::move(begun), std::move(prompts), fields, model);
}

Result<VerboseSpec> VerboseOf(std::span<const GenerateRequest> requests, const AnswerSpec& spec,
                              const AskedFields& asked, const ModelView& model) {
  VerboseSpec said;
  if (model.tokenizer) {
    std::vector<const std::vector<TokenId>*> all;
    for (const GenerateRequest& request : requests) all.push_back(&request.prompt);
    KV_ASSIGN(said.prompts, TextsOf(all, model, "leave verbose out"));
  }
  said.settings = Dump(LlamaSettings(requests.front(), spec, asked, model.ends));
  return said;
}

json LlamaSettings(const GenerateRequest& request, const AnswerSpec& spec, const AskedFields& asked,
                   std::span<const TokenId> ends) {
  const SamplingParams& sampling = request.sampling;
  const bool unlimited = request.max_tokens == UINT32_MAX;
  const int64_t max_tokens = unlimited ? -1 : int64_t{request.max_tokens};
  const int64_t last_n = !sampling.penalty_last_n || sampling.penalty_last_n == UINT32_MAX
                             ? -1
                             : int64_t{*sampling.penalty_last_n};
  const auto forbidden = request.ignore_eos ? ends : std::span<const TokenId>();
  return {{"seed", sampling.seed.value_or(kRandomSeed)},
          {"temperature", sampling.temperature},
          {"dynatemp_range", 0.0},
          {"top_k", sampling.top_k},
          {"top_p", sampling.top_p},
          {"min_p", sampling.min_p},
          {"top_n_sigma", -1.0},
          {"xtc_probability", 0.0},
          {"typical_p", 1.0},
          {"repeat_last_n", last_n},
          {"repeat_penalty", sampling.repetition_penalty},
          {"presence_penalty", sampling.presence_penalty},
          {"frequency_penalty", sampling.frequency_penalty},
          {"dry_multiplier", 0.0},
          {"mirostat", 0},
          {"adaptive_target", -1.0},
          {"adaptive_decay", 0.9},
          {"stop", request.stop},
          {"max_tokens", max_tokens},
          {"n_predict", max_tokens},
          {"n_keep", request.llama_quirks.n_keep.value_or(0)},
          {"n_discard", 0},
          {"ignore_eos", request.ignore_eos},
          {"stream", spec.stream},
          {"logit_bias", BiasesJson(sampling, forbidden)},
          {"n_probs", spec.logprobs.value_or(0)},
          {"min_keep", 0},
          {"grammar", GrammarOf(request)},
          {"samplers", asked.samplers ? json(*asked.samplers) : json(kDefaultSamplers)},
          {"timings_per_token", spec.timings_per_token},
          {"post_sampling_probs", request.llama_quirks.sampled_logprobs},
          {"lora", ChoicesJson(request)}};
}

}  // namespace kvasir
