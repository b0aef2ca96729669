#include "server/request_schema.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "api/request_limits.h"
#include "base/chat_roles.h"
#include "kvasir/adapters.h"
#include "kvasir/prompt_spans.h"
#include "kvasir/sampling_ranges.h"

namespace kvasir {
namespace {

std::string Number(std::string_view name, SamplingRange range) {
  return fmt::format(R"("{}":{{"type":"number","minimum":{},"maximum":{}}})", name, range.least,
                     range.most);
}

std::string Integer(std::string_view name, int64_t least, int64_t most) {
  return fmt::format(R"("{}":{{"type":"integer","minimum":{},"maximum":{}}})", name, least, most);
}

constexpr const char* kLineFields =
    R"("drop_lines":{"type":"array","items":{"enum":["date","tokens-left","id","billing"]}},
    "move_lines":{"type":"array","items":{"enum":["date","tokens-left","id","billing"]}})";
constexpr const char* kCacheFields =
    R"("prompt_cache_options":{"type":"object","properties":{"ttl":{"enum":["30m","12h"]},
    "prewarm":{"type":"boolean"},"comparison_response_id":{"type":"string"}}},
    "prompt_cache_retention":{"enum":["in_memory","in-memory","24h"]})";
constexpr const char* kTemplateFields =
    R"("chat_template_kwargs":{"type":"object"},"chat_template_name":{"type":"string"},
    "add_generation_prompt":{"type":"boolean"},
    "continue_final_message":{"enum":[true,false,"content","reasoning_content"]},
    "documents":{"type":"array","items":{"type":"object"}})";
constexpr const char* kToolsField =
    R"("tools":{"type":"array","items":{"type":"object",
    "anyOf":[{"required":["function"]},{"required":["name"]}],
    "properties":{"name":{"type":"string","minLength":1},"function":{"type":"object","required":["name"],
    "properties":{"name":{"type":"string","minLength":1}}}}}})";

std::string MessagesField() {
  return R"("messages":{"type":"array","minItems":1,"items":{"type":"object","required":["role"],
    "properties":{"role":)" +
         RoleSchema() + R"(,
    "content":{"type":["string","array","null"]},"reasoning_content":{},
    "tool_calls":{"type":["array","null"],"items":{"type":"object"}},"tool_call_id":{}}}})";
}

std::string CacheField() {
  return fmt::format(R"("cache":{{"type":"object","properties":{{"disk":{{"type":"boolean"}},
    "remote":{{"type":"boolean"}},
    "retention":{{"type":["string","object"],"properties":{{"policy":{{"type":"string"}}}}}},
    "spans":{{"type":"array","maxItems":{},"items":{{"type":"array","minItems":2,"maxItems":2,
    "items":{{"type":"integer","minimum":0}}}}}},{},
    "span_head":{{"type":"integer","minimum":0}}}}}})",
                     kMaxSpans, Integer("seam", 0, kMaxSeamTokens));
}

std::string AdaptersField() {
  return R"("lora":{"type":"array","items":{"type":"object","required":["id","scale"],
    "properties":{"id":{"type":"integer","minimum":0},)" +
         AdapterScaleSchema() + "}}}";
}

// The last fields of SamplingSchema, before and after those of the cache and of adapters.
constexpr const char* kRunFields =
    R"("stream":{"type":"boolean"},"stream_options":{"type":"object"},
    "speculative":{"type":"object","properties":{"n_max":{"type":"integer","minimum":0}}},
    "speculative.n_max":{"type":"integer","minimum":0},
    "prediction":{"type":"object","required":["type","content"],"properties":
    {"type":{"enum":["content"]},"content":{"type":["string","array"]}}},
    "priority":{"type":"integer"},"cache_prompt":{"type":"boolean"})";
constexpr const char* kUnlimited =
    R"("user":{"type":"string"},"model":{"type":"string"},
    "skip_special_tokens":{"type":"boolean"},"return_token_ids":{"type":"boolean"},
    "return_tokens":{"type":"boolean"},"timings_per_token":{"type":"boolean"},
    "return_progress":{"type":"boolean"},"verbose":{"type":"boolean"},
    "response_format":{"type":"object","required":["type"],
    "properties":{"type":{"enum":["text","json_object","json_schema"]}}},
    "json_schema":{"type":["object","boolean","string"]},"grammar":{"type":"string"},
    "guided_json":{"type":["object","boolean","string"]},"guided_regex":{"type":"string"},
    "guided_choice":{"type":"array","items":{"type":"string"}},"guided_grammar":{"type":"string"},
    "structured_outputs":{"type":"object"})";

}  // namespace

std::string JoinedFields(std::initializer_list<std::string_view> schemas) {
  return fmt::format("{}", fmt::join(schemas, ","));
}

std::string RoleSchema() {
  return fmt::format(R"({{"enum":["{}"]}})", fmt::join(kChatRoles, "\",\""));
}

std::string AdapterScaleSchema() {
  return Number("scale", {.least = -kMaxAdapterScale, .most = kMaxAdapterScale});
}

std::string SamplingSchema() {
  return JoinedFields({
      R"("max_tokens":{"type":"integer","minimum":-1},
      "max_completion_tokens":{"type":"integer","minimum":-1},
      "n_predict":{"type":"integer","minimum":-1},"n_keep":{"type":"integer","minimum":-1},
      "min_tokens":{"type":"integer","minimum":0})",
      Number("temperature", kTemperatureRange),
      R"("top_k":{"type":"integer","minimum":-1})",
      Number("top_p", kProbabilityRange),
      Number("min_p", kProbabilityRange),
      Number("repetition_penalty", kRepetitionPenaltyRange),
      Number("repeat_penalty", kRepetitionPenaltyRange),
      Number("presence_penalty", kAnswerPenaltyRange),
      Number("frequency_penalty", kAnswerPenaltyRange),
      R"("repeat_last_n":{"type":"integer","minimum":-1},"logit_bias":{"type":["object","array"]},
      "seed":{"type":"integer"},"ignore_eos":{"type":"boolean"})",
      fmt::format(R"("samplers":{{"type":["string","array"],"maxLength":{0},"maxItems":{0},
                  "items":{{"type":"string","minLength":1,"maxLength":{1}}}}})",
                  kMaxListedSamplers, kMaxSamplerBytes),
      Integer("n_indent", 0, kMaxIndent),
      fmt::format(R"("stop":{{"type":["string","array"],"minLength":1,"maxItems":{},
                  "items":{{"type":"string","minLength":1}}}})",
                  kMaxStops),
      fmt::format(R"("stop_token_ids":{{"type":"array","maxItems":{},
                  "items":{{"type":"integer","minimum":0}}}})",
                  kMaxStopIds),
      Integer("n", 1, kMaxChoices),
      Integer("best_of", 1, kMaxChoices),
      Integer("timeout_ms", 1, kMaxTimeoutMs),
      fmt::format(R"("cache_salt":{{"type":"string","minLength":1,"maxLength":{}}})",
                  kMaxSaltBytes),
      kRunFields,
      CacheField(),
      AdaptersField(),
      kUnlimited,
  });
}

std::string AnswerSchema() {
  return JoinedFields({
      R"("tool_choice":{"anyOf":[{"enum":["none","auto","required"]},{"type":"object",
      "required":["type","function"]}]},"max_reasoning_tokens":{"type":"integer","minimum":0},
      "parallel_tool_calls":{"type":"boolean"},
      "reasoning_format":{"enum":["auto","deepseek","deepseek-legacy","none"]},
      "logprobs":{"type":"boolean"})",
      Integer("top_logprobs", 0, kMaxTopLogprobs),
  });
}

std::string MessagesSchema() {
  return JoinedFields({MessagesField(), kToolsField, kTemplateFields, kLineFields, kCacheFields});
}

std::string AnthropicPromptSchema() {
  return JoinedFields({R"("model":{"type":"string"},"system":{"type":["string","array"]},
    "messages":{"type":"array","minItems":1,"items":{"type":"object","required":["role","content"],
    "properties":{"role":{"enum":["user","assistant","system"]},
    "content":{"type":["string","array"]}}}},
    "tools":{"type":"array","items":{"type":"object",
    "properties":{"input_schema":{"type":"object"}}}},
    "thinking":{"type":"object","required":["type"],
    "properties":{"type":{"enum":["enabled","disabled","adaptive","between_tools"]}}},
    "cache_control":{"type":"object"},"chat_template_kwargs":{"type":"object"},
    "chat_template_name":{"type":"string"})",
                       kLineFields});
}

std::string AnthropicAnswerSchema() {
  return JoinedFields({
      R"("max_tokens":{"type":"integer","minimum":0},"stream":{"type":"boolean"},
      "tool_choice":{"type":"object","required":["type"],
      "properties":{"type":{"enum":["auto","any","tool","none"]},"name":{"type":"string"},
      "disable_parallel_tool_use":{"type":"boolean"}}},
      "output_config":{"type":"object","properties":{"format":{"type":"object",
      "required":["type","schema"],"properties":{"type":{"enum":["json_schema"]},
      "schema":{"type":"object"}}}}},"metadata":{"type":"object"},
      "diagnostics":{"type":"object","properties":{"previous_message_id":{"type":["string","null"]}}})",
      Number("temperature", kTemperatureRange),
      R"("top_k":{"type":"integer","minimum":-1})",
      Number("top_p", kProbabilityRange),
      fmt::format(R"("stop_sequences":{{"type":"array","maxItems":{},
                  "items":{{"type":"string","minLength":1}}}})",
                  kMaxStops),
  });
}

std::string ResponsesSchema() {
  return JoinedFields({
      R"("model":{"type":"string"},"instructions":{"type":["string","array"]},
      "input":{"type":["string","array"],"minItems":1,"items":{"type":"object"}},
      "max_output_tokens":{"type":"integer","minimum":0},"stream":{"type":"boolean"},
      "store":{"type":"boolean"},"parallel_tool_calls":{"type":"boolean"},
      "previous_response_id":{"type":"string"},"truncation":{"enum":["auto","disabled"]},
      "tools":{"type":"array","items":{"type":"object","required":["type"],
      "properties":{"type":{"type":"string"}}}},
      "tool_choice":{"anyOf":[{"enum":["none","auto","required"]},{"type":"object",
      "required":["type","name"]}]},"text":{"type":"object"},"reasoning":{"type":"object"},
      "include":{"type":"array","items":{"type":"string","minLength":1}},
      "chat_template_kwargs":{"type":"object"},"chat_template_name":{"type":"string"})",
      kLineFields,
      kCacheFields,
      Number("temperature", kTemperatureRange),
      Number("top_p", kProbabilityRange),
  });
}

std::string OllamaSchema() {
  return JoinedFields({
      R"("model":{"type":"string"},"prompt":{"type":"string"},"system":{"type":"string"},
      "messages":{"type":"array","minItems":1,"items":{"type":"object","required":["role"],
      "properties":{"role":{"enum":["system","user","assistant","tool"]},
      "content":{"type":"string"},"thinking":{"type":"string"}}}},
      "stream":{"type":"boolean"},"format":{"type":["string","object"]},"raw":{"type":"boolean"},
      "think":{"enum":[true,false,"low","medium","high"]},
      "options":{"type":"object"})",
      kToolsField,
      kLineFields,
  });
}

std::string EmbeddingSchema() {
  constexpr const char* kIds =
      R"({"type":"array","minItems":1,"items":{"type":"integer","minimum":0}})";
  constexpr const char* kText = R"({"type":"string","minLength":1})";
  constexpr const char* kList = R"({{"type":"array","minItems":1,"maxItems":{},"items":{}}})";
  return JoinedFields({
      fmt::format(R"("input":{{"anyOf":[{},{},{},{}]}})", kText, kIds,
                  fmt::format(kList, kMaxInputs, kText), fmt::format(kList, kMaxInputs, kIds)),
      R"("encoding_format":{"enum":["float","base64"]},
      "dimensions":{"type":"integer","minimum":1},"add_special_tokens":{"type":"boolean"},
      "model":{"type":"string"},"user":{"type":"string"},"priority":{"type":"integer"},
      "cache_prompt":{"type":"boolean"},"cache":{"type":"object"})",
      Integer("timeout_ms", 1, kMaxTimeoutMs),
      fmt::format(R"("cache_salt":{{"type":"string","minLength":1,"maxLength":{}}})",
                  kMaxSaltBytes),
  });
}

std::string AnyPromptSchema() {
  return R"("prompt":{"type":["string","array","object"],"minLength":1,"minItems":1,
      "properties":{"prompt_string":{"type":["string","array"],"minLength":1,"minItems":1}}})";
}

std::string SpecialsSchema() {
  return R"("add_special":{"type":"boolean"},"parse_special":{"type":"boolean"})";
}

}  // namespace kvasir
