#include "server/openai_request.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "server/sampling_request.h"

namespace kvasir {
namespace {

using nlohmann::json;

constexpr size_t kMaxAnswers = 1024;  // prompts times n
constexpr uint32_t kMaxTopLogprobs = 20;
constexpr uint32_t kDefaultCompletionTokens =
    16;  // OpenAI's default of /v1/completions, and vLLM's

struct RawPrompts {
  std::vector<std::vector<TokenId>> ids;
  std::vector<std::string> texts;  // of each, where it was given as text
};

ApiResult<std::vector<TokenId>> IdsOf(const json& list, const ModelView& model) {
  std::vector<TokenId> ids;
  ids.reserve(list.size());
  for (const json& element : list) {
    KV_ASSIGN_API(const TokenId id, ToTokenId(element, model.vocab_size, "prompt"));
    ids.push_back(id);
  }
  return ids;
}

// `prompt`: a text, a list of ids, or a list of those.
ApiResult<RawPrompts> ReadPrompts(JsonFields& fields, uint32_t num_choices,
                                  const ModelView& model) {
  bool add_special = true, parse_special = true;
  fields.Bool("add_special_tokens", &add_special);
  fields.Bool("add_special", &add_special);
  fields.Bool("parse_special", &parse_special);
  const json* prompt = fields.Find("prompt");
  if (fields.error()) return tl::unexpected(*fields.error());
  if (!prompt) return Invalid("prompt", "prompt: is missing");
  const bool single = prompt->is_string() ||
                      (prompt->is_array() && !prompt->empty() && prompt->front().is_number());
  const json list = single ? json::array({*prompt}) : *prompt;
  if (!list.is_array() || list.empty()) {
    return Invalid("prompt", "prompt: must be a text, a list of token ids, or a list of those");
  }
  if (list.size() * num_choices > kMaxAnswers) {
    return Invalid("prompt", fmt::format("prompt: {} prompts with n {}; at most {} answers to a "
                                         "request",
                                         list.size(), num_choices, kMaxAnswers));
  }
  RawPrompts prompts;
  for (const json& one : list) {
    std::string text;
    std::vector<TokenId> ids;
    if (one.is_string()) {
      text = one.get<std::string>();
      KV_ASSIGN_API(ids, EncodeText(text, "prompt", add_special, parse_special, model));
    } else if (one.is_array()) {
      KV_ASSIGN_API(ids, IdsOf(one, model));
    } else {
      return Invalid("prompt", fmt::format("prompt: has {} where a text or a list of token ids "
                                           "must be",
                                           KindOf(one)));
    }
    if (!one.is_string() && model.tokenizer) text = model.tokenizer->Decode(ids, false);
    prompts.ids.push_back(std::move(ids));
    prompts.texts.push_back(std::move(text));
  }
  return prompts;
}

ApiResult<void> CheckLength(const GenerateRequest& request, const std::string& param,
                            const ModelView& model) {
  const size_t tokens = request.prompt.size();
  if (tokens == 0) return Invalid(param, param + ": has no tokens");
  const uint32_t answer = request.max_tokens == 0 ? 0 : 1;
  if (tokens + answer <= model.ctx_size) return {};
  return Invalid(param, fmt::format("{}: has {} tokens, which with {} to generate do not fit the "
                                    "context of {}; shorten it or start the server with a larger "
                                    "--ctx-size",
                                    param, tokens, answer, model.ctx_size));
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

ApiResult<std::string> CheckModel(JsonFields& fields, const ModelView& model) {
  std::string name = "default";
  fields.String("model", &name);
  if (fields.error()) return tl::unexpected(*fields.error());
  if (name == "default") return model.names.front();
  if (std::find(model.names.begin(), model.names.end(), name) != model.names.end()) return name;
  ApiError error{Code::kNotFound,
                 fmt::format("model: \"{}\" is not here; this server has \"{}\" (GET /v1/models)",
                             name, model.names.front()),
                 "model"};
  error.name = "model_not_found";
  return tl::unexpected(std::move(error));
}

ApiResult<std::vector<TokenId>> EncodeText(const std::string& text, const std::string& param,
                                           bool add_special, bool parse_special,
                                           const ModelView& model) {
  if (!model.tokenizer) {
    return tl::unexpected(ApiError{Code::kUnsupported,
                                   param + ": the model has no tokenizer.json, so text cannot be "
                                           "read; send token ids",
                                   param});
  }
  EncodeOptions options;
  options.add_special = add_special;
  options.parse_special = parse_special;
  auto ids = model.tokenizer->Encode(text, options);
  if (!ids) return tl::unexpected(ToApiError(ids.error(), param));
  return std::move(*ids);
}

ApiResult<GenerationCall> ParseChatRequest(std::string_view body, const ModelView& model) {
  KV_ASSIGN_API(const json object, ParseBody(body));
  JsonFields fields(object);
  GenerationCall call;
  GenerateRequest request;
  call.spec.chat = true;
  KV_ASSIGN_API(call.spec.model, CheckModel(fields, model));
  ReadGenerationFields(fields, model, &request, &call.spec);
  ReadChatLogprobs(fields, &call);
  RefuseUnsupported(fields);
  if (fields.error()) return tl::unexpected(*fields.error());
  request.logprobs = call.spec.logprobs;
  KV_ASSIGN_API(const RenderedChat chat, RenderMessages(fields, body, model));
  if (!model.tokenizer) {
    return tl::unexpected(ApiError{Code::kUnsupported,
                                   "messages: the model has no tokenizer.json, so text cannot be "
                                   "read; send token ids to /v1/completions",
                                   "messages"});
  }
  KV_ASSIGN_API(ChatPrompt prompt, EncodeChat(chat, *model.tokenizer));
  request.prompt = std::move(prompt.ids);
  request.message_ends = std::move(prompt.message_ends);
  if (auto fits = CheckLength(request, "messages", model); !fits) {
    return tl::unexpected(fits.error());
  }
  request.ignored = fields.Unread();
  if (const json* tools = fields.Find("tools"); tools && !tools->empty() && !model.uses_tools) {
    request.ignored.push_back("tools");
  }
  call.requests.push_back(std::move(request));
  return call;
}

ApiResult<GenerationCall> ParseCompletionRequest(std::string_view body, const ModelView& model) {
  KV_ASSIGN_API(const json object, ParseBody(body));
  JsonFields fields(object);
  GenerationCall call;
  GenerateRequest request;
  request.max_tokens = kDefaultCompletionTokens;
  KV_ASSIGN_API(call.spec.model, CheckModel(fields, model));
  ReadGenerationFields(fields, model, &request, &call.spec);
  ReadCompletionLogprobs(fields, &call);
  RefuseUnsupported(fields);
  bool echo = false;
  fields.Bool("echo", &echo);
  if (echo && call.spec.logprobs) fields.Fail("echo", "is not supported with logprobs");
  if (echo && !model.tokenizer) fields.Fail("echo", "needs a tokenizer");
  if (fields.error()) return tl::unexpected(*fields.error());
  request.logprobs = call.spec.logprobs;
  KV_ASSIGN_API(RawPrompts prompts, ReadPrompts(fields, request.n, model));
  request.ignored = fields.Unread();
  if (echo) call.spec.echo = std::move(prompts.texts);
  for (std::vector<TokenId>& ids : prompts.ids) {
    GenerateRequest& one = call.requests.emplace_back(request);
    one.prompt = std::move(ids);
    if (auto fits = CheckLength(one, "prompt", model); !fits) return tl::unexpected(fits.error());
  }
  return call;
}

}  // namespace kvasir
