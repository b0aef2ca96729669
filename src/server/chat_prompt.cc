#include "server/chat_prompt.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

namespace kvasir {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr int kTooLarge = 413;
constexpr std::string_view kRoles[] = {"system", "developer", "user", "assistant", "tool"};

// Text parts are joined by a newline, as llama.cpp's server and vLLM do.
ApiResult<std::string> JoinParts(const json& parts, const std::string& path) {
  std::string joined;
  for (size_t i = 0; i < parts.size(); ++i) {
    const std::string part_path = fmt::format("{}[{}]", path, i);
    if (!parts[i].is_object()) {
      return Invalid(part_path,
                     fmt::format("{}: is {}, not an object", part_path, KindOf(parts[i])));
    }
    JsonFields part(parts[i], part_path + ".");
    std::string type, text;
    part.String("type", &type);
    if (part.error()) return tl::unexpected(*part.error());
    if (type != "text") {
      part.Fail("type", fmt::format("\"{}\" is not supported; only text parts are", type));
    } else if (!part.Has("text")) {
      part.Fail("text", "is missing");
    }
    part.String("text", &text);
    if (part.error()) return tl::unexpected(*part.error());
    if (i > 0) joined += '\n';
    joined += text;
  }
  return joined;
}

ApiResult<std::string> ContentOf(JsonFields& message, const std::string& path, bool may_be_absent) {
  const json* content = message.Find("content");
  if (!content) {
    if (may_be_absent) return "";
    return Invalid(path, path + ": is missing");
  }
  if (content->is_string()) return content->get<std::string>();
  if (content->is_array()) return JoinParts(*content, path);
  return Invalid(path, fmt::format("{}: is {}, not a string or an array of text parts", path,
                                   KindOf(*content)));
}

// Templates expect arguments as an object; the API carries them as JSON text.
ApiResult<json> ToolCalls(const json& calls, const std::string& path, size_t* values_left) {
  if (!calls.is_array()) {
    return Invalid(path, fmt::format("{}: is {}, not an array", path, KindOf(calls)));
  }
  json result = calls;
  for (size_t i = 0; i < result.size(); ++i) {
    const std::string call_path = fmt::format("{}[{}].function", path, i);
    json* function = nullptr;
    if (result[i].is_object() && result[i].contains("function")) function = &result[i]["function"];
    if (!function || !function->is_object() || !function->contains("name") ||
        !(*function)["name"].is_string()) {
      return Invalid(call_path, call_path + ": must be an object with a name");
    }
    const auto arguments = function->find("arguments");
    if (arguments == function->end() || !arguments->is_string()) continue;
    auto parsed = ParseBody(arguments->get_ref<const std::string&>(), {}, values_left);
    if (parsed) {
      *arguments = std::move(*parsed);
    } else if (parsed.error().status == kTooLarge) {
      return tl::unexpected(parsed.error());
    }
  }
  return result;
}

ApiResult<json> Message(const json& raw, size_t index, const ModelView& model,
                        size_t* values_left) {
  const std::string path = fmt::format("messages[{}]", index);
  if (!raw.is_object()) {
    return Invalid(path, fmt::format("{}: is {}, not an object", path, KindOf(raw)));
  }
  JsonFields fields(raw, path + ".");
  std::string role;
  fields.String("role", &role);
  if (fields.error()) return tl::unexpected(*fields.error());
  if (std::find(std::begin(kRoles), std::end(kRoles), role) == std::end(kRoles)) {
    fields.Fail("role",
                fmt::format("\"{}\" is not one of system, developer, user, assistant, tool", role));
    return tl::unexpected(*fields.error());
  }
  json message = raw;
  const json* calls = fields.Find("tool_calls");
  if (calls) {
    KV_ASSIGN_API(message["tool_calls"], ToolCalls(*calls, path + ".tool_calls", values_left));
  } else {
    message.erase("tool_calls");
  }
  const bool may_be_absent = role == "assistant" && calls && !calls->empty();
  KV_ASSIGN_API(message["content"], ContentOf(fields, path + ".content", may_be_absent));
  if (role == "developer" && !model.knows_developer) message["role"] = "system";
  return message;
}

ApiResult<json> Tools(JsonFields& fields) {
  const json* tools = fields.Find("tools");
  if (!tools) return json();
  if (!tools->is_array()) {
    return Invalid("tools", fmt::format("tools: is {}, not an array", KindOf(*tools)));
  }
  for (const json& tool : *tools) {
    if (!tool.is_object()) {
      return Invalid("tools", fmt::format("tools: has {} where an object must be", KindOf(tool)));
    }
  }
  return tools->empty() ? json() : *tools;
}

// `value` with the keys of its objects in the order of `sent`, from which it was made.
ordered_json InSentOrder(const json& value, const ordered_json& sent) {
  if (value.is_array() && sent.is_array()) {
    ordered_json array = ordered_json::array();
    for (size_t i = 0; i < value.size(); ++i) {
      array.push_back(i < sent.size() ? InSentOrder(value[i], sent[i]) : ordered_json(value[i]));
    }
    return array;
  }
  if (!value.is_object()) return value;
  if (sent.is_string()) {  // a tool call's arguments
    return InSentOrder(value, ordered_json::parse(sent.get<std::string>(), nullptr, false));
  }
  if (!sent.is_object()) return value;
  ordered_json object = ordered_json::object();
  for (const auto& [key, element] : sent.items()) {
    if (value.contains(key)) object[key] = InSentOrder(value[key], element);
  }
  for (const auto& [key, element] : value.items()) {
    if (!sent.contains(key)) object[key] = element;
  }
  return object;
}

// Ordered objects look keys up one by one: more than this is left in the alphabet's order.
constexpr auto kMaxOrderedKeys = 4096;

Result<RenderedChat> Render(const json& messages, const json& tools, const json& variables,
                            std::string_view body, const ModelView& model,
                            const ChatRenderOptions& options) {
  const auto num_keys = std::count(body.begin(), body.end(), ':');
  const bool has_objects = !tools.is_null() || !variables.is_null() ||
                           body.find("\"tool_calls\"") != std::string_view::npos;
  if (!has_objects || num_keys > kMaxOrderedKeys) {
    return model.chat_template->Render(messages, tools, variables, options);
  }
  const ordered_json sent = ParseInOrder(body, kChatIds);
  const auto in_order = [&sent](const json& value, const char* name) {
    return sent.contains(name) ? InSentOrder(value, sent[name]) : ordered_json(value);
  };
  return model.chat_template->Render(in_order(messages, "messages"), in_order(tools, "tools"),
                                     in_order(variables, "chat_template_kwargs"), options);
}

}  // namespace

ApiResult<RenderedChat> RenderMessages(JsonFields& fields, std::string_view body,
                                       const ModelView& model) {
  if (!model.chat_template) {
    const char* what = model.tokenizer == nullptr
                           ? "the model has no tokenizer.json, so text cannot be read; put one "
                             "beside it, or send ids as the prompt of /v1/completions"
                           : "the model has no chat template; start the server with "
                             "--chat-template-file, or use /v1/completions";
    return tl::unexpected(ApiError{Code::kUnsupported, what, "messages"});
  }
  const json* messages = fields.Find("messages");
  if (!messages) return Invalid("messages", "messages: is missing");
  if (!messages->is_array() || messages->empty()) {
    return Invalid("messages", "messages: must be an array with at least one message");
  }
  json rendered_from = json::array();
  size_t values_left = kMaxJsonValues;  // of the arguments of all calls
  for (size_t i = 0; i < messages->size(); ++i) {
    KV_ASSIGN_API(json message, Message((*messages)[i], i, model, &values_left));
    rendered_from.push_back(std::move(message));
  }
  KV_ASSIGN_API(const json tools, Tools(fields));
  ChatRenderOptions options;
  fields.Bool("add_generation_prompt", &options.add_generation_prompt);
  const json* variables = fields.Find("chat_template_kwargs");
  if (variables && !variables->is_object())
    fields.Fail("chat_template_kwargs", "must be an object");
  if (fields.error()) return tl::unexpected(*fields.error());
  if (model.tokenizer) {
    options.bos_token = model.tokenizer->bos_text();
    options.eos_token = model.tokenizer->eos_text();
  }
  auto chat = Render(rendered_from, tools, variables ? *variables : json(), body, model, options);
  if (!chat) return tl::unexpected(ToApiError(chat.error(), "messages"));
  return std::move(*chat);
}

ApiError EncodeError(const Error& error, const std::string& param, const EncodeOptions& options,
                     const ModelView& model) {
  if (error.code != Code::kExhausted) return ToApiError(error, param);
  return {Code::kInvalidArgument,
          fmt::format("{}: has more than {} tokens; the context has {}", param, options.max_tokens,
                      model.ctx_size),
          param};
}

ApiResult<ChatPrompt> EncodeChat(const RenderedChat& chat, const ModelView& model) {
  const Tokenizer& tokenizer = *model.tokenizer;
  EncodeOptions options;
  options.add_special = false;  // the template writes them
  options.literal = chat.literal;
  options.max_tokens = model.max_text_tokens();
  auto ids = tokenizer.Encode(chat.text, options);
  if (!ids) return tl::unexpected(EncodeError(ids.error(), "messages", options, model));
  ChatPrompt prompt;
  prompt.ids = std::move(*ids);
  // A message ends with the token whose text reaches its last byte. (Where a tokenizer's decoding
  // adds or drops a space this is off by it: good enough for a receipt's explanation.)
  TextStream stream(tokenizer, /*skip_special=*/false);
  size_t bytes = 0, message = 0;
  for (size_t i = 0; i < prompt.ids.size() && message < chat.message_end.size(); ++i) {
    bytes += stream.Append(prompt.ids[i]).size();
    for (; message < chat.message_end.size() && bytes >= chat.message_end[message]; ++message) {
      prompt.message_ends.push_back(static_cast<uint32_t>(i + 1));
    }
  }
  while (prompt.message_ends.size() < chat.message_end.size()) {
    prompt.message_ends.push_back(static_cast<uint32_t>(prompt.ids.size()));
  }
  return prompt;
}

}  // namespace kvasir
