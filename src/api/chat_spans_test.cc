#include "api/chat_spans.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "server/fake_engine_for_test.h"

namespace kvasir {
namespace {

using nlohmann::json;

struct SpannedText {
  std::string text;  // of the span's tokens in the prompt
  std::string error;
};

// Encodes a chat of one message: words, a span, and a question. `normalizer`: of the tokenizer.
SpannedText SpannedBy(const std::string& source, const std::string& span,
                      const std::string& normalizer = "null") {
  std::string tokenizer_json = TinyTokenizerJson();
  const std::string null_one = R"("normalizer":null)";
  tokenizer_json.replace(tokenizer_json.find(null_one), null_one.size(),
                         R"("normalizer":)" + normalizer);
  const auto tokenizer = Tokenizer::Parse(tokenizer_json, kTinyTokenizerConfig);
  const auto chat_template = ChatTemplate::Parse(source);
  if (!tokenizer || !chat_template) return {"", "no tokenizer or template"};
  ModelView model;
  model.tokenizer = tokenizer->get();
  model.chat_template = chat_template->get();
  model.vocab_size = 258;
  model.ctx_size = 4096;
  const json parts = {{{"type", "text"}, {"text", "Notes: "}},
                      {{"type", "text"}, {"text", span}, {"span", true}},
                      {{"type", "text"}, {"text", " Who?"}}};
  auto body = ParseBody(json{{"messages", {{{"role", "user"}, {"content", parts}}}}}.dump());
  JsonFields fields(body->fields);
  const auto chat = RenderMessages(fields, &body->tree, model);
  if (!chat) return {"", chat.error().text()};
  const auto spanned = EncodeSpans(fields, *chat, model);
  if (!spanned) return {"", spanned.error().text()};
  const auto [begin, end] = spanned->spans.at(0);
  const auto ids = std::span(spanned->prompt.ids).subspan(begin, end - begin);
  return {(*tokenizer)->Decode(ids, SpecialTokens::kShow), ""};
}

constexpr const char* kPlain = "{% for m in messages %}[{{ m.content }}]{% endfor %}";

TEST(ChatSpans, ASpanIsTheTokensOfItsText) {
  EXPECT_EQ(SpannedBy(kPlain, "Anna has  the key. ").text, "Anna has  the key. ");
}

TEST(ChatSpans, ASpanThatTheTemplateChangesIsRefused) {
  const std::string upper = "{% for m in messages %}[{{ m.content | upper }}]{% endfor %}";
  EXPECT_EQ(SpannedBy(upper, "Anna").error,
            "messages[0].content[1]: the chat template does not show this span as it is; leave out "
            "its span, or what the template changes of its text");
  EXPECT_NE(SpannedBy("[{{ messages | length }}]", "Anna").error, "");
}

TEST(ChatSpans, ASpanWhoseTokensReadOtherwiseAloneIsRefused) {
  const std::string strips = R"({"type":"Strip","strip_left":true,"strip_right":true})";
  EXPECT_EQ(SpannedBy(kPlain, " Anna ", strips).error,
            "messages[0].content[1]: the tokens of this span alone read otherwise in the chat; "
            "leave out its span");
}

}  // namespace
}  // namespace kvasir
