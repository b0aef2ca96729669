#include "api/rewritten_history.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "http/json_body.h"

namespace kvasir {
namespace {

constexpr std::string_view kKeepsHistory =
    "{% for m in messages %}[{{ m.content }}]{% endfor %}"
    "{% if add_generation_prompt %}[{% endif %}";
// Takes thoughts out of all answers but the last message.
constexpr std::string_view kForgetsThoughts =
    "{% for m in messages %}[{{ m.content if m.role == 'user' or loop.last else "
    "m.content.split('</think>')[-1] }}]{% endfor %}{% if add_generation_prompt %}[{% endif %}";

// A chat with a template: messages of the user and answers by turns.
class WrittenChat {
 public:
  WrittenChat(std::string_view source, const std::vector<std::string>& contents)
      : chat_template_(*ChatTemplate::Parse(source)) {
    model_.chat_template = chat_template_.get();
    std::string messages;
    for (size_t i = 0; i < contents.size(); ++i) {
      messages += fmt::format(R"({}{{"role":"{}","content":"{}"}})", i == 0 ? "" : ",",
                              i % 2 == 0 ? "user" : "assistant", contents[i]);
    }
    body_ = *ParseBody(R"({"continue_final_message":false,"messages":[)" + messages + "]}");
  }

  std::optional<size_t> Rewritten(size_t answer, std::string_view written = {}) {
    JsonFields fields(body_.fields);
    const auto whole = RenderMessages(fields, &body_.tree, model_);
    EXPECT_TRUE(whole) << whole.error().text();
    return whole ? FindRewritten(body_.fields, answer, *whole, model_, &body_.tree, written)
                 : std::nullopt;
  }
  bool IsRewritten(size_t message, const std::vector<std::string_view>& written = {}) {
    return IsRewrittenFrom(body_.fields, message, model_, &body_.tree, written);
  }

 private:
  const std::unique_ptr<const ChatTemplate> chat_template_;
  ModelView model_;
  JsonBody body_;
};

TEST(RewrittenHistory, AnAnswerThatStaysIsNotRewritten) {
  WrittenChat chat(kKeepsHistory, {"q", "<think>t</think>a", "r", "b", "s"});
  EXPECT_EQ(chat.Rewritten(1), std::nullopt);
  EXPECT_EQ(chat.Rewritten(3), std::nullopt);
  for (size_t message = 0; message < 5; ++message) EXPECT_FALSE(chat.IsRewritten(message));
}

TEST(RewrittenHistory, IsFoundInTheMessageThatChanged) {
  WrittenChat chat(kForgetsThoughts, {"q", "a", "r", "<think>t</think>b", "s"});
  EXPECT_EQ(chat.Rewritten(1), std::nullopt) << "it has no thoughts";
  EXPECT_EQ(chat.Rewritten(3), 3u);
  for (const size_t message : {0u, 1u, 2u, 4u, 5u, 1000u}) {
    EXPECT_FALSE(chat.IsRewritten(message)) << message;
  }
  EXPECT_TRUE(chat.IsRewritten(3));
}

TEST(RewrittenHistory, TheLastMessageIsNotRewrittenYet) {
  WrittenChat chat(kForgetsThoughts, {"q", "<think>t</think>b"});
  EXPECT_EQ(chat.Rewritten(1), std::nullopt);
  EXPECT_FALSE(chat.IsRewritten(1));
}

TEST(RewrittenHistory, WhatWasWrittenCountsAndNotWhatIsSaid) {
  WrittenChat chat(kKeepsHistory, {"q", "a", "r"});
  EXPECT_EQ(chat.Rewritten(1, "a"), std::nullopt);
  EXPECT_EQ(chat.Rewritten(1, "<think>t</think>a"), 1u);
  EXPECT_TRUE(chat.IsRewritten(1, {"", "<think>t</think>a"}));
  EXPECT_FALSE(chat.IsRewritten(1, {"", "a"}));
  EXPECT_FALSE(chat.IsRewritten(1, {"q"})) << "without a text it is what the message says";
}

TEST(RewrittenHistory, AnAnswerThatWentOnAfterTheLastMessageChangesWhatComesNext) {
  WrittenChat chat(
      "{% for m in messages %}[{{ m.content }}{% if not loop.last %}]{% endif %}"
      "{% endfor %}{% if add_generation_prompt %}{% if messages[-1].role == 'user' %}"
      "][{% endif %}{% endif %}",
      {"q", "a"});
  EXPECT_EQ(chat.Rewritten(1, "a and more"), 2u);
}

TEST(RewrittenHistory, AChatWithoutAnswersHasNone) {
  WrittenChat chat(kForgetsThoughts, {"q"});
  EXPECT_FALSE(chat.IsRewritten(0));
  EXPECT_FALSE(chat.IsRewritten(1));
  WrittenChat empty(kForgetsThoughts, {});
  EXPECT_FALSE(empty.IsRewritten(0));
}

TEST(RewrittenHistory, OnlyTheLastAnswersAreTried) {
  std::vector<std::string> contents;
  for (size_t turn = 0; turn <= kMostTurns; ++turn) {
    contents.push_back("q");
    contents.push_back("<think>t</think>a");
  }
  contents.push_back("last");
  WrittenChat chat(kForgetsThoughts, contents);
  EXPECT_FALSE(chat.IsRewritten(1)) << "one answer too far back";
  EXPECT_TRUE(chat.IsRewritten(3));
  EXPECT_TRUE(chat.IsRewritten(contents.size() - 2));
}

TEST(RewrittenHistory, WhatCannotBeRenderedIsNotRewritten) {
  WrittenChat chat(
      "{% if messages | length < 3 %}{{ raise_exception('short') }}{% endif %}"
      "{% for m in messages %}[{{ m.content if loop.last }}]{% endfor %}",
      {"q", "a", "r"});
  EXPECT_EQ(chat.Rewritten(1), std::nullopt);
  EXPECT_FALSE(chat.IsRewritten(1));
  WrittenChat whole("{{ raise_exception('none') }}", {"q", "a", "r"});
  EXPECT_FALSE(whole.IsRewritten(1));
}

std::optional<bool> IsStable(std::string_view source) {
  const auto chat_template = *ChatTemplate::Parse(source);
  ModelView model;
  model.chat_template = chat_template.get();
  return IsPrefixStable(model);
}

TEST(RewrittenHistory, ATemplateIsTriedWithThoughtsOfSeveralModels) {
  EXPECT_EQ(IsPrefixStable(ModelView()), std::nullopt) << "the model has no template";
  EXPECT_EQ(IsStable("{{ raise_exception('none') }}"), std::nullopt);
  EXPECT_EQ(IsStable(kKeepsHistory), true);
  EXPECT_EQ(IsStable(kForgetsThoughts), false);
  for (const char* mark : {"[THINK]", "<|channel|>final"}) {
    EXPECT_EQ(IsStable(fmt::format("{{% for m in messages %}}[{{{{ m.content if loop.last else "
                                   "m.content.split('{}')[-1] }}}}]{{% endfor %}}"
                                   "{{% if add_generation_prompt %}}[{{% endif %}}",
                                   mark)),
              false)
        << mark;
  }
  EXPECT_EQ(IsStable("{% if tools %}{{ raise_exception('no tools') }}{% endif %}" +
                     std::string(kKeepsHistory)),
            true)
      << "chats that can be rendered count";
}

}  // namespace
}  // namespace kvasir
