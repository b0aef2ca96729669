#include "api/chat_prompt.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <set>

#include "api/cache_marks.h"
#include "api/raw_prompts.h"
#include "base/cut_names.h"

namespace kvasir {

const JsonValue& FunctionOf(const JsonValue& tool) {
  const JsonValue* function = tool.Find("function");
  return function ? *function : tool;
}

Result<JsonValue> ReadTools(JsonFields& fields) {
  const JsonValue* tools = fields.Find("tools");
  if (!tools) return JsonValue();
  if (!tools->is_array()) {
    return FailField(Code::kInvalidArgument, "tools", "is {}, not an array", KindOf(*tools));
  }
  std::set<std::string_view> names;
  for (const JsonValue& tool : tools->items()) {
    if (!tool.is_object()) {
      return FailField(Code::kInvalidArgument, "tools", "has {} where an object must be",
                       KindOf(tool));
    }
    const JsonValue* name = FunctionOf(tool).Find("name");
    if (!name || !name->is_string() || name->size() == 0) {
      return FailField(Code::kInvalidArgument, "tools", "a tool has no name");
    }
    if (!names.insert(name->text()).second) {
      return FailField(Code::kInvalidArgument, "tools", "the name \"{}\" is there twice",
                       name->text());
    }
  }
  return tools->size() == 0 ? JsonValue() : *tools;
}

Result<const ChatTemplate*> ChosenTemplate(JsonFields& fields, const ModelView& model,
                                           bool has_tools) {
  constexpr const char* kField = "chat_template_name";
  std::optional<std::string> name;
  if (fields.Find(kField)) fields.String(kField, &name.emplace());
  if (fields.error()) return tl::unexpected(*fields.error());
  const ChatTemplate* chosen = model.chat_template->Choose(name, has_tools);
  if (chosen) return chosen;
  return FailField(Code::kInvalidArgument, kField, "\"{}\" is unknown; the model has {}", *name,
                   fmt::join(model.chat_template->names(), ", "));
}

Status AddRules(const char* field, JsonFields& fields, LineRules* rules) {
  const JsonValue* names = fields.Find(field);
  if (!names) return {};
  if (!names->is_array()) {
    return FailField(Code::kInvalidArgument, field, "is {}, not an array of names", KindOf(*names));
  }
  for (size_t i = 0; i < names->size(); ++i) {
    const JsonValue& name = names->items()[i];
    const std::string path = fmt::format("{}[{}]", field, i);
    if (!name.is_string()) {
      return FailField(Code::kInvalidArgument, path, "is {}, not a name", KindOf(name));
    }
    if (const Status added = rules->AddName(name.text()); !added) {
      return FailField(Code::kInvalidArgument, path, "{}", added.error().message);
    }
  }
  return {};
}

namespace {

// Reads the variables of the template: those of the server's start, then those of the request,
// which win.
Result<JsonValue> ReadVariables(JsonFields& fields, const ChatTemplate& chat_template,
                                const ModelView& model, JsonTree* tree) {
  const JsonValue* variables = fields.Find("chat_template_kwargs");
  const JsonValue* documents = fields.Find("documents");
  if (variables && !variables->is_object()) {
    fields.Refuse("chat_template_kwargs", "an object");
  }
  if (documents &&
      (!documents->is_array() || !std::ranges::all_of(documents->items(), &JsonValue::is_object))) {
    fields.Fail("documents", "must be an array of objects");
  } else if (documents && documents->size() > 0 &&
             chat_template.source().find("documents") == std::string::npos) {
    fields.Fail("documents", "the chat template does not use documents; write them in a message");
  }
  if (fields.error()) return tl::unexpected(*fields.error());
  std::vector<JsonValue::Member> members;
  for (const JsonValue* object : {&model.template_variables, variables}) {
    if (object) members.insert(members.end(), object->members().begin(), object->members().end());
  }
  if (documents) members.push_back({"documents", *documents});
  return members.empty() ? JsonValue() : tree->Object(std::move(members));
}

// Takes lines out of the system's messages, and writes those that are moved at the end of the last
// message of the user; without such a message they stay, and move_lines says nothing.
Result<CuredLines> CureMessages(JsonFields& fields, const ModelView& model, JsonTree* tree,
                                std::vector<JsonValue>* messages) {
  LineCure cure = model.cure ? *model.cure : LineCure();
  KV_TRY(AddRules("drop_lines", fields, &cure.dropped));
  KV_TRY(AddRules("move_lines", fields, &cure.moved));
  CuredLines cured;
  if (cure.empty()) return cured;
  const auto has_role = [](std::string_view role) {
    return [role](const JsonValue& one) { return one.Find("role")->text() == role; };
  };
  const auto user = std::find_if(messages->rbegin(), messages->rend(), has_role("user"));
  if (user == messages->rend()) {
    const std::string field = "move_lines";
    const JsonValue* asked = fields.Find("move_lines");
    if (asked && asked->size() > 0) fields.TakeUnread(std::span(&field, 1));
    cure.moved = LineRules();
  }
  const auto set_content = [&](JsonValue& message, const std::string& text) {
    std::vector<JsonValue::Member> members(message.members().begin(), message.members().end());
    members.push_back({"content", tree->String(text)});  // the last one of equal keys counts
    message = tree->Object(std::move(members));
  };
  std::string moved;
  for (size_t i = 0; i < messages->size(); ++i) {
    JsonValue& message = (*messages)[i];
    if (!has_role("system")(message) && !has_role("developer")(message)) continue;
    const auto text = Cure(message.Find("content")->text(), cure);
    if (!text) {
      return FailField(text.error().code, fmt::format("messages[{}].content", i), "{}",
                       text.error().message);
    }
    if (text->dropped == 0 && text->moved.empty()) continue;
    set_content(message, text->text);
    for (const std::string& line : text->moved) moved += "\n" + line;
    cured.dropped += text->dropped;
    cured.moved += static_cast<uint32_t>(text->moved.size());
  }
  if (cured.moved > 0) {
    set_content(*user, fmt::format("{}\n{}", user->Find("content")->text(), moved));
  }
  return cured;
}

// Returns the text that `continue_final_message` names: true, or one of vLLM's and llama-server's
// names.
std::optional<Continued> ContinuedOf(const JsonValue& field) {
  if (field.is_bool()) return field.boolean() ? std::optional(Continued::kContent) : std::nullopt;
  return field.text() == "content" ? Continued::kContent : Continued::kReasoningContent;
}

// Reads whether the answer is a new message, the last one's rest, or whatever follows.
Status ReadEnd(JsonFields& fields, const JsonValue& last, ChatRenderOptions* options) {
  constexpr const char* kField = "continue_final_message";
  const bool says_prompt = fields.Has("add_generation_prompt");
  fields.Bool("add_generation_prompt", &options->add_generation_prompt);
  const JsonValue* field = fields.Find(kField);
  const JsonValue* calls = last.Find("tool_calls");
  const bool has_calls = calls && calls->size() > 0;
  if (!field) {
    const bool is_answer = last.Find("role")->text() == "assistant" && !has_calls;
    if (is_answer && !says_prompt) options->continues = Continued::kContent;
  } else if (!field->is_bool() && (!field->is_string() || (field->text() != "content" &&
                                                           field->text() != "reasoning_content"))) {
    fields.Refuse(kField, R"(true, false, "content" or "reasoning_content")");
  } else {
    options->continues = ContinuedOf(*field);
    if (options->continues && says_prompt && options->add_generation_prompt) {
      fields.Fail(kField, "and add_generation_prompt cannot both be true");
    } else if (options->continues && has_calls) {
      fields.Fail(kField, "a message with tool calls cannot be continued");
    }
  }
  return fields.error() ? Status(tl::unexpected(*fields.error())) : Status();
}

// Leaves out variables that the server has, and names calls as the request does. REQUIRES: the
// request has messages.
void NameUnseen(JsonFields& fields, std::vector<jinja::ChatPart>* unseen) {
  using Kind = jinja::ChatPart::Kind;
  const JsonValue* variables = fields.Find("chat_template_kwargs");
  std::erase_if(*unseen, [&](const jinja::ChatPart& part) {
    return part.kind == Kind::kVariable && (!variables || !variables->Find(part.member));
  });
  const auto messages = fields.Find("messages")->items();
  for (jinja::ChatPart& part : *unseen) {
    const bool is_call = part.kind == Kind::kCallName || part.kind == Kind::kCallArguments;
    if (is_call && HasFunctionCall(messages[part.message])) part.member = kFunctionCall;
  }
}

// Returns the error of a template, of the message at which it stopped: where it was at none, the
// last one of the shortest beginning that it refuses. O(log messages) renderings.
template <typename Render>
Error TemplateError(const Error& error, size_t num_messages, const Render& render) {
  if (error.field && !error.index) return error;  // of the end of the chat
  size_t least = 1, most = num_messages;
  while (!error.index && least < most) {
    const size_t middle = least + (most - least) / 2;
    if (render(middle)) {
      least = middle + 1;
    } else {
      most = middle;
    }
  }
  const uint64_t index = error.index.value_or(most - 1);
  return {error.code, error.message, fmt::format("messages[{}]", index)};
}

}  // namespace

Result<RenderedChat> RenderMessages(JsonFields& fields, JsonTree* tree, const ModelView& model) {
  if (!model.chat_template) {
    if (!model.tokenizer) return tl::unexpected(NoTextError("messages", model));
    return FailField(Code::kUnsupported, "messages",
                     "the model has no chat template; start the server with --chat-template-file, "
                     "or use /v1/completions");
  }
  const JsonValue* messages = fields.Find("messages");
  if (!messages) return FailField(Code::kInvalidArgument, "messages", "is missing");
  if (!messages->is_array() || messages->size() == 0) {
    return FailField(Code::kInvalidArgument, "messages",
                     "is {}, not an array with at least one message", FoundText(*messages));
  }
  KV_ASSIGN(UnmarkedMessages unmarked, TakeMarks(fields, tree));
  KV_ASSIGN(const JsonValue tools, ReadTools(fields));
  KV_ASSIGN(const ChatTemplate* chat_template, ChosenTemplate(fields, model, !tools.is_null()));
  const TemplateForm& form = chat_template->form();
  MessageRoom room{.tree = tree, .takes_spans = true};
  std::vector<JsonValue> read;
  read.reserve(unmarked.messages.size());
  for (const JsonValue& raw : unmarked.messages) {
    KV_ASSIGN(read.emplace_back(), ReadMessage(raw, read.size(), model, &room));
  }
  KV_ASSIGN(const CuredLines cured, CureMessages(fields, model, tree, &read));
  std::vector<JsonValue> rendered_from;
  std::vector<jinja::ChatPart> left_out;  // texts beside calls
  rendered_from.reserve(unmarked.messages.size());
  for (const JsonValue& raw : unmarked.messages) {
    const size_t index = rendered_from.size();
    const JsonValue& message = read[index];
    KV_ASSIGN(rendered_from.emplace_back(), InForm(raw, message, index, form, tree));
    if (rendered_from.back().Find("content")->is_null() &&
        !jinja::IsBlank(message.Find("content")->text())) {
      left_out.push_back(
          {.kind = jinja::ChatPart::Kind::kContent, .message = static_cast<uint32_t>(index)});
    }
  }
  fields.TakeUnread(room.unread);
  ChatRenderOptions options;
  options.now_unix_s = model.template_now_unix_s;
  options.max_steps = model.template_steps;
  KV_TRY(ReadEnd(fields, read.back(), &options));
  KV_ASSIGN(const JsonValue variables, ReadVariables(fields, *chat_template, model, tree));
  if (model.tokenizer) {
    options.bos_token = model.tokenizer->bos_text();
    options.eos_token = model.tokenizer->eos_text();
  }
  const auto render = [&](size_t count) {
    return chat_template->Render(tree->Array(std::span(rendered_from).first(count)), tools,
                                 variables, options);
  };
  auto chat = render(rendered_from.size());
  if (!chat) return tl::unexpected(TemplateError(chat.error(), rendered_from.size(), render));
  chat->cured = cured;
  chat->marks = std::move(unmarked.marks);
  chat->unseen.insert(chat->unseen.end(), left_out.begin(), left_out.end());
  NameUnseen(fields, &chat->unseen);
  return std::move(*chat);
}

PromptHead::Parts HeadPartsOf(JsonFields fields, const HeadSpace& heads) {
  PromptHead::Parts parts;
  if (!heads) return parts;
  const auto text_of = [&](std::string_view name) {
    const JsonValue* value = fields.Find(name);
    return value ? TextOf(*value) : std::string();
  };
  std::string others, system;
  for (const char* name : {"chat_template_kwargs", "chat_template_name", "documents", "drop_lines",
                           "move_lines", "add_generation_prompt", "continue_final_message"}) {
    others += text_of(name) + "\n";
  }
  const JsonValue* messages = fields.Find("messages");
  for (const JsonValue& message : messages ? messages->items() : std::span<const JsonValue>()) {
    const JsonValue* role = message.Find("role");
    const bool is_system =
        role && role->is_string() && (role->text() == "system" || role->text() == "developer");
    if (!is_system) break;
    if (const JsonValue* content = message.Find("content")) system += TextOf(*content);
  }
  parts.tools = heads.DigestOf(text_of("tools"));
  parts.system = heads.DigestOf(system);
  parts.others = heads.DigestOf(others);
  return parts;
}

std::vector<std::string> PathsOf(std::span<const jinja::ChatPart> unseen) {
  constexpr size_t kMaxNameBytes = 64;
  std::vector<std::string> paths;
  std::set<uint32_t> whole;  // messages of which nothing is shown
  for (const jinja::ChatPart& part : unseen) {
    if (part.is_alone && part.kind == jinja::ChatPart::Kind::kContent) whole.insert(part.message);
  }
  for (const jinja::ChatPart& part : unseen) {
    const std::string message = fmt::format("messages[{}]", part.message);
    const bool is_old_call = part.member == kFunctionCall;
    const std::string call = is_old_call ? message + "." + part.member
                                         : fmt::format("{}.tool_calls[{}]", message, part.call);
    const std::string function = is_old_call ? call : call + ".function";
    switch (part.kind) {
      case jinja::ChatPart::Kind::kTools:
        paths.emplace_back("tools");
        break;
      case jinja::ChatPart::Kind::kContent:
        paths.push_back(part.is_alone ? message : message + ".content");
        break;
      case jinja::ChatPart::Kind::kReasoning:
        paths.push_back(message + ".reasoning_content");
        break;
      case jinja::ChatPart::Kind::kRefusal:
        paths.push_back(message + ".refusal");
        break;
      case jinja::ChatPart::Kind::kCallName:
        paths.push_back(function + ".name");
        break;
      case jinja::ChatPart::Kind::kCallArguments:
        if (!paths.empty() && paths.back() == function + ".name") {
          paths.back() = call;  // nothing of the call is shown
        } else {
          paths.push_back(function + ".arguments");
        }
        break;
      case jinja::ChatPart::Kind::kMember:
        if (!whole.contains(part.message)) paths.push_back(message + "." + part.member);
        break;
      case jinja::ChatPart::Kind::kVariable:
        paths.push_back("chat_template_kwargs." + part.member.substr(0, kMaxNameBytes));
        break;
    }
  }
  CutNames(&paths);
  return paths;
}

Error NoTextError(const std::string& field, const ModelView& model) {
  return {Code::kUnsupported,
          model.no_text + ", or send token ids as the prompt of /v1/completions", field};
}

Error EncodeError(const Error& error, const std::string& field, size_t most_tokens,
                  const ModelView& model) {
  if (error.code != Code::kExhausted) return {error.code, error.text(), field};
  const std::string count = fmt::format("more than {} tokens, which", most_tokens);
  Error full = ContextError(most_tokens + 1, 0, count, field, model);
  full.excess->is_least = true;
  return full;
}

}  // namespace kvasir
