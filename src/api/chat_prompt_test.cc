#include "api/chat_prompt.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "api/rewritten_history.h"
#include "base/bytes_for_test.h"
#include "base/needs_for_test.h"
#include "base/random.h"
#include "server/fake_engine_for_test.h"
#include "source_paths.h"

namespace kvasir {
namespace {

using nlohmann::json;

// Returns the text that the template `source` renders for a request body, or the error's message.
std::string Rendered(std::string_view source, std::string_view body) {
  const auto chat_template = ChatTemplate::Parse(source);
  if (!chat_template) return chat_template.error().text();
  ModelView model;
  model.chat_template = chat_template->get();
  auto parsed = ParseBody(body);
  if (!parsed) return parsed.error().text();
  JsonFields fields(parsed->fields);
  const auto chat = RenderMessages(fields, &parsed->tree, model);
  return chat ? chat->text : chat.error().text();
}

TEST(ChatPrompt, AModelWithoutATokenizerSaysWhy) {
  ModelView model;
  model.no_text = "m.gguf: kind 'x'";
  auto parsed = ParseBody(R"({"messages": []})");
  ASSERT_TRUE(parsed);
  JsonFields fields(parsed->fields);
  const auto refused = RenderMessages(fields, &parsed->tree, model);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::kUnsupported);
  EXPECT_EQ(refused.error().text(),
            "messages: m.gguf: kind 'x', or send token ids as the prompt of /v1/completions");
}

// A start renders some 60 small chats: each may take a part of the steps that a request's may.
TEST(ChatPrompt, AStartDoesNotWaitForATemplateThatHasNoEnd) {
  const auto slow = ChatTemplate::Parse(
      "{% for a in range(90000) %}{% for b in range(3) %}{% endfor %}{% endfor %}"
      "{% for m in messages %}[{{ m.content }}]{% endfor %}");
  ASSERT_TRUE(slow);
  ModelView model;
  model.chat_template = slow->get();
  EXPECT_EQ(IsPrefixStable(model), std::nullopt);
  auto parsed = ParseBody(R"({"messages": [{"role": "user", "content": "!"}]})");
  ASSERT_TRUE(parsed);
  JsonFields fields(parsed->fields);
  const auto chat = RenderMessages(fields, &parsed->tree, model);
  ASSERT_TRUE(chat);
  EXPECT_EQ(chat->text, "[!]");
}

TEST(ChatPrompt, DocumentsReachTheTemplatesThatUseThem) {
  const std::string_view source =
      "{% for d in documents %}[{{ d.title }}]{% endfor %}{{ x }}{{ messages[0].content }}";
  EXPECT_EQ(Rendered(source, R"({"documents": [{"title": "a"}, {"title": "b"}],
      "chat_template_kwargs": {"x": 7}, "messages": [{"role": "user", "content": "!"}]})"),
            "[a][b]7!");
  const std::string_view wrong =
      R"({"documents": ["a"], "messages": [{"role": "user", "content": "!"}]})";
  EXPECT_EQ(Rendered(source, wrong), "documents: must be an array of objects");
  const std::string_view unused =
      R"({"documents": [{"title": "a"}], "messages": [{"role": "user", "content": "!"}]})";
  EXPECT_EQ(Rendered("{{ messages[0].content }}", unused),
            "documents: the chat template does not use documents; write them in a message");
}

TEST(ChatPrompt, LinesThatCannotMoveAreNamed) {
  const auto chat_template =
      ChatTemplate::Parse("{% for m in messages %}[{{ m.content }}]{% endfor %}");
  ASSERT_TRUE(chat_template);
  ModelView model;
  model.chat_template = chat_template->get();
  const auto ignored = [&](std::string_view rules, std::string_view role) {
    auto parsed =
        ParseBody(fmt::format(R"({{"messages": [{{"role": "system", "content": "Today's date: x"}},
            {{"role": "{}", "content": "a"}}], "move_lines": {}}})",
                              role, rules));
    EXPECT_TRUE(parsed);
    JsonFields fields(parsed->fields);
    EXPECT_TRUE(RenderMessages(fields, &parsed->tree, model));
    return std::vector<std::string>(fields.inner_unread().begin(), fields.inner_unread().end());
  };
  EXPECT_EQ(ignored(R"(["date"])", "assistant"), std::vector<std::string>{"move_lines"});
  EXPECT_EQ(ignored("[]", "assistant"), std::vector<std::string>{});
  EXPECT_EQ(ignored(R"(["date"])", "user"), std::vector<std::string>{});
}

TEST(ChatPrompt, CallsStandInTheContentOfTemplatesThatDoNotKnowThem) {
  const std::string_view source = "{% for m in messages %}[{{ m.content }}]{% endfor %}";
  const std::string_view body = R"({"messages": [{"role": "user", "content": "a"},
      {"role": "assistant", "content": "Wait.", "tool_calls": [
        {"function": {"name": "f", "arguments": "{\"x\":  1}"}}, {"function": {"name": "g"}}]}]})";
  EXPECT_EQ(Rendered(source, body), R"([a][Wait.
{"name": "f", "arguments": {"x":  1}}
{"name": "g", "arguments": {}}])");
}

TEST(ChatPrompt, ToolsKeepTheOrderInWhichTheirKeysWereSent) {
  EXPECT_EQ(Rendered("{{ tools | tojson }}",
                     R"({"tools":[{"type":"function","function":{"name":"f","arguments":{"z":1,
                         "a":2}}}],"messages":[{"role":"user","content":"x"}]})"),
            R"([{"type": "function", "function": {"name": "f", "arguments": {"z": 1, "a": 2}}}])");
}

TEST(ChatPrompt, ArgumentsOfACallKeepTheOrderInWhichTheirKeysWereSent) {
  EXPECT_EQ(Rendered("{{ messages[0].tool_calls[0].function.arguments | tojson }}",
                     R"({"messages":[{"role":"assistant","tool_calls":[{"function":
                         {"name":"f","arguments":"{\"to\": 1, \"from\": {\"y\": 2, \"b\": 3}}"}}]}]})"),
            R"({"to": 1, "from": {"y": 2, "b": 3}})");
}

// A tool's arguments may have any names: a list in them is never a list of token ids.
TEST(ChatPrompt, ArgumentsMayHaveTheNamesOfOurFields) {
  for (const std::string arguments :
       {R"({"tokens": [1, 2]})", R"({"prompt": []})", R"({"tokens": [1.5, "a", -1]})",
        R"({"stop_token_ids": [1, 2]})", R"({"prompt": [[1], null]})"}) {
    const json body = {
        {"messages",
         {{{"role", "assistant"},
           {"tool_calls", {{{"function", {{"name", "f"}, {"arguments", arguments}}}}}}}}}};
    EXPECT_EQ(Rendered("{{ messages[0].tool_calls[0].function.arguments | tojson }}", body.dump()),
              arguments);
  }
}

TEST(ChatPrompt, ArgumentsThatAreNoJsonStayText) {
  EXPECT_EQ(Rendered("{{ messages[0].tool_calls[0].function.arguments is string }}",
                     R"({"messages":[{"role":"assistant","tool_calls":[{"function":
                         {"name":"f","arguments":"{\"a\":1}\u0000x"}}]}]})"),
            "True");
}

// Templates add strings to `content` (the bundled one does): null would be an error.
TEST(ChatPrompt, ContentBesideToolCallsMayBeNullOrAbsentAndIsEmptyThen) {
  const std::string call = R"("tool_calls":[{"function":{"name":"f","arguments":"{}"}}])";
  for (const std::string content : {"", R"("content":null,)", R"("content":"",)"}) {
    EXPECT_EQ(Rendered(kTinyTemplate,
                       R"({"add_generation_prompt":false,"messages":[{"role":"assistant",)" +
                           content + call + "}]}"),
              R"(assistant:{"name": "f", "arguments": {}}<|end|>)");
  }
}

TEST(ChatPrompt, ContentOfOthersThanTheAssistantMustBeThere) {
  for (const std::string message : {R"({"role":"user","tool_calls":[{"function":{"name":"f"}}]})",
                                    R"({"role":"tool"})", R"({"role":"user","content":null})"}) {
    EXPECT_EQ(Rendered(kTinyTemplate, R"({"messages":[)" + message + "]}"),
              "messages[0].content: is missing");
  }
}

// A chat of questions and answers, as Llama 2's template writes it, with the ids of each answer.
struct AnsweredChat {
  RenderedChat chat;
  std::vector<std::vector<TokenId>> answers;
  std::vector<KnownIds> known;
};

// Draws an answer of tokens that no tokenizer would encode it as: any tokens that are text.
std::vector<TokenId> AnyAnswer(const Tokenizer& tokenizer, Random& random) {
  for (;;) {
    std::vector<TokenId> ids;
    while (ids.size() < 8) {
      const auto id = static_cast<TokenId>(random.Below(tokenizer.vocab_size()));
      const std::string_view text = tokenizer.TokenText(id);
      const bool is_byte = text.starts_with("<0x");
      const bool begins = text.starts_with("\u2581") || text.starts_with("\u0120");
      if (text.empty() || tokenizer.IsSpecial(id) || is_byte || (ids.empty() && !begins)) continue;
      ids.push_back(id);
    }
    const std::string said = tokenizer.Decode(ids, SpecialTokens::kShow);
    const bool is_text = said.find("\uFFFD") == said.npos && said.find('<') == said.npos;
    if (is_text && said.find_first_not_of(' ') != said.npos) return ids;
  }
}

AnsweredChat MakeChat(const Tokenizer& tokenizer, const std::string& bos, const std::string& eos,
                      Random& random) {
  AnsweredChat made;
  RenderedChat& chat = made.chat;
  chat.written = std::make_shared<const std::string>(bos + eos);
  const auto write = [&](const std::string& text, bool by_user) {
    const size_t begin = chat.text.size();
    chat.text += text;
    if (by_user) chat.literal.emplace_back(begin, chat.text.size());
  };
  std::vector<std::pair<size_t, size_t>> places;
  for (int turn = 0; turn < 3; ++turn) {
    write(bos + "[INST] ", false);
    write("Question " + std::to_string(random.Below(100)) + "?", true);
    write(" [/INST]", false);
    chat.message_begin.push_back(chat.message_end.empty() ? 0 : chat.message_end.back());
    chat.message_end.push_back(chat.text.size());
    made.answers.push_back(AnyAnswer(tokenizer, random));
    std::string said = tokenizer.Decode(made.answers.back(), SpecialTokens::kShow);
    // A byte-level vocabulary says the space itself.
    write(said.starts_with(' ') ? "" : " ", false);
    places.emplace_back(chat.text.size(), chat.text.size() + said.size());
    write(said, true);
    write(" " + eos, false);
    chat.message_begin.push_back(chat.message_end.empty() ? 0 : chat.message_end.back());
    chat.message_end.push_back(chat.text.size());
  }
  for (size_t i = 0; i < places.size(); ++i) {
    made.known.push_back({places[i].first, places[i].second, made.answers[i]});
  }
  return made;
}

// Counts the answers that stand in the prompt with their ids.
size_t CountExact(const std::vector<TokenId>& ids, const AnsweredChat& chat) {
  return static_cast<size_t>(std::ranges::count_if(
      chat.answers, [&](const auto& answer) { return !std::ranges::search(ids, answer).empty(); }));
}

TEST(ChatPrompt, AnswersStandWithTheirIdsAlsoWhereATokenizerAddsSpaces) {
  size_t tokenizers = 0;
  for (const char* folder :
       {"goldens/llama-mha", "goldens/phi3", "goldens/mixtral", "goldens/gemma2", "goldens/qwen2",
        "data/hf-tokenizers/llama2", "data/hf-tokenizers/phi-3-mini", "data/story656k"}) {
    const auto path = std::filesystem::path(KVASIR_SHARED_DIR) / folder;
    if (!std::filesystem::exists(path)) continue;
    const auto tokenizer = Tokenizer::Parse(ReadFile(path / "tokenizer.json"),
                                            ReadFile(path / "tokenizer_config.json"));
    ASSERT_TRUE(tokenizer) << folder;
    ++tokenizers;
    std::string marks[2];
    for (uint32_t id = 0, found = 0; id < (*tokenizer)->vocab_size() && found < 2; ++id) {
      const auto text = (*tokenizer)->TokenText(static_cast<TokenId>(id));
      if ((*tokenizer)->IsSpecial(static_cast<TokenId>(id)) && text != "<unk>") {
        marks[found++] = text;
      }
    }
    ModelView model;
    model.tokenizer = tokenizer->get();
    model.ctx_size = 4096;
    PieceStore store(1 << 20, 7);
    Random random(3);
    for (int round = 0; round < 40; ++round) {
      const AnsweredChat chat = MakeChat(**tokenizer, marks[0], marks[1], random);
      model.pieces = PieceSpace();
      const auto plain = EncodeChat(chat.chat, model);
      const auto exact = EncodeChat(chat.chat, model, chat.known);
      ASSERT_TRUE(plain && exact);
      EXPECT_EQ(CountExact(exact->ids, chat), chat.answers.size()) << folder << chat.chat.text;
      EXPECT_EQ((*tokenizer)->Decode(exact->ids, SpecialTokens::kShow),
                (*tokenizer)->Decode(plain->ids, SpecialTokens::kShow));
      model.pieces = store.SpaceOf("");
      for (int again = 0; again < 2; ++again) {
        EXPECT_EQ(EncodeChat(chat.chat, model)->ids, plain->ids);
        const auto kept = EncodeChat(chat.chat, model, chat.known);
        EXPECT_EQ(kept->ids, exact->ids);
        EXPECT_EQ(kept->message_ends, exact->message_ends);
      }
    }
  }
  if (tokenizers == 0) KV_NEEDS(std::string(KVASIR_SHARED_DIR) + "/data/hf-tokenizers");
  EXPECT_GT(tokenizers, 0U);
  std::printf("%zu tokenizers\n", tokenizers);
}

// Every message's text ends in the token that the ends name, and no earlier one reaches it; the
// next one begins in the token that the begins name.
TEST(ChatPrompt, MessagesEndWhereTheirTextDoes) {
  const auto path = std::filesystem::path(KVASIR_SOURCE_DIR) / "models/kvasir-demo";
  const auto tokenizer =
      Tokenizer::Parse(ReadFile(path / "tokenizer.json"), ReadFile(path / "tokenizer_config.json"));
  ASSERT_TRUE(tokenizer);
  ModelView model;
  model.tokenizer = tokenizer->get();
  model.ctx_size = 4096;
  Random random(9);
  for (int round = 0; round < 50; ++round) {
    RenderedChat chat;
    chat.written = std::make_shared<const std::string>("");
    // Messages with a special token between, inside, or none; " remember" is one token.
    for (size_t i = 1 + random.Below(6); i > 0; --i) {
      for (size_t words = 1 + random.Below(4); words > 0; --words) {
        chat.text += random.Below(4) == 0   ? "<|end|>"
                     : random.Below(2) == 0 ? " ein W\u00f6rt"
                     : random.Below(2) == 0 ? " rem"
                                            : "ember";
      }
      chat.message_begin.push_back(chat.message_end.empty() ? 0 : chat.message_end.back());
      chat.message_end.push_back(chat.text.size());
    }
    const auto prompt = EncodeChat(chat, model);
    ASSERT_TRUE(prompt);
    ASSERT_EQ(prompt->message_ends.size(), chat.message_end.size());
    for (size_t i = 0; i < chat.message_end.size(); ++i) {
      const auto ids = std::span<const TokenId>(prompt->ids);
      const uint32_t end = prompt->message_ends[i];
      EXPECT_GE((*tokenizer)->Decode(ids.first(end), SpecialTokens::kShow).size(),
                chat.message_end[i]);
      EXPECT_LT((*tokenizer)->Decode(ids.first(end - 1), SpecialTokens::kShow).size(),
                chat.message_end[i]);
      const uint32_t begin = prompt->message_begins[i];
      EXPECT_LE((*tokenizer)->Decode(ids.first(begin), SpecialTokens::kShow).size(),
                chat.message_begin[i]);
      EXPECT_GT((*tokenizer)->Decode(ids.first(begin + 1), SpecialTokens::kShow).size(),
                chat.message_begin[i]);
    }
  }
}

}  // namespace
}  // namespace kvasir
