// What a chat says is in its prompt, or the answer says that it is not: tools, calls and odd
// entries of histories, with every template at hand.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "api/chat_prompt.h"
#include "base/bytes_for_test.h"
#include "base/rounds_for_test.h"
#include "chat/builtin_templates.h"
#include "source_paths.h"

namespace kvasir {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

struct Shown {
  std::string text;
  std::vector<std::string> ignored;
  std::optional<Error> error;
};

Shown ShownBy(const ChatTemplate& chat_template, std::string_view body) {
  ModelView model;
  model.chat_template = &chat_template;
  JsonTree tree;
  model.template_variables =
      tree.Object({{"bos_token", tree.String("<s>")}, {"eos_token", tree.String("</s>")}});
  auto parsed = ParseBody(body);
  if (!parsed) return {.error = parsed.error()};
  JsonFields fields(parsed->fields);
  const auto chat = RenderMessages(fields, &parsed->tree, model);
  if (!chat) return {.error = chat.error()};
  return {chat->text, PathsOf(chat->unseen), {}};
}

std::string Case(const std::string& name) {
  return ReadFile(fs::path(KVASIR_SOURCE_DIR) / "tests/data/cases" / name);
}

Shown ShownOf(const std::string& source, std::string_view body) {
  const auto chat_template = ChatTemplate::Parse(source);
  if (!chat_template) return {.error = chat_template.error()};
  return ShownBy(**chat_template, body);
}

using Paths = std::vector<std::string>;

TEST(ChatForms, CallsAreGivenInTheFormThatTheTemplateShows) {
  const Shown when_null = ShownOf(Case("calls-when-null.jinja"), Case("call-history.json"));
  EXPECT_EQ(when_null.text, "user Weather?;CALL get_weather {\"city\": \"Oslo\"};tool 3 degrees;");
  EXPECT_EQ(when_null.ignored, Paths{"tools"});
  const Shown items = ShownOf(Case("arguments-items.jinja"), Case("call-history.json"));
  EXPECT_EQ(items.text, "user Weather?;<call get_weather><city>Oslo</city>tool 3 degrees;");
  // A template that joins texts refuses arguments that are an object.
  const Shown joins = ShownOf(
      "{% for m in messages %}{% for c in m.tool_calls or [] %}"
      "{{ '<' + c.function.name + c.function.arguments + '>' }}{% endfor %}{{ m.content }}"
      "{% endfor %}",
      Case("call-history.json"));
  EXPECT_EQ(joins.text, "Weather?<get_weather{\"city\": \"Oslo\"}>3 degrees");
}

TEST(ChatForms, ATextBesideCallsThatTheTemplateShowsOnlyWithoutOneIsSaid) {
  const Shown shown = ShownOf(Case("calls-when-null.jinja"), R"({"messages": [
      {"role": "user", "content": "Hi"},
      {"role": "assistant", "content": "Wait.", "tool_calls": [
         {"function": {"name": "f", "arguments": "{\"x\": 1}"}}]},
      {"role": "tool", "content": "1"}]})");
  EXPECT_EQ(shown.text, "user Hi;CALL f {\"x\": 1};tool 1;");
  EXPECT_EQ(shown.ignored, Paths{"messages[1].content"});
}

TEST(ChatForms, AVariableThatTheTemplateDoesNotReadIsNamed) {
  const std::string source =
      "{% if late is defined and not x %}{{ late }}{% endif %}{% for m in messages %}"
      "{{ m.content }}{% endfor %}{{ tools }}{{ y }}";
  const auto ignored = [&](const std::string& variables) {
    const Shown shown = ShownOf(source, R"({"messages": [{"role": "user", "content": "a"}],
        "chat_template_kwargs": {)" + variables +
                                            "}}");
    EXPECT_FALSE(shown.error);
    return shown.ignored;
  };
  EXPECT_EQ(ignored(""), Paths{});
  EXPECT_EQ(ignored(R"("late": false, "y": 1)"), Paths{});
  EXPECT_EQ(ignored(R"("enable_thinking": false, "late": 1)"),
            Paths{"chat_template_kwargs.enable_thinking"});
  EXPECT_EQ(ignored(R"("x": true)"), Paths{"chat_template_kwargs.x"}) << "not in this chat";
  EXPECT_EQ(ignored(R"("tools": [1], "add_generation_prompt": true, "bos_token": "")"),
            (Paths{"chat_template_kwargs.bos_token", "chat_template_kwargs.tools",
                   "chat_template_kwargs.add_generation_prompt"}))
      << "the chat's own, and one of the server's that the template does not show";
  EXPECT_EQ(ignored('"' + std::string(70, 'n') + R"(": 1)"),
            Paths{"chat_template_kwargs." + std::string(64, 'n')});
}

TEST(ChatForms, WhatATemplateDoesNotShowIsNamed) {
  const std::string source = Case("no-tools.jinja");
  EXPECT_EQ(ShownOf(source, Case("tools-unseen.json")).ignored, Paths{"tools"});
  const Shown result = ShownOf(source, Case("result-unseen.json"));
  EXPECT_EQ(result.ignored, (Paths{"tools", "messages[2]"}));
  EXPECT_NE(result.text.find("get_weather"), std::string::npos) << result.text;
  const Shown late = ShownOf(source, R"({"messages": [
      {"role": "system", "content": "One."}, {"role": "user", "content": "Hi"},
      {"role": "assistant", "content": "Hello", "reasoning_content": "Hm."},
      {"role": "developer", "content": "Two."}, {"role": "user", "content": " "}]})");
  EXPECT_EQ(late.ignored, (Paths{"messages[2].reasoning_content", "messages[3]"}));
}

TEST(ChatForms, ALongListOfWhatIsNotShownSaysHowManyMoreThereAre) {
  json messages = {{{"role", "user"}, {"content", "Hi"}}};
  for (int i = 0; i < 70; ++i) {
    messages.push_back({{"role", "tool"}, {"content", "Rain" + std::to_string(i)}});
  }
  const json body = {{"messages", messages}};
  const Shown shown = ShownOf(Case("no-tools.jinja"), body.dump());
  ASSERT_EQ(shown.ignored.size(), 65u);
  EXPECT_EQ(shown.ignored[63], "messages[64]");
  EXPECT_EQ(shown.ignored[64], "and 6 more");
}

TEST(ChatForms, APartIsSeenInWhateverFormTheTemplateGivesIt) {
  const Shown shown = ShownOf(
      "{% for t in tools %}{{ t.function.name | upper }}{% endfor %}"
      "{% for m in messages %}{% set c = m.content.split('</t>')[-1] | trim %}"
      "{{ {'role': m.role, 'said': c} | tojson }}{% endfor %}",
      R"({"tools": [{"type": "function", "function": {"name": "f"}}],
          "messages": [{"role": "user", "content": "thought</t> x\ny"}]})");
  EXPECT_EQ(shown.text, "F{\"role\": \"user\", \"said\": \"x\\ny\"}");
  EXPECT_EQ(shown.ignored, Paths{});
}

TEST(ChatForms, OddEntriesMeanWhatTheyCanOnlyMean) {
  const std::string items = Case("arguments-items.jinja"), as_json = Case("arguments-json.jinja");
  EXPECT_EQ(ShownOf(items, Case("empty-arguments.json")).text,
            "user Weather?;<call get_weather>tool 3 degrees;");
  for (const char* arguments : {"\"\"", "\" \"", "null", "\"{}\"", "{}"}) {
    const Shown shown = ShownOf(as_json, std::string(R"({"messages": [{"role": "assistant",
        "tool_calls": [{"function": {"name": "f", "arguments": )") +
                                             arguments + "}}]}]}");
    EXPECT_EQ(shown.text, "CALL {};") << arguments;
  }
  EXPECT_EQ(ShownOf(Case("one-call-at-most.jinja"), Case("empty-tool-calls.json")).text,
            "user Hi;assistant Hello;user And?;");
  EXPECT_EQ(ShownOf(as_json, Case("assistant-null.json")).text, "user Hi;assistant ;user Again?;");
  for (const char* more : {R"("reasoning_content": "Hm.")", R"("refusal": "No.")",
                           R"("tool_calls": null)", R"("content": null, "tool_calls": [])"}) {
    const Shown shown =
        ShownOf(Case("no-tools.jinja"), std::string(R"({"messages": [{"role": "user",
        "content": "a"}, {"role": "assistant", )") +
                                            more + R"(}, {"role": "user", "content": "b"}]})");
    EXPECT_EQ(shown.text, "U a;A ;U b;") << more;
  }
}

TEST(ChatForms, ArgumentsThatAreNoObjectAreTextOrAnErrorWithTheirPath) {
  const Shown as_text = ShownOf(Case("calls-when-null.jinja"), Case("cut-arguments.json"));
  EXPECT_NE(as_text.text.find(R"(CALL get_weather {"city": "Os;)"), std::string::npos)
      << as_text.text;
  const Shown as_json = ShownOf(Case("arguments-json.jinja"), Case("cut-arguments.json"));
  EXPECT_NE(as_json.text.find(R"(CALL "{\"city\": \"Os";)"), std::string::npos) << as_json.text;
  const Shown refused = ShownOf(Case("arguments-items.jinja"), Case("cut-arguments.json"));
  ASSERT_TRUE(refused.error);
  EXPECT_EQ(refused.error->code, Code::kInvalidArgument);
  EXPECT_EQ(refused.error->field, "messages[1].tool_calls[0].function.arguments");
}

// OpenAI's older form of one call.
TEST(ChatForms, AFunctionCallIsACall) {
  const auto history = [](const std::string& call) {
    return R"({"messages": [{"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": null, "function_call": )" +
           call + R"(}, {"role": "tool", "content": "3 degrees"}]})";
  };
  const std::string oslo = R"({"name": "get_weather", "arguments": "{\"city\": \"Oslo\"}"})";
  EXPECT_EQ(ShownOf(Case("calls-when-null.jinja"), history(oslo)).text,
            "user Weather?;CALL get_weather {\"city\": \"Oslo\"};tool 3 degrees;");
  EXPECT_EQ(ShownOf(Case("arguments-items.jinja"), history(oslo)).text,
            "user Weather?;<call get_weather><city>Oslo</city>tool 3 degrees;");
  const Shown written = ShownOf(Case("no-tools.jinja"), history(oslo));
  EXPECT_NE(written.text.find("{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Oslo\"}}"),
            std::string::npos)
      << written.text;
  const std::string names_only =
      "{% for m in messages %}{% for c in m.tool_calls or [] %}{{ c.function.name }}{% endfor %}"
      "{{ m.content }}{% endfor %}";
  EXPECT_EQ(ShownOf(names_only, history(oslo)).ignored,
            Paths{"messages[1].function_call.arguments"});
  const Shown cut = ShownOf(Case("arguments-items.jinja"),
                            history(R"({"name": "f", "arguments": "{\"city\": \"Os"})"));
  ASSERT_TRUE(cut.error);
  EXPECT_EQ(cut.error->field, "messages[1].function_call.arguments");
  const Shown nameless = ShownOf(Case("arguments-items.jinja"), history("{}"));
  ASSERT_TRUE(nameless.error);
  EXPECT_EQ(nameless.error->field, "messages[1].function_call");
  EXPECT_EQ(ShownOf(Case("arguments-items.jinja"), history("null")).text,
            "user Weather?;assistant ;tool 3 degrees;");
}

// And of its result.
TEST(ChatForms, AFunctionsResultIsAToolsResult) {
  EXPECT_EQ(ShownOf(Case("calls-when-null.jinja"), R"({"messages": [
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": null,
         "function_call": {"name": "get_weather", "arguments": "{\"city\": \"Oslo\"}"}},
        {"role": "function", "name": "get_weather", "content": "3 degrees"}]})")
                .text,
            "user Weather?;CALL get_weather {\"city\": \"Oslo\"};tool 3 degrees;");
}

TEST(ChatForms, OtherMembersOfAMessageAreShownOrNamed) {
  const std::string body = R"({"messages": [
      {"role": "user", "name": "Ann", "content": "Hi", "weight": 0.5, "x": false, "y": null},
      {"role": "assistant", "content": "", "audio": {"id": "audio_1"}, "annotations": []},
      {"role": "tool", "tool_call_id": "c1", "content": "1"}]})";
  EXPECT_EQ(ShownOf("{% for m in messages %}{{ m.content }};{% endfor %}", body).ignored,
            (Paths{"messages[0].name", "messages[0].weight", "messages[1].audio"}));
  EXPECT_EQ(ShownOf("{% for m in messages %}{{ m.name }}{{ m.audio.id if m.audio }}"
                    "{{ m.content }};{% endfor %}",
                    body)
                .ignored,
            Paths{"messages[0].weight"});
  EXPECT_EQ(ShownOf("{{ messages[1].content }}", body).ignored,
            (Paths{"messages[0]", "messages[1].audio", "messages[2]"}));
}

TEST(ChatForms, APartThatRefusesIsAText) {
  const Shown shown = ShownOf("{% for m in messages %}{{ m.content }};{% endfor %}",
                              R"({"messages": [{"role": "assistant", "content": [
          {"type": "text", "text": "Well."}, {"type": "refusal", "refusal": "No."}]},
          {"role": "user", "content": "b"}]})");
  EXPECT_EQ(shown.text, "Well.\nNo.;b;");
  EXPECT_EQ(shown.ignored, Paths{});
  const Shown missing = ShownOf("x", R"({"messages": [{"role": "assistant", "content": [
      {"type": "refusal", "text": "No."}]}]})");
  ASSERT_TRUE(missing.error);
  EXPECT_EQ(missing.error->field, "messages[0].content[0].refusal");
}

TEST(ChatForms, IntegersAreWrittenAsTheyWereSent) {
  const std::string as_json = Case("arguments-json.jinja");
  EXPECT_EQ(ShownOf(as_json, Case("big-integers.json")).text,
            "user Show it;CALL {\"id\": 12345678901234567890};tool shown;");
  const std::string tools =
      R"([{"name": "f", "parameters": {"maximum": 18446744073709551615, "minimum": )"
      R"(-123456789012345678901, "multipleOf": 0.5}}])";
  EXPECT_EQ(ShownOf(as_json,
                    R"({"messages": [{"role": "user", "content": "a"}], "tools": )" + tools + "}")
                .text,
            tools.substr(1, tools.size() - 2) + "user a;");
  EXPECT_EQ(ShownOf("{{ x }} {{ x is integer }} {{ x is float }} {{ x | int }} {{ -x > 1 }} "
                    "{{ [x] }} {{ '%s' % x }}",
                    R"({"messages": [{"role": "user", "content": "a"}],
                        "chat_template_kwargs": {"x": 123456789012345678901}})")
                .text,
            "123456789012345678901 True False 123456789012345678901 False "
            "[123456789012345678901] 123456789012345678901");
}

TEST(ChatForms, AnErrorOfATemplateNamesTheMessage) {
  const std::string two = R"({"messages": [{"role": "user", "content": "a"},
      {"role": "assistant", "tool_calls": [{"function": {"name": "f"}},
                                           {"function": {"name": "g"}}]},
      {"role": "user", "content": "b"}]})";
  const Shown looped = ShownOf(Case("one-call-at-most.jinja"), two);
  ASSERT_TRUE(looped.error);
  EXPECT_EQ(looped.error->text(), "messages[1]: one call at a time");
  // Outside of a loop over messages: the last message of the shortest history that it refuses.
  const Shown before = ShownOf(
      "{% if messages | selectattr('role', 'equalto', 'assistant') | list %}"
      "{{ raise_exception('users only') }}{% endif %}{{ messages[0].content }}",
      two);
  ASSERT_TRUE(before.error);
  EXPECT_EQ(before.error->text(), "messages[1]: users only");
}

// Maps the names of all templates at hand to their sources.
std::map<std::string, std::string> AllTemplates() {
  std::map<std::string, std::string> all;
  for (const std::string_view name : BuiltinTemplateNames()) {
    all["built-in " + std::string(name)] = *BuiltinTemplate(name);
  }
  const fs::path root(KVASIR_SOURCE_DIR), shared(KVASIR_SHARED_DIR);
  for (const fs::path& folder : {root / "tests/data", root / "models", shared / "goldens",
                                 shared / "data/hf-tokenizers", shared / "models"}) {
    if (!fs::exists(folder)) continue;
    for (const auto& entry : fs::recursive_directory_iterator(folder)) {
      const std::string name = entry.path().filename();
      if (name.ends_with(".jinja")) all[entry.path()] = ReadFile(entry.path());
      if (name != "tokenizer_config.json" && name != "chat_template.json") continue;
      const json config = json::parse(ReadFile(entry.path()), nullptr, false);
      if (!config.is_object()) continue;
      const json source = config.value("chat_template", json());
      if (source.is_string()) all[entry.path()] = source;
      for (const json& one : source.is_array() ? source : json::array()) {
        all[entry.path().string() + " " + one.value("name", "")] = one.value("template", "");
      }
    }
  }
  return all;
}

// Tells whether the call `i` of message 1 is in the text, or named.
bool IsAccountedFor(const Shown& shown, size_t i, const std::string& name,
                    const std::string& argument) {
  const std::string call = "messages[1].tool_calls[" + std::to_string(i) + "]";
  const auto names = [&](const std::string& path) {
    return std::ranges::find(shown.ignored, path) != shown.ignored.end();
  };
  const auto has = [&](const std::string& part) {
    return shown.text.find(part) != shown.text.npos;
  };
  return names("messages[1]") || names(call) ||
         ((has(name) || names(call + ".function.name")) &&
          (has(argument) || names(call + ".function.arguments")));
}

// Tells whether arguments of a call, or their text, are an object.
bool IsObject(const json& arguments) {
  if (!arguments.is_string()) return arguments.is_object();
  return json::parse(arguments.get<std::string>(), nullptr, false).is_object();
}

// Tells whether a template refuses a chat of the test below by a rule that jinja2 keeps too: one
// call at most, no role beside two, a call without `function`, a tool without descriptions.
bool IsOwnRule(const std::string& where, const std::string& message) {
  constexpr std::pair<const char*, const char*> kRules[] = {
      {"cases/one-call-at-most.jinja", "one call at a time"},
      {"gemma-3-chat/chat_template.json", "Conversation roles must alternate"},
      {"gpt-oss/chat_template.jinja", "'dict object' has no attribute 'name'"},
      {"gpt-oss/chat_template.jinja", "'dict object' has no attribute 'description'"}};
  return std::ranges::any_of(kRules, [&](const auto& rule) {
    return where.find(rule.first) != where.npos && message.find(rule.second) != message.npos;
  });
}

TEST(ChatForms, EveryTemplateAtHandIsRead) {
  Paths unread;
  for (const auto& [where, source] : AllTemplates()) {
    if (!ChatTemplate::Parse(source)) unread.push_back(fs::path(where).filename());
  }
  EXPECT_EQ(unread, Paths{});
}

TEST(ChatForms, EveryFormOfCallIsShownByEveryTemplateOrNamed) {
  const json arguments_of_call[] = {
      "{\"city\": \"Bergen0\"}", {{"city", "Bergen0"}}, "{\"a\":[1,{\"b\":\"Bergen0\"}]}",
      "{\"city\": \"Bergen0",    "[\"Bergen0\"]",       json::array({"Bergen0"})};
  const json contents[] = {nullptr, "", " ", "absent"};
  const json tools = json::parse(Case("tools-unseen.json"))["tools"];
  size_t rendered = 0, refused = 0, named = 0;
  const auto templates = AllTemplates();
  size_t number = 0;
  for (const auto& [where, source] : templates) {
    const auto chat_template = ChatTemplate::Parse(source);
    if (!chat_template) continue;
    for (const json& arguments : arguments_of_call) {
      const bool is_object = IsObject(arguments);
      for (const json& content : contents) {
        for (const size_t num_calls : {1, 2}) {
          for (const bool has_tools : {false, true}) {
            for (const bool has_id : {false, true}) {
              if (++number % Rounds(1u, 5u) != 0) continue;
              json answer = {{"role", "assistant"}, {"tool_calls", json::array()}};
              if (content != "absent") answer["content"] = content;
              json messages = {{{"role", "user"}, {"content", "Hi"}}, nullptr};
              for (size_t i = 0; i < num_calls; ++i) {
                std::string text = arguments.dump();
                if (i > 0) text.replace(text.find("Bergen0"), 7, "Bergen1");
                json call = {
                    {"type", "function"},
                    {"function",
                     {{"name", "look" + std::to_string(i)}, {"arguments", json::parse(text)}}}};
                if (has_id) call["id"] = "call0000" + std::to_string(i);
                json result = {{"role", "tool"}, {"content", "Rain" + std::to_string(i)}};
                if (has_id) result["tool_call_id"] = call["id"];
                answer["tool_calls"].push_back(call);
                messages.push_back(result);
              }
              messages[1] = answer;
              json body = {{"messages", messages}};
              if (has_tools) body["tools"] = tools;
              const Shown shown = ShownBy(**chat_template, body.dump());
              if (shown.error) {
                ++refused;
                const std::string field = shown.error->field.value_or("");
                EXPECT_EQ(field.substr(0, 9), "messages[") << where << ": " << shown.error->text();
                const bool names_arguments = field.ends_with(".function.arguments");
                EXPECT_TRUE(IsOwnRule(where, shown.error->message) ||
                            (names_arguments && !is_object))
                    << where << ": " << shown.error->text() << "\n"
                    << body;
                continue;
              }
              ++rendered;
              named += shown.ignored.empty() ? 0 : 1;
              for (size_t i = 0; i < num_calls; ++i) {
                const std::string digit = std::to_string(i);
                EXPECT_TRUE(IsAccountedFor(shown, i, "look" + digit, "Bergen" + digit))
                    << where << "\n"
                    << body << "\n"
                    << shown.text;
              }
              if (::testing::Test::HasFailure()) return;
            }
          }
        }
      }
    }
  }
  std::printf("%zu templates, %zu chats rendered, %zu with something named, %zu refused\n",
              templates.size(), rendered, named, refused);
  EXPECT_GT(rendered, refused);
}

}  // namespace
}  // namespace kvasir
