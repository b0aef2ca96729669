#include "chat/chat_template.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>

#include "base/json_tree_for_test.h"
#include "base/needs_for_test.h"
#include "base/rounds_for_test.h"
#include "chat/builtin_templates.h"
#include "chat/render_for_test.h"
#include "source_paths.h"
#include "text/tokenizer.h"

namespace kvasir {
namespace {

const std::string kTemplateFolder = std::string(KVASIR_SOURCE_DIR) + "/tests/data/templates/";
const std::string kGoldens = std::string(KVASIR_SHARED_DIR) + "/goldens/";

std::string ReadText(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream out;
  out << in.rdbuf();
  return out.str();
}

Json ReadJson(const std::string& path) {
  Json json = Json::parse(ReadText(path), nullptr, /*allow_exceptions=*/false);
  return json.is_discarded() ? Json() : json;
}

// As those of some models that read images too.
TEST(ChatTemplate, ContentIsGivenAsPartsWhereOnlyThoseAreShown) {
  constexpr std::string_view kSources[] = {
      "{% for m in messages %}<|{{ m.role }}|>{% for p in m.content %}{{ p.text }}{% endfor %}"
      "<|end|>{% endfor %}<|assistant|>",
      "{% for m in messages %}<|{{ m['role'] }}|>{% for p in m['content'] %}"
      "{% if p['type'] == 'image' %}<image>{% elif p['type'] == 'text' %}{{ p['text'] }}"
      "{% else %}{{ raise_exception('no text') }}{% endif %}{% endfor %}<|end|>{% endfor %}"
      "<|assistant|>"};
  const Json messages = {{{"role", "system"}, {"content", "Be kind."}},
                         {{"role", "user"}, {"content", "<|end|> Hi"}},
                         {{"role", "assistant"}, {"content", ""}},
                         {{"role", "user"}, {"content", "And now?"}}};
  for (const std::string_view source : kSources) {
    const auto chat = Render(source, messages);
    ASSERT_TRUE(chat) << chat.error().message;
    EXPECT_EQ(chat->text,
              "<|system|>Be kind.<|end|><|user|><|end|> Hi<|end|><|assistant|><|end|><|user|>"
              "And now?<|end|><|assistant|>");
    EXPECT_EQ(TemplateText(*chat),
              "<|system|><|end|><|user|><|end|><|assistant|><|end|><|user|><|end|><|assistant|>");
    EXPECT_EQ(chat->message_end.size(), 4u);
    EXPECT_TRUE(chat->unseen.empty());
    const auto continued = Render(source,
                                  {{{"role", "user"}, {"content", "Hi"}},
                                   {{"role", "assistant"}, {"content", "Your name is "}}},
                                  {.continues = Continued::kContent});
    ASSERT_TRUE(continued) << continued.error().message;
    EXPECT_EQ(continued->text, "<|user|>Hi<|end|><|assistant|>Your name is ");
  }
  const auto takes_both = ChatTemplate::Parse(
      "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}"
      "{% for p in m.content %}{{ p.text }}{% endfor %}{% endif %}{% endfor %}");
  EXPECT_FALSE((*takes_both)->form().content_parts);
  EXPECT_TRUE((*ChatTemplate::Parse(kSources[1]))->form().content_parts);
}

TEST(ChatTemplate, AContinuedMessageIsTheEnd) {
  constexpr std::string_view kPlain =
      "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
      "{% if add_generation_prompt %}<|assistant|>{% endif %}";
  constexpr std::string_view kTrims =
      "{% for m in messages %}<|{{ m.role }}|>{% if m.reasoning_content %}<think>"
      "{{ m.reasoning_content }}</think>{% endif %}{{ m.content|trim }}<|end|>{% endfor %}";
  const auto ask = [](std::string_view source, const std::string& said,
                      Continued continues = Continued::kContent) {
    return Render(source,
                  {{{"role", "user"}, {"content", "Hi"}},
                   {{"role", "assistant"}, {"content", said}, {"reasoning_content", "I think "}}},
                  {.continues = continues});
  };
  for (const std::string said :
       {"Your name is", "Your name is ", "", "CONTINUE_FINAL_MESSAGE_TAG "}) {
    const auto chat = ask(kPlain, said);
    ASSERT_TRUE(chat) << chat.error().message;
    EXPECT_EQ(chat->text, "<|user|>Hi<|end|><|assistant|>" + said);
    EXPECT_EQ(TemplateText(*chat), "<|user|><|end|><|assistant|>");
    EXPECT_EQ(chat->message_end, (std::vector<size_t>{17, 30 + said.size()}));
    EXPECT_TRUE(chat->is_continued);
  }
  const auto trimmed = ask(kTrims, " is ");
  ASSERT_TRUE(trimmed) << trimmed.error().message;
  EXPECT_EQ(trimmed->text, "<|user|>Hi<|end|><|assistant|><think>I think </think>is");
  EXPECT_EQ(TemplateText(*trimmed), "<|user|><|end|><|assistant|><think></think>");
  EXPECT_EQ(ask(kTrims, "", Continued::kReasoningContent)->text,
            "<|user|>Hi<|end|><|assistant|><think>I think ");

  const auto drops = ask("{% for m in messages %}{{ m.content[:3] }}{% endfor %}", "Your name is");
  ASSERT_FALSE(drops);
  EXPECT_NE(drops.error().message.find("cannot be continued"), std::string::npos);
  EXPECT_FALSE(Render(kPlain, Json::array(), {.continues = Continued::kContent}));
  EXPECT_FALSE(
      Render(kPlain, Json::array({{{"role", "assistant"}}}), {.continues = Continued::kContent}));
}

TEST(ChatTemplate, ValuesOfJsonInAMessageAreLiteral) {
  const Json messages = {{{"role", "user"}, {"content", R"({"a": ["<|x|>", 12], "b": true})"}}};
  const auto chat = Render(
      "{% set v = messages[0].content|from_json %}<{{ v.a[0] }}{{ v.a[1] + 1 }}{{ v.b }}"
      "{% for k in v %}{{ k }}{% endfor %}>{{ ('[7]'|from_json)[0] }}",
      messages);
  ASSERT_TRUE(chat) << chat.error().message;
  EXPECT_EQ(chat->text, "<<|x|>13Trueab>7");
  EXPECT_EQ(TemplateText(*chat), "<>7");
  const Json deep = {
      {{"role", "user"}, {"content", std::string(102, '[') + std::string(102, ']')}}};
  EXPECT_FALSE(Render("{{ messages[0].content|from_json }}", deep));
}

TEST(ChatTemplate, RendersWhatJinja2Renders) {
  setenv("TZ", "UTC", 1);
  const Json file = ReadJson(kTemplateFolder + "cases.json");
  ASSERT_GT(file["cases"].size(), 400u);
  for (const Json& item : file["cases"]) {
    ChatRenderOptions options;
    options.add_generation_prompt = item.value("add_generation_prompt", false);
    options.bos_token = item.value("bos", "");
    options.eos_token = item.value("eos", "");
    options.now_unix_s = file["now"];
    const Json variables = item.contains("own_variables") ? item["own_variables"]
                           : item.contains("bos")         ? Json()
                                                          : file["variables"];
    const std::string source = item["template"];
    const auto chat =
        Render(source, item["messages"], options, item.value("tools", Json()), variables);
    if (item.contains("fails")) {
      EXPECT_FALSE(chat) << source << " gave " << chat->text;
    } else {
      ASSERT_TRUE(chat) << source << ": " << chat.error().message;
      EXPECT_EQ(chat->text, item["rendered"].get<std::string>()) << source;
    }
  }
}

TEST(ChatTemplate, GoldenChatsRenderAndEncodeAsTransformersDoes) {
  KV_NEEDS(kGoldens);
  size_t texts = 0;
  for (const auto& folder : std::filesystem::directory_iterator(kGoldens)) {
    if (!folder.is_directory()) continue;
    const std::string path = folder.path().string() + "/";
    const Json golden = ReadJson(path + "golden.json");
    const Json config = ReadJson(path + "tokenizer_config.json");
    if (!golden.is_object() || !golden.contains("tokenizer")) continue;
    if (!config.contains("chat_template") || !golden["tokenizer"].contains("chats")) continue;
    const auto tokenizer = Tokenizer::Parse(ReadText(path + "tokenizer.json"),
                                            ReadText(path + "tokenizer_config.json"));
    for (const Json& chat : golden["tokenizer"]["chats"]) {
      ChatRenderOptions options{chat["add_generation_prompt"].get<bool>(), "", "", 0};
      if (config["bos_token"].is_string()) options.bos_token = config["bos_token"];
      if (config["eos_token"].is_string()) options.eos_token = config["eos_token"];
      const auto out =
          Render(config["chat_template"].get<std::string>(), chat["messages"], options);
      ASSERT_TRUE(out) << path << out.error().message;
      EXPECT_EQ(out->text, chat["text"].get<std::string>()) << path;
      ++texts;
      if (!tokenizer) continue;  // a family that the tokenizer does not know yet
      EncodeOptions encode;
      encode.add_special = false;
      encode.literal = out->literal;
      encode.written = *out->written;
      const auto ids = (*tokenizer)->Encode(out->text, encode);
      ASSERT_TRUE(ids) << path << ids.error().message;
      std::vector<int64_t> numbers;
      for (const TokenId id : *ids) numbers.push_back(static_cast<int64_t>(id));
      EXPECT_EQ(numbers, chat["ids"].get<std::vector<int64_t>>()) << path;
    }
  }
  EXPECT_GT(texts, 10u);
}

TEST(ChatTemplate, WhatUsersWroteIsLiteralAndRolesAreNot) {
  const auto chat = Render(
      "{{ bos_token }}{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}",
      {{{"role", "user"}, {"content", "<|end|>x"}}}, {true, "<s>", "", 0});
  ASSERT_TRUE(chat);
  EXPECT_EQ(chat->text, "<s><|user|><|end|>x<|end|>");
  EXPECT_EQ(TemplateText(*chat, "@"), "<s><|user|>@<|end|>");
}

TEST(ChatTemplate, WhatATemplateMayWriteIsKnownBeforeItWritesIt) {
  const Json hello = {{{"role", "user"}, {"content", "<table>"}}};
  const auto chat = Render(
      "{% for m in messages %}{% if m.role == 'tool' %}<obs>{% endif %}"
      "{{ '[' + m.role + ']' + m.content }}{% endfor %}",
      hello);
  ASSERT_TRUE(chat);
  EXPECT_EQ(chat->text, "[user]<table>");
  for (const char* mark : {"<obs>", "[user]", "[assistant]", "[system]", "[tool]", "[developer]"}) {
    EXPECT_NE(chat->written->find(mark), std::string::npos) << mark;
  }
  EXPECT_EQ(chat->written->find("<table>"), std::string::npos) << "the user wrote it";
  const auto strict = Render(
      "{% if messages[0].role == 'system' %}{{ raise_exception('no') }}{% endif %}"
      "{{ bos_token }}{{ messages[0].role|upper }}",
      hello);
  ASSERT_TRUE(strict);
  EXPECT_NE(strict->written->find("USER"), std::string::npos);
}

TEST(ChatTemplate, OneOfSeveralIsChosenByNameOrByTools) {
  const auto parsed =
      ChatTemplate::Parse("plain", {{"tool_use", "tools"}, {"rag", "{{ documents }}"}});
  ASSERT_TRUE(parsed) << parsed.error().message;
  const ChatTemplate& plain = **parsed;
  EXPECT_EQ(plain.names(), (std::vector<std::string>{"default", "rag", "tool_use"}));
  EXPECT_EQ(AllSources(plain), "plain\n{{ documents }}\ntools\n");
  EXPECT_EQ(plain.Choose(std::nullopt, false), &plain);
  EXPECT_EQ(plain.Choose("default", true), &plain);
  EXPECT_EQ(plain.Choose(std::nullopt, true)->source(), "tools");
  EXPECT_EQ(plain.Choose("tool_use", false)->source(), "tools");
  EXPECT_EQ(plain.Choose("rag", true)->source(), "{{ documents }}");
  EXPECT_EQ(plain.Choose("", true), nullptr);
  EXPECT_EQ(plain.Choose("Rag", false), nullptr);

  const auto single = ChatTemplate::Parse("one");
  EXPECT_EQ((*single)->Choose(std::nullopt, true), single->get());
  EXPECT_EQ((*single)->Choose("tool_use", true), nullptr);
  const auto wrong = ChatTemplate::Parse("plain", {{"rag", "{% if"}});
  ASSERT_FALSE(wrong);
  EXPECT_EQ(wrong.error().message.find("template 'rag': "), 0u) << wrong.error().message;
}

TEST(ChatTemplate, BuiltinTemplatesAreWhatTheirModelsRead) {
  const std::vector<std::pair<std::string, std::string>> expected = {
      {"chatml",
       "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
       "<|im_start|>assistant\nHello<|im_end|>\n<|im_start|>user\nBye<|im_end|>\n"
       "<|im_start|>assistant\n"},
      {"llama2",
       "<s>[INST] <<SYS>>\nBe kind.\n<</SYS>>\n\nHi [/INST] Hello </s><s>[INST] Bye [/INST]"},
      {"llama3",
       "<s><|start_header_id|>system<|end_header_id|>\n\nBe kind.<|eot_id|>"
       "<|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>"
       "<|start_header_id|>assistant<|end_header_id|>\n\nHello<|eot_id|>"
       "<|start_header_id|>user<|end_header_id|>\n\nBye<|eot_id|>"
       "<|start_header_id|>assistant<|end_header_id|>\n\n"},
      {"mistral", "<s>[INST] Be kind.\n\nHi[/INST] Hello</s>[INST] Bye[/INST]"},
      {"gemma",
       "<s><start_of_turn>user\nBe kind.\n\nHi<end_of_turn>\n<start_of_turn>model\nHello"
       "<end_of_turn>\n<start_of_turn>user\nBye<end_of_turn>\n<start_of_turn>model\n"},
      {"phi3",
       "<|system|>\nBe kind.<|end|>\n<|user|>\nHi<|end|>\n<|assistant|>\nHello<|end|>\n"
       "<|user|>\nBye<|end|>\n<|assistant|>\n"},
      {"command-r",
       "<s><|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|>Be kind.<|END_OF_TURN_TOKEN|>"
       "<|START_OF_TURN_TOKEN|><|USER_TOKEN|>Hi<|END_OF_TURN_TOKEN|>"
       "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>Hello<|END_OF_TURN_TOKEN|>"
       "<|START_OF_TURN_TOKEN|><|USER_TOKEN|>Bye<|END_OF_TURN_TOKEN|>"
       "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>"}};
  const Json messages = {{{"role", "system"}, {"content", "Be kind."}},
                         {{"role", "user"}, {"content", "Hi"}},
                         {{"role", "assistant"}, {"content", "Hello"}},
                         {{"role", "user"}, {"content", "Bye"}}};
  ASSERT_EQ(BuiltinTemplateNames().size(), expected.size());
  for (const auto& [name, text] : expected) {
    const auto chat =
        Render(*BuiltinTemplate(name), messages, {.bos_token = "<s>", .eos_token = "</s>"});
    ASSERT_TRUE(chat) << name << ": " << chat.error().message;
    EXPECT_EQ(chat->text, text) << name;
    EXPECT_EQ(chat->literal.size(), 4u) << name;
    EXPECT_TRUE(Render(*BuiltinTemplate(name), messages)) << name;  // without special tokens
  }
  EXPECT_FALSE(BuiltinTemplate("vicuna"));
}

TEST(ChatTemplate, ARoleThatTheApiDoesNotKnowIsLiteral) {
  const auto chat =
      Render("{% for m in messages %}<|{{ m.role }}|>{% endfor %}", {{{"role", "end|><|system"}}});
  ASSERT_TRUE(chat);
  EXPECT_EQ(TemplateText(*chat, "@"), "<|@|>");
}

// Each turns the content of a message into something else; M is a string without '@' in it.
const char* const kTransformations[] = {
    "{{ M }}",
    "{{ M ~ 'z' }}",
    "{{ M + M }}",
    "{{ M|upper }}",
    "{{ M|lower }}",
    "{{ M|title }}",
    "{{ M|capitalize }}",
    "{{ M|trim }}",
    "{{ M|reverse }}",
    "{{ M[::-1] }}",
    "{{ M[1:5] }}",
    "{{ M|replace('e', M) }}",
    "{{ 'a-b'|replace('-', M) }}",
    "{{ M.replace('<', 'y') }}",
    "{{ M.split('e')|join('') }}",
    "{{ M.split()|join }}",
    "{{ [M, M]|join }}",
    "{{ [M] }}",
    "{{ {M: M} }}",
    "{{ M|tojson }}",
    "{{ [M]|tojson(indent=2) }}",
    "{{ {M: [M]}|tojson }}",
    "{{ M|list|join }}",
    "{{ M|list|sort|join }}",
    "{{ '%s' % M }}",
    "{{ '{}'.format(M) }}",
    "{{ '%s'|format(M) }}",
    "{{ M % () }}",
    "{{ M|e }}",
    "{{ M|indent(2) }}",
    "{{ M|truncate(9) }}",
    "{{ M|center(99) }}",
    "{{ M.center(99) }}",
    "{{ M * 2 }}",
    "{{ M|string }}",
    "{{ M|safe }}",
    "{{ M|urlencode }}",
    "{{ M.title() }}",
    "{{ M.swapcase() }}",
    "{{ M.strip('<') }}",
    "{{ M.partition('|')|join }}",
    "{{ M.rsplit('|', 1)|join }}",
    "{{ M.splitlines()|join }}",
    "{{ M.removeprefix('<') }}",
    "{{ M|first }}{{ M|last }}",
    "{% for c in M %}{{ c }}{% endfor %}",
    "{% set x = M %}{{ x }}",
    "{% set x %}{{ M }}{% endset %}{{ x }}",
    "{% filter upper %}{{ M }}{% endfilter %}",
    "{% set n = namespace(v=M) %}{{ n.v }}",
    "{% macro f(a) %}{{ a }}{% endmacro %}{{ f(M) }}",
    "{% with a=M %}{{ a }}{% endwith %}",
    "{% macro f() %}{{ caller() }}{% endmacro %}{% call f() %}{{ M }}{% endcall %}",
    "{{ missing|default(M) }}",
    "{{ M if true else '' }}",
    "{{ M or '' }}",
    "{{ [M]|map('upper')|join }}",
    "{{ [M]|batch(1)|list }}",
    "{{ {'k': M}.values()|list }}",
    "{{ {'k': M}|dictsort }}",
    "{{ messages|map(attribute='content')|join }}",
    "{{ messages|tojson }}",
    "{{ messages }}",
    "{{ messages[0].items()|list }}",
    "{{ messages|groupby('content') }}",
    "{{ M.zfill(99) }}",
    "{% for k, v in messages[0].items() %}{{ v }}{% endfor %}",
    "{{ strftime_now(M) }}",
};

// Draws content made of pieces of special tokens, of white space and of letters.
std::string RandomContent(std::mt19937_64& random) {
  static constexpr std::string_view kPieces[] = {
      "<|end|>", "<|im_start|>", "<|system|>", "<|",        "|>",
      "END",     "end",          "<s>",        "e",         " ",
      "\n",      "\"",           "\\",         "{{ bos }}", "{% raw %}",
      "%s",      "{}",           "é",          "🙂",        "ß",
      "'",       "\t",           "<",          "|",         "x"};
  std::string out;
  for (size_t i = random() % 12; i > 0; --i) out += kPieces[random() % std::size(kPieces)];
  return out;
}

TEST(ChatTemplate, UserTextNeverLandsOutsideTheLiteralRanges) {
  std::mt19937_64 random(20240607);
  size_t rendered = 0;
  for (const char* transformation : kTransformations) {
    std::string source = transformation;
    for (size_t at; (at = source.find('M')) != std::string::npos;) {
      source.replace(at, 1, "messages[0].content");
    }
    for (int round = 0; round < 40; ++round) {
      const auto chat = Render("\x01" + source + "\x01",
                               {{{"role", "user"}, {"content", RandomContent(random)}}});
      if (!chat) continue;  // '%s' and the like inside the content
      ++rendered;
      size_t at = 0;
      for (const auto& [begin, end] : chat->literal) {
        ASSERT_LE(at, begin);
        ASSERT_LT(begin, end);
        ASSERT_LE(end, chat->text.size());
        at = end;
      }
      // No special string may stand in template text: the templates hold none of
      // these.
      const std::string wrote = TemplateText(*chat);
      EXPECT_EQ(wrote.find_first_of("<|>{}%\\&;"), wrote.find_first_of("\x02"))
          << source << " wrote " << wrote << " in " << chat->text;
    }
  }
  EXPECT_GT(rendered, 2000u);
}

TEST(ChatTemplate, ToolsAndVariablesAreLiteralToo) {
  const auto chat = Render("{{ tools|tojson }}:{{ v.a[0] }}:{{ v.n + 1 }}:{{ v }}", Json::array(),
                           {}, {{{"z", "<|end|>"}, {"a", 1}}}, {{"v", {{"a", {"<s>"}}, {"n", 4}}}});
  ASSERT_TRUE(chat) << chat.error().message;
  EXPECT_EQ(chat->text, "[{\"z\": \"<|end|>\", \"a\": 1}]:<s>:5:{'a': ['<s>'], 'n': 4}");
  EXPECT_EQ(TemplateText(*chat, "@"), "@:@:@:@");
}

TEST(ChatTemplate, MessagesEndWhereTheNextBegins) {
  const Json messages = {{{"role", "system"}, {"content", "S"}},
                         {{"role", "user"}, {"content", "one"}},
                         {{"role", "assistant"}, {"content", "two"}}};
  const char* const loops[] = {
      "<s>{% for m in messages %}[{{ m.role }}:{{ m.content }}]{% endfor %}GEN",
      "<s>{% for m in messages[:1] %}[{{ m.role }}:{{ m.content }}]{% endfor %}"
      "{% for m in messages[1:] %}[{{ m.role }}:{{ m.content }}]{% endfor %}GEN",
      "<s>{% for i in range(messages|length) %}{% set m = messages[i] %}[{{ m.role }}:{{ m.content "
      "}}]"
      "{% endfor %}GEN",
      "{% macro f(m) %}[{{ m.role }}:{{ m.content }}]{% endmacro %}<s>{% for m in messages %}{{ "
      "f(m) }}"
      "{% endfor %}GEN",
  };
  for (const char* loop : loops) {
    const auto chat = Render(loop, messages);
    ASSERT_TRUE(chat) << chat.error().message;
    ASSERT_EQ(chat->text, "<s>[system:S][user:one][assistant:two]GEN");
    EXPECT_EQ(chat->message_end, (std::vector<size_t>{13, 23, 38})) << loop;
  }
}

TEST(ChatTemplate, ASystemTextInsideTheFirstTurnStaysTheSystemMessages) {
  const auto chat = Render(
      "{% set first = messages[0].content %}{% for m in messages[1:] %}"
      "<turn>{{ first if loop.first else '' }}{{ m.content }}</turn>{% endfor %}",
      {{{"role", "system"}, {"content", "SYS"}},
       {{"role", "user"}, {"content", "one"}},
       {{"role", "user"}, {"content", "two"}}});
  ASSERT_TRUE(chat);
  EXPECT_EQ(chat->text, "<turn>SYSone</turn><turn>two</turn>");
  EXPECT_EQ(chat->message_end, (std::vector<size_t>{9, 19, 35}));
}

TEST(ChatTemplate, AMessageThatIsNotRenderedEndsWhereItBegan) {
  const auto chat = Render("{% for m in messages if m.content %}{{ m.content }};{% endfor %}",
                           {{{"role", "user"}, {"content", "a"}},
                            {{"role", "user"}, {"content", ""}},
                            {{"role", "user"}, {"content", "b"}}});
  ASSERT_TRUE(chat);
  EXPECT_EQ(chat->message_end, (std::vector<size_t>{2, 2, 4}));
}

}  // namespace
}  // namespace kvasir
