// The fields of a request that say how to generate: what chat and text completions share.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "api/adapter_fields.h"
#include "api/draft_fields.h"
#include "api/format_fields.h"
#include "api/logit_bias.h"
#include "api/openai_request.h"
#include "api/request_limits.h"
#include "api/samplers_field.h"
#include "kvasir/sampling_ranges.h"

namespace kvasir {
namespace {

// Fields of OpenAI, vLLM and llama.cpp that change an answer and are not supported. `neutral` is
// the number that switches the feature off, `neutral_text` the text.
struct UnsupportedField {
  std::string_view name;
  double neutral = 0;
  std::string_view instead = "leave it out";
  std::string_view neutral_text = "none";
};

constexpr UnsupportedField kUnsupported[] = {
    {"functions", 0, "give tools"},
    {"function_call", 0, "give tool_choice", "auto"},  // `functions` are refused
    {"audio"},
    {"web_search_options"},
    {"suffix"},
    {"min_keep"},
    {"typical_p", 1},
    {"typ_p", 1},
    {"top_a"},
    {"tfs", 1},
    {"tfs_z", 1},
    {"top_n_sigma", -1},
    {"adaptive_target", -1},
    {"mirostat"},
    {"mirostat_mode"},
    {"dynatemp_range"},
    {"dry_multiplier"},
    {"xtc_probability"},
    {"length_penalty", 1},
    {"use_beam_search"},
    {"prompt_logprobs"},
    {"n_probs", 0, "give logprobs, and in chats top_logprobs"},
    {"bad_words"},
    {"allowed_token_ids"},
    {"include_stop_str_in_output"},
    {"truncate_prompt_tokens"},
    {"chat_template"},
    {"prompt_embeds"},
    {"mm_processor_kwargs"},
};

bool IsText(const JsonValue& value, std::string_view text) {
  return value.is_string() && value.text() == text;
}

bool AsksForNothing(const JsonValue& value, const UnsupportedField& field) {
  if (value.is_number()) return value.number() == field.neutral;
  if (value.is_bool()) return !value.boolean();
  return value.size() == 0 || IsText(value, "none") || IsText(value, field.neutral_text);
}

void ReadSampling(JsonFields& fields, const ModelView& model, SamplingParams* sampling) {
  const auto number = [&fields](std::string_view name, SamplingRange range, float* out) {
    fields.Number(name, range.least, range.most, out);
  };
  number("temperature", kTemperatureRange, &sampling->temperature);
  number("top_p", kProbabilityRange, &sampling->top_p);
  number("min_p", kProbabilityRange, &sampling->min_p);
  number("repeat_penalty", kRepetitionPenaltyRange, &sampling->repetition_penalty);
  number("repetition_penalty", kRepetitionPenaltyRange, &sampling->repetition_penalty);
  number("presence_penalty", kAnswerPenaltyRange, &sampling->presence_penalty);
  number("frequency_penalty", kAnswerPenaltyRange, &sampling->frequency_penalty);
  if (const auto top_k = fields.Integer("top_k", -1, INT32_MAX)) {
    sampling->top_k = *top_k < 0 ? 0 : static_cast<uint32_t>(*top_k);  // vLLM's -1: all
  }
  const JsonValue* seed = fields.Find("seed");
  if (seed && seed->kind() == JsonValue::Kind::kUnsigned) {
    sampling->seed = seed->unsigned_integer();
  } else if (seed && seed->kind() == JsonValue::Kind::kDigits) {
    fields.Fail("seed", fmt::format("{} is not an integer between {} and {}", NumberText(*seed),
                                    INT64_MIN, UINT64_MAX));
  } else if (const auto seed = fields.Integer("seed", INT64_MIN, INT64_MAX)) {
    sampling->seed = static_cast<uint64_t>(*seed);
    if (*seed == -1) sampling->seed.reset();  // llama.cpp's and vLLM's for a random one
  }
  if (const auto last_n = fields.Integer("repeat_last_n", -1, UINT32_MAX)) {
    // -1: all that the penalties cover by default, where llama.cpp's defaults hold all tokens.
    if (*last_n >= 0) sampling->penalty_last_n = static_cast<uint32_t>(*last_n);
    if (*last_n < 0 && sampling->penalty_last_n) sampling->penalty_last_n = UINT32_MAX;
  }
  ReadLogitBias(fields, model, sampling);
}

void ReadLengths(JsonFields& fields, GenerateRequest* request) {
  for (const char* name : {"n_predict", "max_tokens", "max_completion_tokens"}) {
    const auto tokens = fields.Integer(name, -1, UINT32_MAX);  // llama.cpp's -1: no limit
    if (tokens) request->max_tokens = *tokens < 0 ? UINT32_MAX : static_cast<uint32_t>(*tokens);
  }
  fields.Unsigned("min_tokens", 0, UINT32_MAX, &request->min_tokens);
  if (request->min_tokens > request->max_tokens) {
    fields.Fail("min_tokens", fmt::format("is {}, more than max_tokens, which is {}",
                                          request->min_tokens, request->max_tokens));
  }
}

// Reads a policy's name, or an object with it and its numbers.
void ReadRetention(JsonFields& cache, GenerateRequest* request) {
  const JsonValue* value = cache.Find("retention");
  if (!value) return;
  RetentionChoice& choice = request->retention.emplace();
  const auto take = [&](JsonFields& fields, const char* name, const JsonValue& policy) {
    const auto known = policy.is_string() ? ParseRetention(policy.text()) : std::nullopt;
    if (known) {
      choice.policy = *known;
    } else {
      fields.Fail(name, fmt::format("is {}, not one of {}",
                                    policy.is_string() ? "'" + std::string(policy.text()) + "'"
                                                       : std::string(KindOf(policy)),
                                    RetentionNames()));
    }
  };
  if (value->is_string() &&
      value->text().find(':') != std::string_view::npos) {  // as --retention takes it
    Result<RetentionChoice> written = ParseRetentionChoice(value->text());
    if (!written) return cache.Fail("retention", written.error().message);
    if (written->keep) return cache.Fail("retention", "has 'keep'; give sinks=N");
    choice = *written;
    return;
  }
  if (!value->is_object()) return take(cache, "retention", *value);
  JsonFields fields(*value, "cache.retention.");
  const JsonValue* policy = fields.Find("policy");
  if (!policy) {
    return cache.Fail("retention", fmt::format("has no policy; give one of {}", RetentionNames()));
  }
  take(fields, "policy", *policy);
  for (const auto& [name, number] : {std::pair{"budget", &choice.budget},
                                     {"sinks", &choice.sinks},
                                     {"recent", &choice.recent},
                                     {"exact_tokens", &choice.exact_tokens}}) {
    const JsonValue* const budget = number == &choice.budget ? fields.Find(name) : nullptr;
    if (budget && IsText(*budget, "context")) {
      choice.keeps_context = true;
      continue;
    }
    const auto given = fields.Integer(name, 0, kMaxRetainedTokens);
    if (given) *number = static_cast<uint32_t>(*given);
  }
  for (const std::string& name : fields.Unread()) {
    fields.FailUnknown(name, "unknown field (known: policy, budget, sinks, recent, exact_tokens)");
  }
  if (fields.error()) cache.Fail(*fields.error());
}

// Reads [[begin, end], ...] and their numbers.
void ReadSpans(JsonFields& cache, GenerateRequest* request) {
  PromptSpans choice;
  const JsonValue* list = cache.Find("spans");
  const auto is_place = [](const JsonValue& value) {
    return value.is_integer() && value.number() >= 0 && value.number() <= kMaxRetainedTokens;
  };
  const auto is_range = [&](const JsonValue& value) {
    return value.is_array() && value.size() == 2 && std::ranges::all_of(value.items(), is_place);
  };
  if (list && (!list->is_array() || !std::ranges::all_of(list->items(), is_range))) {
    return cache.Fail("spans", "is not a list of [begin, end], two places in the prompt");
  }
  for (const JsonValue& range : list ? list->items() : std::span<const JsonValue>()) {
    choice.spans.push_back({static_cast<uint32_t>(range.items()[0].number()),
                            static_cast<uint32_t>(range.items()[1].number())});
  }
  cache.Unsigned("seam", 0, kMaxSeamTokens, &choice.seam);
  if (const auto head = cache.Integer("span_head", 0, kMaxRetainedTokens)) {
    choice.head = static_cast<uint32_t>(*head);
  }
  if (choice != PromptSpans()) request->spans = std::move(choice);
}

void ReadStream(JsonFields& fields, AnswerSpec* spec, AskedFields* asked) {
  fields.Bool("stream", &spec->stream);
  const JsonValue* options = fields.Find("stream_options");
  if (!options) return;
  if (!options->is_object()) {
    return fields.Fail("stream_options", fmt::format("is {}, not an object", KindOf(*options)));
  }
  if (!spec->stream) return fields.Fail("stream_options", "needs stream: true");
  JsonFields inner(*options, "stream_options.");
  inner.Bool("include_usage", &asked->include_usage);
  fields.TakeUnread(inner);
  if (inner.error()) fields.Fail(*inner.error());
}

}  // namespace

void ReadCache(JsonFields& fields, GenerateRequest* request) {
  const JsonValue* cache = fields.Find("cache");
  if (!cache) return;
  if (!cache->is_object()) {
    return fields.Fail("cache", fmt::format("is {}, not an object", KindOf(*cache)));
  }
  JsonFields inner(*cache, "cache.");
  inner.Bool("disk", &request->use_disk);
  bool remote = true;
  inner.Bool("remote", &remote);
  if (!remote) request->use_remote = RemoteUse::kNone;
  ReadRetention(inner, request);
  ReadSpans(inner, request);
  for (const std::string& name : inner.Unread()) {
    inner.FailUnknown(name,
                      "unknown field (known: disk, remote, retention, seam, span_head, spans)");
  }
  if (inner.error()) fields.Fail(*inner.error());
}

void ReadRunFields(JsonFields& fields, GenerateRequest* request) {
  if (const auto priority = fields.Integer("priority", INT32_MIN, INT32_MAX)) {
    request->priority = static_cast<int32_t>(*priority);
  }
  if (const auto timeout_ms = fields.Integer("timeout_ms", 1, kMaxTimeoutMs)) {
    request->timeout_ms = static_cast<uint64_t>(*timeout_ms);
  }
  if (fields.Has("cache_salt")) {
    std::string& salt = request->cache_salt.emplace();
    fields.String("cache_salt", &salt);
    if (salt.empty() || salt.size() > kMaxSaltBytes) {
      fields.Fail("cache_salt",
                  fmt::format("has {} bytes; give 1 to {}", salt.size(), kMaxSaltBytes));
    }
  }
  bool cache_prompt = true;
  fields.Bool("cache_prompt", &cache_prompt);
  if (!cache_prompt) request->reuse = Reuse::kNothing;
  ReadCache(fields, request);
}

void ReadGenerationFields(JsonFields& fields, const ModelView& model, GenerateRequest* request,
                          AnswerSpec* spec, AskedFields* asked) {
  request->sampling = model.sampling;
  request->max_tokens = model.max_tokens.value_or(request->max_tokens);
  ReadSampling(fields, model, &request->sampling);
  asked->samplers = ReadSamplers(fields, &request->sampling);
  ReadLengths(fields, request);
  fields.Unsigned("n_indent", 0, kMaxIndent, &request->llama_quirks.min_indent);
  fields.Unsigned("n", 1, kMaxChoices, &request->n);
  uint32_t best_of = request->n;
  fields.Unsigned("best_of", 1, kMaxChoices, &best_of);
  if (best_of != request->n) fields.Fail("best_of", "is supported only where it equals n");
  fields.Strings("stop", kMaxStops, kMaxStopBytes, &request->stop);
  fields.Ids("stop_token_ids", model.vocab_size, &request->stop_ids);
  if (request->stop_ids.size() > kMaxStopIds) {
    fields.Fail("stop_token_ids", fmt::format("has {} ids; at most {} are allowed",
                                              request->stop_ids.size(), kMaxStopIds));
  }
  fields.Bool("ignore_eos", &request->ignore_eos);
  ReadRunFields(fields, request);
  spec->predicts = ReadDraftFields(fields, model, request);
  ReadAdapters(fields, spec->model, model, request);
  bool skip_special = true;
  fields.Bool("skip_special_tokens", &skip_special);
  request->echo_special = !skip_special;
  AnswerFormat format;
  format.text = ReadFormatText(fields);
  if (format.text) request->format = std::move(format);
  ReadStream(fields, spec, asked);
  fields.Bool("timings_per_token", &spec->timings_per_token);
  fields.Bool("return_progress", &spec->return_progress);
  request->reports_progress = spec->stream && (spec->timings_per_token || spec->return_progress);
  fields.Bool("return_token_ids", &asked->return_token_ids);
  fields.Bool("return_tokens", &asked->return_tokens);
  if (model.num_slots > 0) {
    const int64_t slot = fields.Integer("id_slot", -1, model.num_slots - 1).value_or(-1);
    if (slot >= 0) asked->slot = static_cast<uint32_t>(slot);
    if (model.num_slots == 1) asked->slot = 0;
  }
  asked->verbose = model.verbose;
  fields.Bool("verbose", &asked->verbose);
  std::string user;
  fields.String("user", &user);  // the tenant comes from the credential, never from here
  if (!model.tokenizer) {
    asked->return_tokens = true;
    if (!request->stop.empty()) fields.Fail("stop", "needs a tokenizer; use stop_token_ids");
  }
  spec->n = request->n;
  spec->keeps_ids = asked->return_token_ids || asked->return_tokens;
}

void RefuseUnsupported(JsonFields& fields, std::span<const std::string_view> but) {
  for (const UnsupportedField& field : kUnsupported) {
    if (std::ranges::find(but, field.name) != but.end()) continue;
    const JsonValue* value = fields.Find(field.name);
    if (value && !AsksForNothing(*value, field)) {
      return fields.Fail(field.name,
                         fmt::format("is not supported in this version and would change the "
                                     "answer; {}",
                                     field.instead));
    }
    // With all of its defaults: it asks for something, unlike null and an empty list.
    if (value && value->is_object()) {
      const std::string path(field.name);
      fields.TakeUnread(std::span(&path, 1));
    }
  }
}

}  // namespace kvasir
