#include "chat/template_form.h"

#include <algorithm>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "chat/chat_template.h"

namespace kvasir {
namespace {

using Calls = TemplateForm::Calls;
using Part = jinja::ChatPart;

// Names, texts and ids that templates of all models take (Mistral's want ids of nine letters).
constexpr std::string_view kTriedTools =
    R"([{"type":"function","function":{"name":"look_up","description":"Looks.","parameters":)"
    R"({"type":"object","properties":{"place":{"type":"string","description":"Where"}},)"
    R"("required":["place"]}}}])";
constexpr std::string_view kTriedArguments = R"({"place": "Oslo"})";
constexpr const char* kTriedIds[] = {"call00001", "call00002"};

class TriedChat {
 public:
  TriedChat(const TryRender& render, jinja::ContentForm content)
      : render_(render), content_(content) {
    tools_ = *tree_.Parse(kTriedTools);
    arguments_ = *tree_.Parse(kTriedArguments);
  }

  JsonValue Says(const char* role, std::string_view content) {
    return tree_.Object({{"role", tree_.String(role)}, {"content", tree_.String(content)}});
  }
  // Makes an answer with so many calls.
  JsonValue Answer(Calls form, bool null_content, size_t num_calls) {
    if (form == Calls::kContent) return Says("assistant", kTriedArguments);
    std::vector<JsonValue> calls;
    for (size_t i = 0; i < num_calls; ++i) {
      const JsonValue arguments =
          form == Calls::kTextArguments ? tree_.String(kTriedArguments) : arguments_;
      calls.push_back(tree_.Object({{"id", tree_.String(kTriedIds[i])},
                                    {"type", tree_.String("function")},
                                    {"function", tree_.Object({{"name", tree_.String("look_up")},
                                                               {"arguments", arguments}})}}));
    }
    return tree_.Object({{"role", tree_.String("assistant")},
                         {"content", null_content ? JsonValue() : tree_.String("")},
                         {"tool_calls", tree_.Array(calls)}});
  }
  JsonValue Result(size_t call) {
    return tree_.Object({{"role", tree_.String("tool")},
                         {"tool_call_id", tree_.String(kTriedIds[call])},
                         {"name", tree_.String("look_up")},
                         {"content", tree_.String("3 degrees")}});
  }

  enum class Tools { kNone, kGiven };
  std::optional<RenderedChat> Try(std::initializer_list<JsonValue> messages, Tools tools) {
    auto chat = render_(tree_.Array({messages.begin(), messages.size()}),
                        tools == Tools::kGiven ? tools_ : JsonValue(), content_);
    return chat ? std::optional(std::move(*chat)) : std::nullopt;
  }

 private:
  const TryRender& render_;
  const jinja::ContentForm content_;
  JsonTree tree_;
  JsonValue tools_, arguments_;
};

using Tools = TriedChat::Tools;

bool Shows(const std::optional<RenderedChat>& chat, Part::Kind kind) {
  return chat && std::ranges::find(chat->unseen, kind, &Part::kind) == chat->unseen.end();
}

bool ShowsMessage(const std::optional<RenderedChat>& chat, uint32_t index) {
  return chat && std::ranges::none_of(chat->unseen, [&](const Part& part) {
           return part.kind != Part::Kind::kTools && part.kind != Part::Kind::kMember &&
                  part.message == index;
         });
}

// Returns whether the chat has these texts in this order.
bool ShowsInOrder(const std::optional<RenderedChat>& chat,
                  std::initializer_list<std::string_view> texts) {
  size_t at = 0;
  for (const std::string_view text : texts) {
    at = chat ? chat->text.find(text, at) : std::string::npos;
    if (at == std::string::npos) return false;
    at += text.size();
  }
  return true;
}

bool ShowsCalls(const std::optional<RenderedChat>& chat) {
  return Shows(chat, Part::Kind::kCallName) && Shows(chat, Part::Kind::kCallArguments);
}

// Tells whether it shows JSON, which models write: not as Python shows a dict, nor as a text inside
// of JSON.
bool ShowsJson(const RenderedChat& chat) {
  return chat.text.find(R"("place": "Oslo")") != chat.text.npos ||
         chat.text.find(R"("place":"Oslo")") != chat.text.npos;
}

// Renders the chats in which a form is tried: some templates refuse a call that has no result, or
// one without tools.
std::vector<std::optional<RenderedChat>> TryForm(TriedChat& tried, Calls form, bool null_content) {
  const JsonValue question = tried.Says("user", "Hello");
  const JsonValue answer = tried.Answer(form, null_content, 1);
  const JsonValue result = tried.Result(0);
  std::vector<std::optional<RenderedChat>> chats;
  for (const Tools tools : {Tools::kGiven, Tools::kNone}) {
    chats.push_back(tried.Try({question, answer, result}, tools));
    chats.push_back(tried.Try({question, answer, result, tried.Says("assistant", "Cold."),
                               tried.Says("user", "And now?")},
                              tools));
    chats.push_back(tried.Try({question, answer}, tools));
  }
  return chats;
}

// How well a chat shows the call in it.
enum Shown { kNothing, kArguments, kCall, kCallAsJson };

Shown HowShown(const std::optional<RenderedChat>& chat) {
  if (!Shows(chat, Part::Kind::kCallArguments)) return kNothing;
  if (!ShowsCalls(chat)) return kArguments;
  return ShowsJson(*chat) ? kCallAsJson : kCall;
}

void FindCalls(TriedChat& tried, std::string_view source, TemplateForm* form) {
  if (source.find("tool_calls") == source.npos) {
    form->calls = Calls::kContent;
    return;
  }
  Shown best = kNothing, best_as_text = kNothing;
  for (const bool null_content : {false, true}) {
    for (const Calls calls : {Calls::kObjectArguments, Calls::kTextArguments}) {
      Shown shown = kNothing;
      for (const auto& chat : TryForm(tried, calls, null_content)) {
        shown = std::max(shown, HowShown(chat));
      }
      if (calls == Calls::kTextArguments) best_as_text = std::max(best_as_text, shown);
      if (shown <= best) continue;
      best = shown;
      form->calls = calls;
      form->null_content = null_content;
    }
  }
  form->shows_calls = best >= kCall;
  form->takes_text_arguments = best == kNothing || best_as_text != kNothing;
}

// Tells whether the template shows a question whose content has this form.
bool ShowsContent(const TryRender& render, jinja::ContentForm content) {
  TriedChat tried(render, content);
  return ShowsMessage(tried.Try({tried.Says("user", "Hello")}, Tools::kNone), 0);
}

}  // namespace

TemplateForm FindTemplateForm(const TryRender& render, std::string_view source) {
  using Content = jinja::ContentForm;
  TemplateForm form;
  form.content_parts =
      !ShowsContent(render, Content::kText) && ShowsContent(render, Content::kParts);
  TriedChat tried(render, form.content_parts ? Content::kParts : Content::kText);
  FindCalls(tried, source, &form);
  const JsonValue question = tried.Says("user", "Hello"), again = tried.Says("user", "And now?");
  const JsonValue system = tried.Says("system", "Be kind.");
  form.shows_tools = Shows(tried.Try({question}, Tools::kGiven), Part::Kind::kTools) ||
                     Shows(tried.Try({system, question}, Tools::kGiven), Part::Kind::kTools);
  form.shows_system = ShowsMessage(tried.Try({system, question}, Tools::kNone), 0);
  form.shows_late_system = ShowsMessage(
      tried.Try({question, tried.Says("assistant", "Hi."), system, again}, Tools::kNone), 2);
  const JsonValue answer = tried.Says("assistant", "Hi."), more = tried.Says("assistant", "Yes?");
  form.takes_late_system =
      ShowsInOrder(tried.Try({question, system}, Tools::kNone), {"Hello", "Be kind."}) &&
      ShowsInOrder(tried.Try({question, system, answer, again}, Tools::kNone),
                   {"Hello", "Be kind.", "Hi.", "And now?"}) &&
      ShowsInOrder(tried.Try({question, answer, system, again}, Tools::kNone),
                   {"Hello", "Hi.", "Be kind.", "And now?"});
  form.takes_same_role_twice =
      ShowsInOrder(tried.Try({question, again}, Tools::kNone), {"Hello", "And now?"}) &&
      ShowsInOrder(tried.Try({question, answer, more, again}, Tools::kNone),
                   {"Hello", "Hi.", "Yes?", "And now?"});
  const auto results = TryForm(tried, form.calls, form.null_content);
  form.shows_results = std::ranges::any_of(results, [](const auto& chat) {
    return chat && chat->message_end.size() > 2 && ShowsMessage(chat, 2);
  });
  if (!form.shows_calls) return form;
  const JsonValue two = tried.Answer(form.calls, form.null_content, 2);
  for (const Tools tools : {Tools::kGiven, Tools::kNone}) {
    form.shows_several_calls |=
        ShowsCalls(tried.Try({question, two, tried.Result(0), tried.Result(1)}, tools)) ||
        ShowsCalls(tried.Try({question, two}, tools));
  }
  return form;
}

}  // namespace kvasir
