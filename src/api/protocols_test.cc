// The same conversation has the same prompt by whatever protocol it comes.
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <random>

#include "api/anthropic_request.h"
#include "api/ollama_request.h"
#include "api/openai_request.h"
#include "api/responses_request.h"
#include "base/base64.h"
#include "base/bytes_for_test.h"
#include "base/fault.h"
#include "base/rounds_for_test.h"
#include "server/fake_engine_for_test.h"
#include "source_paths.h"

namespace kvasir {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr std::string_view kStrict =
    "{% for m in messages %}{% set before = messages[loop.index0 - 1].role if loop.index0 else '' "
    "%}"
    "{% if m.role == 'system' and loop.index0 > 0 %}{{ raise_exception('late') }}{% endif %}"
    "{% if m.role in ['user', 'assistant'] and m.role == before %}{{ raise_exception('twice') }}"
    "{% endif %}[{{ m.role }}]{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<{{ c.function.name }} {{ c.function.arguments | tojson }}>"
    "{% endfor %}{% endfor %}{{ tools | tojson if tools else '' }}";
constexpr std::string_view kThinks =
    "{% for m in messages %}<{{ m.role }}>{% if m.reasoning_content %}<think>{{ "
    "m.reasoning_content "
    "}}</think>{% endif %}{{ m.content }}{% for c in m.tool_calls or [] %}"
    "{{ c.function | tojson }}{% endfor %}{% endfor %}{{ tools | tojson if tools else '' }}"
    "{% if add_generation_prompt %}<assistant>{% endif %}";

// A turn of a conversation, before a protocol gives it a form.
struct SaidTurn {
  std::string role;
  std::vector<std::string> texts;
  std::string thought;
  std::vector<std::pair<std::string, ordered_json>> calls;   // id and input
  std::vector<std::pair<std::string, std::string>> results;  // id and text
};

class Conversation {
 public:
  explicit Conversation(uint32_t seed) : random_(seed) {
    if (Once(2)) system_ = Texts(1 + random_() % 3);
    has_tools_ = Once(2);
    const size_t num_turns = 1 + random_() % 6;
    for (size_t i = 0; i < num_turns; ++i) AddTurns();
    turns_.push_back({.role = "user", .texts = Texts(1)});
  }

  ordered_json ForChat(bool joins) const;
  ordered_json ForMessages() const;
  ordered_json ForResponses() const;
  ordered_json ForOllama() const;

 private:
  bool Once(uint32_t in) { return random_() % in == 0; }
  std::string Words() {
    static constexpr const char* kWords[] = {"blue",    "drawer",  "Größe", "\"quoted\"",
                                             "a\nline", "<|end|>", "漢字",  "{\"x\": 1}",
                                             "  ",      "."};
    std::string text = kWords[random_() % 3];
    for (uint32_t i = random_() % 6; i > 0; --i) text.append(" ").append(kWords[random_() % 10]);
    return text;
  }
  std::vector<std::string> Texts(size_t count) {
    std::vector<std::string> texts;
    while (count-- > 0) texts.push_back(Words());
    return texts;
  }
  void AddTurns() {
    turns_.push_back({.role = "user", .texts = Texts(1 + random_() % 2)});
    if (Once(5)) turns_.push_back({.role = "user", .texts = Texts(1)});
    if (Once(4)) turns_.push_back({.role = "system", .texts = Texts(1)});
    SaidTurn answer{.role = "assistant", .texts = Texts(random_() % 3)};
    if (Once(3)) answer.thought = Words();
    if (has_tools_ && Once(2)) {
      SaidTurn results{.role = "user"};
      for (size_t i = 0; i < 1 + random_() % 3; ++i) {
        const std::string id = "toolu_" + std::to_string(++num_calls_);
        ordered_json input = ordered_json::object();
        for (const char* key : {"z", "city", "a"}) {
          if (Once(2)) input[key] = Words();
          if (Once(4)) input[key] = {1, -2.5, nullptr, true, {{"deep", ordered_json::array()}}};
        }
        answer.calls.emplace_back(id, std::move(input));
        results.results.emplace_back(id, Words());
      }
      results.texts = Texts(random_() % 2);
      turns_.push_back(std::move(answer));
      turns_.push_back(std::move(results));
      return;
    }
    if (answer.texts.empty()) answer.texts = Texts(1);
    turns_.push_back(std::move(answer));
  }

  std::minstd_rand random_;
  std::vector<std::string> system_;
  std::vector<SaidTurn> turns_;
  bool has_tools_ = false;
  int num_calls_ = 0;
};

std::string Spaced(const ordered_json& value) {
  JsonTree tree;
  return SpacedTextOf(*tree.Parse(value.dump()));
}

std::string Lines(const std::vector<std::string>& texts) {
  std::string joined;
  for (const std::string& text : texts) joined.append(joined.empty() ? "" : "\n").append(text);
  return joined;
}

const ordered_json kSchema = {{"type", "object"}, {"properties", {{"city", {{"type", "string"}}}}}};

// Returns a chat completion as a client writes it. `joins`: for a template that takes neither a
// late system message nor two of a role in a row.
ordered_json Conversation::ForChat(bool joins) const {
  ordered_json messages = ordered_json::array();
  const auto add = [&](ordered_json message) {
    const std::string role = message["role"];
    const bool follows = !messages.empty() && messages.back()["role"] == role;
    if (!joins || !follows || role == "tool") return messages.push_back(std::move(message));
    ordered_json& last = messages.back();
    const std::string text = message["content"], before = last["content"];
    last["content"] = before + (before.empty() || text.empty() ? "" : "\n") + text;
  };
  if (!system_.empty()) add({{"role", "system"}, {"content", Lines(system_)}});
  for (const SaidTurn& turn : turns_) {
    for (const auto& [id, text] : turn.results) {
      add({{"role", "tool"}, {"tool_call_id", id}, {"content", text}});
    }
    if (!turn.results.empty() && turn.texts.empty()) continue;
    if (turn.role == "system" && joins) {
      add({{"role", "user"}, {"content", "<system>\n" + Lines(turn.texts) + "\n</system>"}});
      continue;
    }
    ordered_json message = {{"role", turn.role}, {"content", Lines(turn.texts)}};
    if (!turn.thought.empty()) message["reasoning_content"] = turn.thought;
    for (const auto& [id, input] : turn.calls) {
      message["tool_calls"].push_back(
          {{"id", id},
           {"type", "function"},
           {"function", {{"name", "weather"}, {"arguments", Spaced(input)}}}});
    }
    add(std::move(message));
  }
  ordered_json body = {{"messages", std::move(messages)}};
  if (has_tools_) {
    body["tools"] = {
        {{"type", "function"}, {"function", {{"name", "weather"}, {"parameters", kSchema}}}}};
  }
  return body;
}

ordered_json Conversation::ForMessages() const {
  ordered_json messages = ordered_json::array();
  const auto blocks_of = [](const std::vector<std::string>& texts) {
    ordered_json blocks = ordered_json::array();
    for (const std::string& text : texts) blocks.push_back({{"type", "text"}, {"text", text}});
    return blocks;
  };
  for (const SaidTurn& turn : turns_) {
    ordered_json blocks = ordered_json::array();
    for (const auto& [id, text] : turn.results) {
      blocks.push_back({{"type", "tool_result"}, {"tool_use_id", id}, {"content", text}});
    }
    if (!turn.thought.empty()) {
      blocks.push_back({{"type", "thinking"}, {"thinking", turn.thought}, {"signature", "s"}});
    }
    for (const ordered_json& block : blocks_of(turn.texts)) blocks.push_back(block);
    for (const auto& [id, input] : turn.calls) {
      blocks.push_back({{"type", "tool_use"}, {"id", id}, {"name", "weather"}, {"input", input}});
    }
    const bool is_text = blocks.size() == 1 && blocks[0]["type"] == "text";
    messages.push_back({{"role", turn.role}, {"content", is_text ? blocks[0]["text"] : blocks}});
  }
  ordered_json body = {{"messages", std::move(messages)}, {"max_tokens", 9}};
  if (!system_.empty()) {
    body["system"] = blocks_of(system_);
    const ordered_json header = {{"type", "text"}, {"text", "x-anthropic-billing-header: 1ad"}};
    body["system"].insert(body["system"].begin(), header);
  }
  if (has_tools_) body["tools"] = {{{"name", "weather"}, {"input_schema", kSchema}}};
  return body;
}

ordered_json Conversation::ForResponses() const {
  ordered_json items = ordered_json::array();
  for (const SaidTurn& turn : turns_) {
    for (const auto& [id, text] : turn.results) {
      items.push_back({{"type", "function_call_output"}, {"call_id", id}, {"output", text}});
    }
    if (!turn.thought.empty()) {
      const bool encoded = turn.texts.size() % 2 == 1;
      items.push_back({{"type", "reasoning"}, {"summary", ordered_json::array()}});
      if (encoded) {
        items.back()["encrypted_content"] = EncodeBase64(turn.thought);
      } else {
        items.back()["content"] = {{{"type", "reasoning_text"}, {"text", turn.thought}}};
      }
    }
    if (!turn.texts.empty()) {
      ordered_json parts = ordered_json::array();
      for (const std::string& text : turn.texts) {
        parts.push_back(
            {{"type", turn.role == "assistant" ? "output_text" : "input_text"}, {"text", text}});
      }
      const std::string role = turn.role == "system" ? "developer" : turn.role;
      items.push_back({{"role", role}, {"content", std::move(parts)}});
    }
    for (const auto& [id, input] : turn.calls) {
      items.push_back({{"type", "function_call"},
                       {"call_id", id},
                       {"name", "weather"},
                       {"arguments", Spaced(input)}});
    }
  }
  ordered_json body = {{"input", std::move(items)}};
  if (!system_.empty()) body["instructions"] = Lines(system_);
  if (has_tools_) {
    body["tools"] = {{{"type", "web_search"}},
                     {{"type", "function"}, {"name", "weather"}, {"parameters", kSchema}}};
  }
  return body;
}

ordered_json Conversation::ForOllama() const {
  ordered_json messages = ordered_json::array();
  if (!system_.empty()) messages.push_back({{"role", "system"}, {"content", Lines(system_)}});
  for (const SaidTurn& turn : turns_) {
    for (const auto& [id, text] : turn.results) {
      messages.push_back({{"role", "tool"}, {"tool_name", "weather"}, {"content", text}});
    }
    if (!turn.results.empty() && turn.texts.empty()) continue;
    ordered_json message = {{"role", turn.role}, {"content", Lines(turn.texts)}};
    if (!turn.thought.empty()) message["thinking"] = turn.thought;
    for (const auto& [id, input] : turn.calls) {
      message["tool_calls"].push_back({{"function", {{"name", "weather"}, {"arguments", input}}}});
    }
    messages.push_back(std::move(message));
  }
  ordered_json body = {{"model", "m:latest"}, {"messages", std::move(messages)}};
  if (has_tools_) {
    body["tools"] = {
        {{"type", "function"}, {"function", {{"name", "weather"}, {"parameters", kSchema}}}}};
  }
  return body;
}

bool IsOfAnswer(const ordered_json& item) {
  return item.value("role", "") == "assistant" || item.value("type", "") == "reasoning" ||
         item.value("type", "") == "function_call";
}

// Goes on from each answer of a conversation as from a stored response: the prompt must be that of
// the whole. Returns how often.
size_t CompareChains(const ordered_json& whole, const ModelView& model) {
  std::shared_ptr<const SessionState> previous;
  const FindResponse find = [&](std::string_view) -> Result<std::shared_ptr<const SessionState>> {
    return previous;
  };
  const auto all = ParseResponsesRequest(whole.dump(), model, find);
  if (!all || !all->to_store) return 0;  // it ends with an answer
  const SessionState& state = all->to_store->state;
  const ordered_json& items = whole["input"];
  size_t compared = 0, message = 0;
  for (size_t i = 1; i < items.size(); ++i) {
    if (IsOfAnswer(items[i]) || !IsOfAnswer(items[i - 1])) continue;
    while (state.messages[message]->role != "assistant") ++message;
    SessionState first = state;
    first.messages.resize(++message);
    previous = std::make_shared<const SessionState>(std::move(first));
    ordered_json body = whole;
    body["previous_response_id"] = "resp_1";
    body["input"] = ordered_json(items.begin() + static_cast<ptrdiff_t>(i), items.end());
    const auto next = ParseResponsesRequest(body.dump(), model, find);
    EXPECT_TRUE(next) << next.error().text() << "\n" << body;
    if (!next) return compared;
    EXPECT_EQ(next->call.requests[0].prompt, all->call.requests[0].prompt) << whole << body;
    EXPECT_EQ(next->call.requests[0].message_ends, all->call.requests[0].message_ends);
    for (size_t k = 0; k < message; ++k) {
      EXPECT_EQ(next->to_store->state.messages[k], state.messages[k]) << "it is shared: " << k;
    }
    // Without instructions, or with other ones, all else stays.
    body["instructions"] = "Other ones.";
    ordered_json others = whole;
    others["instructions"] = "Other ones.";
    const auto other = ParseResponsesRequest(body.dump(), model, find);
    const auto expected = ParseResponsesRequest(others.dump(), model);
    EXPECT_TRUE(other && expected);
    if (!other || !expected) return compared;
    EXPECT_EQ(other->call.requests[0].prompt, expected->call.requests[0].prompt) << others << body;
    ++compared;
  }
  return compared;
}

// Returns a model of the tiny tokenizer with a template, which outlive it.
ModelView ViewOf(const Tokenizer& tokenizer, const ChatTemplate& chat_template) {
  ModelView model;
  model.names = {"m"};
  model.tokenizer = &tokenizer;
  model.chat_template = &chat_template;
  model.vocab_size = 258;
  model.ctx_size = 1 << 20;
  return model;
}

TEST(Protocols, GiveAConversationTheSamePrompt) {
  const auto tokenizer = Tokenizer::Parse(TinyTokenizerJson(), kTinyTokenizerConfig);
  const std::filesystem::path cases = std::filesystem::path(KVASIR_SOURCE_DIR) / "tests/data/cases";
  const std::pair<std::string, bool> sources[] = {
      {std::string(kTinyTemplate), false},
      {std::string(kThinks), false},
      {std::string(kStrict), true},
      {ReadFile(cases / "arguments-items.jinja"), false},
      {ReadFile(cases / "calls-when-null.jinja"), false}};
  constexpr uint32_t kRounds = Rounds(400, 15);
  size_t compared = 0, with_calls = 0, chained = 0;
  for (const auto& [source, joins] : sources) {
    SCOPED_TRACE(source);
    const auto chat_template = ChatTemplate::Parse(source);
    ASSERT_TRUE(chat_template);
    EXPECT_EQ((*chat_template)->form().takes_late_system, !joins);
    EXPECT_EQ((*chat_template)->form().takes_same_role_twice, !joins);
    const ModelView model = ViewOf(**tokenizer, **chat_template);
    for (uint32_t seed = 1; seed <= kRounds; ++seed) {
      const Conversation one(seed);
      const std::string chat = one.ForChat(joins).dump(), asked = one.ForMessages().dump();
      const auto ours = ParseChatRequest(chat, model);
      std::string translated;
      const auto theirs = ParseMessagesRequest(asked, model, &translated);
      ASSERT_TRUE(ours) << ours.error().text() << "\n" << chat;
      ASSERT_TRUE(theirs) << theirs.error().text() << "\n" << asked;
      EXPECT_EQ(ours->requests[0].prompt, theirs->requests[0].prompt) << chat << "\n" << asked;
      EXPECT_EQ(ours->requests[0].message_ends, theirs->requests[0].message_ends);
      const auto again = ParseChatRequest(translated, model);
      ASSERT_TRUE(again) << again.error().text();
      EXPECT_EQ(again->requests[0].prompt, theirs->requests[0].prompt) << translated;
      const std::string items = one.ForResponses().dump();
      const auto response = ParseResponsesRequest(items, model);
      ASSERT_TRUE(response) << response.error().text() << "\n" << items;
      EXPECT_EQ(ours->requests[0].prompt, response->call.requests[0].prompt) << chat << "\n"
                                                                             << items;
      chained += CompareChains(one.ForResponses(), model);
      const std::string lines = one.ForOllama().dump();
      const auto ollama = ParseOllamaChat(lines, model, &translated);
      ASSERT_TRUE(ollama) << ollama.error().text() << "\n" << lines;
      EXPECT_EQ(ours->requests[0].prompt, ollama->requests[0].prompt) << chat << "\n" << lines;
      const auto tokens = CountMessagesTokens(asked, model);
      ASSERT_TRUE(tokens);
      EXPECT_EQ(*tokens, ours->requests[0].prompt.size());
      ++compared;
      with_calls += chat.find("tool_calls") != chat.npos;
    }
  }
  EXPECT_EQ(compared, 5 * kRounds);
  EXPECT_GT(with_calls, kRounds);
  EXPECT_GT(chained, 2 * kRounds);
}

// Tells whether a body of messages has another prompt than a chat completion.
bool DifferInPrompt(const char* messages, const char* chat, std::string_view source) {
  const auto tokenizer = Tokenizer::Parse(TinyTokenizerJson(), kTinyTokenizerConfig);
  const auto chat_template = ChatTemplate::Parse(std::string(source));
  const ModelView model = ViewOf(**tokenizer, **chat_template);
  std::string translated;
  const auto theirs = ParseMessagesRequest(messages, model, &translated);
  const auto ours = ParseChatRequest(chat, model);
  EXPECT_TRUE(theirs && ours);
  return !theirs || !ours || theirs->requests[0].prompt != ours->requests[0].prompt;
}

constexpr std::string_view kShowsAll = "{% for m in messages %}{{ m | tojson }}{% endfor %}";
constexpr const char* kLateSystem = R"({"max_tokens":1,"system":"s","messages":[
    {"role":"user","content":"a"},{"role":"system","content":"late"}]})";
constexpr const char* kLateInChat = R"({"messages":[{"role":"system","content":"s"},
    {"role":"user","content":"a"},{"role":"system","content":"late"}]})";
constexpr const char* kMarked = R"({"max_tokens":1,"messages":[{"role":"user","content":[
    {"type":"text","text":"a","cache_control":{"type":"ephemeral"}}]}]})";
constexpr const char* kUnmarked = R"({"messages":[{"role":"user","content":"a"}]})";

TEST(Protocols, ALateSystemMessageAndAMarkStandWhereTheyAre) {
  EXPECT_FALSE(DifferInPrompt(kLateSystem, kLateInChat, kShowsAll));
  EXPECT_FALSE(DifferInPrompt(kMarked, kUnmarked, kShowsAll));
}

TEST(Protocols, MutantsThatHoistAndThatShowMarksAreFound) {
  InjectFault(Fault::kSystemHoisted);
  EXPECT_TRUE(DifferInPrompt(kLateSystem, kLateInChat, kShowsAll));
  InjectFault(Fault::kMarkInPrompt);
  EXPECT_TRUE(DifferInPrompt(kMarked, kUnmarked, kShowsAll));
  InjectFault(Fault::kNone);
}

}  // namespace
}  // namespace kvasir
