#include "api/logit_bias.h"

#include <fmt/format.h>

#include <charconv>
#include <limits>
#include <optional>
#include <vector>

#include "api/openai_request.h"
#include "api/request_limits.h"
#include "base/result.h"
#include "kvasir/sampling_ranges.h"

namespace kvasir {
namespace {

constexpr size_t kMaxBiasKeyText = 64;  // bytes of a key in a message
constexpr const char* kField = "logit_bias";

// Returns the number that a whole text is; absent: it is not one.
std::optional<int64_t> WholeNumber(std::string_view text) {
  int64_t number = 0;
  const char* end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data(), end, number);
  if (parsed.ec == std::errc::result_out_of_range && parsed.ptr == end) {
    return std::numeric_limits<int64_t>::max();
  }
  if (parsed.ec != std::errc() || parsed.ptr != end) return std::nullopt;
  return number;
}

Result<std::vector<TokenId>> TokensOf(std::optional<int64_t> id, std::string_view text,
                                      const ModelView& model) {
  if (id && *id >= 0 && *id < int64_t{model.vocab_size}) {
    return std::vector{static_cast<TokenId>(*id)};
  }
  if (id) {
    return FailField(Code::kInvalidArgument, kField, "\"{}\" is not a token id between 0 and {}",
                     text.substr(0, kMaxBiasKeyText), int64_t{model.vocab_size} - 1);
  }
  EncodeOptions options;
  options.add_special = options.parse_special = false;
  options.max_tokens = kMaxBiases;
  return EncodeText(text, kField, options, model);
}

Result<float> BiasOf(const JsonValue& value, std::string_view token) {
  if (value.is_bool() && !value.boolean()) return kForbidden;
  if (value.is_number() && value.number() >= kLogitBiasRange.least &&
      value.number() <= kLogitBiasRange.most) {
    return static_cast<float>(value.number());
  }
  return FailField(Code::kInvalidArgument, kField,
                   "the bias of \"{}\" is neither a number between {} and {} nor false",
                   token.substr(0, kMaxBiasKeyText), kLogitBiasRange.least, kLogitBiasRange.most);
}

Status Add(std::optional<int64_t> id, std::string_view text, const JsonValue& bias,
           const ModelView& model, SamplingParams* sampling) {
  KV_ASSIGN(const std::vector<TokenId> tokens, TokensOf(id, text, model));
  KV_ASSIGN(const float amount, BiasOf(bias, text));
  for (const TokenId token : tokens) sampling->logit_bias.emplace_back(token, amount);
  if (sampling->logit_bias.size() <= kMaxBiases) return {};
  return FailField(Code::kInvalidArgument, kField, "is about {} tokens; at most {} are allowed",
                   sampling->logit_bias.size(), kMaxBiases);
}

// [token, bias]
Status AddPair(const JsonValue& pair, const ModelView& model, SamplingParams* sampling) {
  const bool is_pair = pair.is_array() && pair.items().size() == 2;
  const JsonValue* token = is_pair ? &pair.items()[0] : nullptr;
  if (token && token->is_string()) {
    return Add(std::nullopt, token->text(), pair.items()[1], model, sampling);
  }
  if (token && token->is_number()) {
    const std::string text = fmt::format("{}", token->number());
    const auto id = WholeNumber(text);
    if (id) return Add(id, text, pair.items()[1], model, sampling);
  }
  return FailField(Code::kInvalidArgument, kField,
                   "has {} in its list where [token id or text, bias] must be", KindOf(pair));
}

}  // namespace

void ReadLogitBias(JsonFields& fields, const ModelView& model, SamplingParams* sampling) {
  const JsonValue* bias = fields.Find(kField);
  if (!bias) return;
  if (!bias->is_object() && !bias->is_array()) {
    return fields.Fail(kField, fmt::format("is {}, neither an object from tokens to biases nor a "
                                           "list of [token, bias]",
                                           KindOf(*bias)));
  }
  Status added;
  if (bias->is_object()) {
    for (const auto& [key, value] : bias->members()) {
      if (added) added = Add(WholeNumber(key), key, value, model, sampling);
    }
  } else {
    for (const JsonValue& pair : bias->items()) {
      if (added) added = AddPair(pair, model, sampling);
    }
  }
  if (!added) fields.Fail(added.error());
}

}  // namespace kvasir
