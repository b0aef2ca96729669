#include "server/openai_request.h"

#include <fmt/format.h>

#include <algorithm>

#include "server/sampling_request.h"

namespace kvasir {
namespace {

constexpr size_t kMaxAnswers = 1024;  // prompts times n
constexpr uint32_t kMaxTopLogprobs = 20;
constexpr uint32_t kDefaultCompletionTokens =
    16;  // OpenAI's default of /v1/completions, and vLLM's

using RawPrompts = std::vector<std::vector<TokenId>>;

ApiResult<std::vector<TokenId>> IdsOf(const JsonValue& one, const EncodeOptions& options,
                                      const ModelView& model) {
  if (one.is_string()) {
    return EncodeText(one.text(), "prompt", options, model);
  }
  if (!one.is_array() && !IsIds(one)) {
    return Invalid(
        "prompt",
        fmt::format("prompt: has {}; each prompt must be a string or an array of token ids",
                    KindOf(one)));
  }
  return ToTokenIds(one, model.vocab_size, "prompt");
}

// The texts that `echo` puts before the answers.
ApiResult<std::vector<std::string>> EchoOf(std::span<const JsonValue* const> list,
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
      return Invalid("echo", fmt::format("echo: the prompts have more than {} bytes of text",
                                         model.max_decoded_bytes));
    }
    texts.push_back(std::move(text));
  }
  return texts;
}

// `prompt`: a text, a list of ids, or a list of those.
ApiResult<std::vector<const JsonValue*>> ListPrompts(JsonFields& fields, uint32_t num_choices,
                                                     const ModelView& model) {
  const JsonValue* prompt = fields.Find("prompt");
  if (!prompt) return Invalid("prompt", "prompt: is missing");
  std::vector<const JsonValue*> list;
  if (prompt->is_string() || prompt->kind() == JsonValue::Kind::kIds) {
    list.push_back(prompt);
  } else if (prompt->is_array()) {
    for (const JsonValue& one : prompt->items()) list.push_back(&one);
  }
  if (list.empty()) {
    return Invalid("prompt", "prompt: must be a string, an array of token ids, or a list of those");
  }
  if (list.size() > model.max_prompts) {
    return Invalid("prompt", fmt::format("prompt: {} prompts; at most {} may run or wait at once",
                                         list.size(), model.max_prompts));
  }
  if (list.size() * num_choices > kMaxAnswers) {
    return Invalid("prompt",
                   fmt::format("prompt: {} prompts with n {}; a request may ask for at most {} "
                               "answers",
                               list.size(), num_choices, kMaxAnswers));
  }
  return list;
}

ApiResult<void> CheckLength(size_t tokens, uint32_t max_tokens, const std::string& param,
                            const ModelView& model) {
  if (tokens == 0) return Invalid(param, param + ": has no tokens");
  const uint32_t answer = max_tokens == 0 ? 0 : 1;
  if (tokens + answer <= model.ctx_size) return {};
  const bool is_largest = model.ctx_size >= model.max_ctx_size;
  return Invalid(
      param, fmt::format("{}: {} tokens and {} to generate do not fit the context of {}{}", param,
                         tokens, answer, model.ctx_size,
                         is_largest ? ", the model's largest; shorten it"
                                    : "; shorten it or start the server with a larger "
                                      "--ctx-size"));
}

ApiResult<std::string> ReadModel(JsonFields& fields, const ModelView& model) {
  std::string name = "default";
  fields.String("model", &name);
  if (fields.error()) return tl::unexpected(*fields.error());
  return CheckModel(name, model);
}

void ReadChatLogprobs(JsonFields& fields, GenerationCall* call) {
  bool wanted = false;
  uint32_t top = 0;
  fields.Bool("logprobs", &wanted);
  fields.Unsigned("top_logprobs", 0, kMaxTopLogprobs, &top);
  if (!wanted && top > 0) fields.Fail("top_logprobs", "needs logprobs: true");
  if (wanted) call->spec.logprobs = top;
}

void ReadCompletionLogprobs(JsonFields& fields, GenerationCall* call) {
  if (const auto top = fields.Integer("logprobs", 0, kMaxTopLogprobs)) {
    call->spec.logprobs = static_cast<uint32_t>(*top);
  }
}

}  // namespace

ApiResult<std::string> CheckModel(const std::string& name, const ModelView& model) {
  if (name == "default") return model.names.front();
  if (std::find(model.names.begin(), model.names.end(), name) != model.names.end()) return name;
  ApiError error{Code::kNotFound,
                 fmt::format("model: unknown model \"{}\"; this server has \"{}\" (GET /v1/models)",
                             name, model.names.front()),
                 "model"};
  error.name = "model_not_found";
  return tl::unexpected(std::move(error));
}

ApiResult<std::vector<TokenId>> EncodeText(std::string_view text, const std::string& param,
                                           const EncodeOptions& options, const ModelView& model) {
  if (!model.tokenizer) {
    return tl::unexpected(ApiError{Code::kUnsupported,
                                   param + ": the model has no tokenizer.json, which text needs; "
                                           "send token ids",
                                   param});
  }
  auto ids = model.tokenizer->Encode(text, options);
  if (!ids) return tl::unexpected(EncodeError(ids.error(), param, options, model));
  return std::move(*ids);
}

ApiResult<std::string> DecodeIds(std::span<const TokenId> ids, const std::string& param,
                                 const ModelView& model) {
  std::string text;
  const auto decoder = model.tokenizer->StartDecoder(/*skip_special=*/false);
  for (const TokenId id : ids) {
    decoder->Append(id, &text);
    if (text.size() > model.max_decoded_bytes) break;
  }
  if (text.size() <= model.max_decoded_bytes) decoder->Finish(&text);
  if (text.size() <= model.max_decoded_bytes) return text;
  return Invalid(param, fmt::format("{}: the token ids decode to more than {} bytes of text", param,
                                    model.max_decoded_bytes));
}

ApiResult<GenerationCall> ParseChatRequest(std::string_view body, const ModelView& model) {
  KV_ASSIGN(JsonBody parsed, ParseBody(body, kChatIds));
  JsonFields fields(parsed.fields);
  GenerationCall call;
  GenerateRequest request;
  call.spec.chat = true;
  KV_ASSIGN(call.spec.model, ReadModel(fields, model));
  ReadGenerationFields(fields, model, &request, &call.spec);
  ReadChatLogprobs(fields, &call);
  RefuseUnsupported(fields);
  if (fields.error()) return tl::unexpected(*fields.error());
  request.logprobs = call.spec.logprobs;
  KV_ASSIGN(const RenderedChat chat, RenderMessages(fields, &parsed.tree, model));
  if (!model.tokenizer) {
    return tl::unexpected(
        ApiError{Code::kUnsupported,
                 "messages: the model has no tokenizer.json, which text needs; send "
                 "token ids to /v1/completions",
                 "messages"});
  }
  KV_ASSIGN(ChatPrompt prompt, EncodeChat(chat, model));
  request.prompt = std::move(prompt.ids);
  request.message_ends = std::move(prompt.message_ends);
  if (auto fits = CheckLength(request.prompt.size(), request.max_tokens, "messages", model);
      !fits) {
    return tl::unexpected(fits.error());
  }
  request.ignored = fields.Unread();
  if (const JsonValue* tools = fields.Find("tools");
      tools && tools->size() > 0 && !model.uses_tools) {
    request.ignored.push_back("tools");
  }
  call.requests.push_back(std::move(request));
  return call;
}

ApiResult<GenerationCall> ParseCompletionRequest(std::string_view body, const ModelView& model) {
  KV_ASSIGN(const JsonBody parsed, ParseBody(body, kCompletionIds));
  JsonFields fields(parsed.fields);
  GenerationCall call;
  GenerateRequest request;
  request.max_tokens = kDefaultCompletionTokens;
  KV_ASSIGN(call.spec.model, ReadModel(fields, model));
  ReadGenerationFields(fields, model, &request, &call.spec);
  ReadCompletionLogprobs(fields, &call);
  RefuseUnsupported(fields);
  bool echo = false;
  fields.Bool("echo", &echo);
  EncodeOptions options;
  options.max_tokens = model.max_text_tokens();
  fields.Bool("add_special_tokens", &options.add_special);
  fields.Bool("add_special", &options.add_special);
  fields.Bool("parse_special", &options.parse_special);
  if (echo && call.spec.logprobs) fields.Fail("echo", "is not supported with logprobs");
  if (echo && !model.tokenizer) fields.Fail("echo", "needs a tokenizer");
  if (fields.error()) return tl::unexpected(*fields.error());
  request.logprobs = call.spec.logprobs;
  KV_ASSIGN(const auto list, ListPrompts(fields, request.n, model));
  request.ignored = fields.Unread();
  RawPrompts prompts;
  for (const JsonValue* one : list) {
    KV_ASSIGN(prompts.emplace_back(), IdsOf(*one, options, model));
    auto fits = CheckLength(prompts.back().size(), request.max_tokens, "prompt", model);
    if (!fits) return tl::unexpected(fits.error());
  }
  if (echo) {
    KV_ASSIGN(call.spec.echo, EchoOf(list, prompts, model));
  }
  for (std::vector<TokenId>& ids : prompts) {
    call.requests.emplace_back(request).prompt = std::move(ids);
  }
  return call;
}

}  // namespace kvasir
