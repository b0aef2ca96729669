#include "api/raw_prompts.h"

#include <fmt/format.h>

#include <algorithm>

#include "api/openai_request.h"
#include "api/request_limits.h"

namespace kvasir {
namespace {

// Returns the ids of a text. One that begins with BOS, as a rendered chat does, gets no second one.
Result<std::vector<TokenId>> IdsOfText(std::string_view text, const EncodeOptions& options,
                                       const ModelView& model) {
  KV_ASSIGN(std::vector<TokenId> ids, EncodeText(text, "prompt", options, model));
  const std::string bos = model.tokenizer->bos_text();
  if (!options.add_special || !options.parse_special || bos.empty() || !text.starts_with(bos) ||
      ids.size() < 2 || ids[0] != model.tokenizer->bos() || ids[1] != ids[0]) {
    return ids;
  }
  const auto none = model.tokenizer->Encode("", options);
  const bool adds_bos = none && !none->empty() && none->front() == ids[0];
  if (adds_bos) ids.erase(ids.begin());
  return ids;
}

// Tells whether a list is one prompt of texts and ids.
bool IsMixed(const JsonValue& list) {
  return std::ranges::any_of(list.items(), [](const JsonValue& one) { return one.is_number(); });
}

Result<std::vector<TokenId>> IdsOfMixed(const JsonValue& list, const EncodeOptions& options,
                                        const ModelView& model) {
  std::vector<TokenId> ids;
  for (const JsonValue& part : list.items()) {
    if (part.is_string()) {
      EncodeOptions own = options;
      own.at_start = &part == &list.items().front();
      own.add_special = options.add_special && own.at_start;
      KV_ASSIGN(const std::vector<TokenId> more, IdsOfText(part.text(), own, model));
      ids.insert(ids.end(), more.begin(), more.end());
    } else if (part.is_integer() && part.number() >= 0 && part.number() < model.vocab_size) {
      ids.push_back(static_cast<TokenId>(part.number()));
    } else {
      return FailField(
          Code::kInvalidArgument, "prompt",
          "has {} in a list of texts and token ids; an id is a whole number in [0, {})",
          part.is_number() ? fmt::format("{}", part.number()) : std::string(KindOf(part)),
          model.vocab_size);
    }
    if (ids.size() > options.max_tokens) {
      return tl::unexpected(
          EncodeError({Code::kExhausted, ""}, "prompt", options.max_tokens, model));
    }
  }
  return ids;
}

}  // namespace

Result<std::vector<TokenId>> IdsOf(const JsonValue& one, const EncodeOptions& options,
                                   const ModelView& model) {
  if (one.is_string()) return IdsOfText(one.text(), options, model);
  if (one.is_object()) {
    const JsonValue* media = one.Find("multimodal_data");
    if (media != nullptr && media->size() > 0) {
      return FailField(Code::kUnsupported, "prompt",
                       "multimodal_data is not supported in this version: models read text");
    }
    const JsonValue* text = one.Find("prompt_string");
    if (text == nullptr || text->is_object()) {
      return FailField(Code::kInvalidArgument, "prompt",
                       "is an object without a text or a list as prompt_string");
    }
    return IdsOf(*text, options, model);
  }
  if (one.is_array() && one.size() > 0) return IdsOfMixed(one, options, model);
  if (!IsIds(one)) {
    return FailField(Code::kInvalidArgument, "prompt",
                     "has {} where a text or a list of token ids must be", KindOf(one));
  }
  return ToTokenIds(one, model.vocab_size, "prompt");
}

Result<std::vector<std::string>> EchoOf(std::span<const JsonValue* const> list,
                                        const RawPrompts& prompts, const ModelView& model) {
  std::vector<std::string> texts;
  size_t bytes = 0;
  for (size_t i = 0; i < list.size(); ++i) {
    if (list[i]->is_string()) {
      texts.emplace_back(list[i]->text());
      continue;
    }
    KV_ASSIGN(std::string text, DecodeIds(prompts[i], "prompt", model));
    bytes += text.size();
    if (bytes > model.max_decoded_bytes) {
      return FailField(Code::kInvalidArgument, "echo",
                       "the prompts have more than {} bytes of text", model.max_decoded_bytes);
    }
    texts.push_back(std::move(text));
  }
  return texts;
}

size_t MaxTextTokens(const GenerateRequest& request, const ModelView& model) {
  const bool may_be_longer = request.retention && request.retention->policy != Retention::kFull &&
                             request.retention->exact_tokens;
  const size_t most = model.max_text_tokens();
  return may_be_longer ? std::max<size_t>(most, kMaxRetainedTokens) : most;
}

Status CheckSpans(std::span<const JsonValue* const> list, const GenerateRequest& request) {
  if (!request.spans || request.spans->spans.empty()) return {};
  if (list.size() == 1 && IsIds(*list[0])) return {};
  return FailField(Code::kInvalidArgument, "cache.spans",
                   "are places in a list of token ids; give one prompt of ids");
}

Result<std::vector<const JsonValue*>> ListPrompts(JsonFields& fields, uint32_t num_choices,
                                                  const ModelView& model) {
  const JsonValue* prompt = fields.Find("prompt");
  if (!prompt) return FailField(Code::kInvalidArgument, "prompt", "is missing");
  std::vector<const JsonValue*> list;
  if (prompt->is_string() || prompt->is_object() || prompt->kind() == JsonValue::Kind::kIds ||
      (prompt->is_array() && IsMixed(*prompt))) {
    list.push_back(prompt);
  } else if (prompt->is_array()) {
    for (const JsonValue& one : prompt->items()) list.push_back(&one);
  }
  if (list.empty()) {
    return FailField(Code::kInvalidArgument, "prompt",
                     "must be a text, a list of token ids and texts, or a list of those");
  }
  if (list.size() > model.max_prompts) {
    return FailField(Code::kInvalidArgument, "prompt",
                     "{} prompts; at most {} may run or wait at once", list.size(),
                     model.max_prompts);
  }
  if (list.size() * num_choices > kMaxAnswers) {
    return FailField(Code::kInvalidArgument, "prompt",
                     "{} prompts with n {}; at most {} answers to a request", list.size(),
                     num_choices, kMaxAnswers);
  }
  for (size_t i = 0; i < list.size(); ++i) {
    if (!list[i]->is_object()) continue;
    JsonFields inner(*list[i], list[i] == prompt ? "prompt." : fmt::format("prompt[{}].", i));
    inner.Find("prompt_string"), inner.Find("multimodal_data");  // of IdsOf
    fields.TakeUnread(inner);
  }
  return list;
}

Error ContextError(size_t tokens, uint32_t answer, std::string_view count, const std::string& field,
                   const ModelView& model) {
  const uint32_t largest = std::max(model.ctx_size, model.max_ctx_size);
  std::string fix = "; shorten it or start the server with a larger --ctx-size";
  if (model.ctx_size == largest) {
    fix = ", the model's largest; shorten it";
  } else if (tokens + answer > largest) {
    fix = fmt::format("; shorten it: the model's largest is {}", largest);
  }
  Error error{
      Code::kInvalidArgument,
      fmt::format("has {} exceeds the available context size of {}{}", count, model.ctx_size, fix),
      field};
  error.cause = Cause::kContext;
  error.excess = {.prompt_tokens = tokens, .ctx_size = model.ctx_size};
  return error;
}

Status CheckLength(size_t tokens, uint32_t max_tokens, const std::string& field,
                   const ModelView& model) {
  if (tokens == 0) return FailField(Code::kInvalidArgument, field, "has no tokens");
  const uint32_t answer = max_tokens == 0 ? 0 : 1;
  if (tokens + answer <= model.ctx_size) return {};
  const std::string count =
      fmt::format("{} tokens, which{}", tokens, answer > 0 ? " with 1 to generate" : "");
  return tl::unexpected(ContextError(tokens, answer, count, field, model));
}

Status CheckLength(size_t tokens, const GenerateRequest& request, const std::string& field,
                   const ModelView& model) {
  const bool is_exact =
      !request.retention || request.retention->exact_tokens.value_or(UINT32_MAX) >= tokens;
  if (!is_exact) return {};
  Status refused = CheckLength(tokens, request.max_tokens, field, model);
  if (refused || tokens == 0) return refused;
  if (!request.retention && model.drops_tokens) {
    refused.error().message +=
        "; with cache.retention and its exact_tokens it may be longer (docs/retention.md)";
  } else if (request.retention && request.retention->policy != Retention::kFull) {
    refused.error().message += ", or give cache.retention.exact_tokens less than the prompt has";
  }
  return refused;
}

}  // namespace kvasir
