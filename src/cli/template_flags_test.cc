#include "cli/template_flags.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "chat/builtin_templates.h"

namespace kvasir::cli {
namespace {

class TemplateFlagsTest : public testing::Test {
 protected:
  ~TemplateFlagsTest() override { std::filesystem::remove(path_); }

  static Args Given(const std::string& name, std::string value) {
    Args args;
    args.Set(name, {std::move(value)});
    return args;
  }
  // Reads the template from a file with these bytes.
  Result<std::optional<std::string>> ReadFile(std::string_view bytes) const {
    std::ofstream(path_, std::ios::binary) << bytes;
    return ReadTemplate(Given("chat-template-file", path_));
  }
  template <typename T>
  static std::string ComplaintOf(const Result<T>& result) {
    if (result) return "no error";
    EXPECT_EQ(result.error().code, Code::kInvalidArgument);
    return result.error().message;
  }

  const std::string path_ = std::filesystem::path(testing::TempDir()) /
                            ("template_flags." + std::to_string(getpid()) + ".jinja");
};

TEST_F(TemplateFlagsTest, WithoutAFlagThereIsNoTemplateAndNoVariables) {
  const auto text = ReadTemplate(Args());
  ASSERT_TRUE(text) << text.error().message;
  EXPECT_EQ(*text, std::nullopt);
  EXPECT_EQ(ReadTemplateVariables(Args()), "");
  const Result<TemplateChoice> choice = ChooseTemplate(Args());
  ASSERT_TRUE(choice) << choice.error().message;
  EXPECT_EQ(choice->own, nullptr);
}

TEST_F(TemplateFlagsTest, ADateIsWrittenInOneWay) {
  EXPECT_EQ(ReadTemplateDate(Args()), 0);
  for (const char* right : {"1970-01-02", "2024-02-29", "2026-03-31", "9999-12-31"}) {
    EXPECT_GT(*ReadTemplateDate(Given("template-date", right)), 0) << right;
  }
  for (const char* wrong :
       {"", "today", "2026-1-02", " 2026-1-02", "2026- 1-02", "2026-1- 02", "2023-02-29",
        "2026-13-01", "2026-00-10", "2026-01-02x", "1960-01-01", "-2026-1-02", "20260102"}) {
    const std::string message = ComplaintOf(ReadTemplateDate(Given("template-date", wrong)));
    EXPECT_TRUE(message.starts_with("--template-date: '" + std::string(wrong) + "' is not a date"))
        << message;
  }
}

TEST_F(TemplateFlagsTest, ATemplateIsANameOrItsText) {
  EXPECT_EQ(ReadTemplate(Given("chat-template", "chatml")),
            std::string(*BuiltinTemplate("chatml")));
  EXPECT_EQ(ReadTemplate(Given("chat-template", "{{ messages }}")), "{{ messages }}");
  EXPECT_NE(ChooseTemplate(Given("chat-template", "{% if x %}{% endif %}"))->own, nullptr);
  for (const std::string text : {"", "chatm", "ChatML", "hello", "{ x }"}) {
    const std::string message = ComplaintOf(ReadTemplate(Given("chat-template", text)));
    EXPECT_TRUE(
        message.starts_with("--chat-template: '" + text + "' is neither a known name (chatml, "))
        << message;
    EXPECT_TRUE(message.ends_with("nor the text of a template, which has {{ or {%")) << message;
  }
  const std::string message = ComplaintOf(ReadTemplate(Given("chat-template", "{% if")));
  EXPECT_TRUE(message.starts_with("--chat-template: ")) << message;
  EXPECT_NE(message.find("line 1, column"), message.npos) << message;
}

TEST_F(TemplateFlagsTest, ATemplateMayBeAFileWhoseByteOrderMarkIsLeftOut) {
  EXPECT_EQ(ReadFile("\xef\xbb\xbf{{ messages }}\n"), "{{ messages }}\n");
  EXPECT_EQ(ReadFile("no variables"), "no variables");  // a name is never meant
  EXPECT_EQ(ReadFile("chatml"), "chatml");
}

TEST_F(TemplateFlagsTest, AFileThatIsNoTemplateIsRefused) {
  const std::string begin = "--chat-template-file: " + path_ + ": ";
  const std::string empty =
      begin + "the file is empty; give a template, or leave the flag out for the model's own";
  for (const std::string_view bytes : {"", " \r\n\t", "\xef\xbb\xbf\n"}) {
    EXPECT_EQ(ComplaintOf(ReadFile(bytes)), empty);
  }
  EXPECT_EQ(ComplaintOf(ReadFile("a\xff")), begin + "not UTF-8 at byte 1");
  const std::string message = ComplaintOf(ReadFile("x\n{% if"));
  EXPECT_TRUE(message.starts_with(begin)) << message;
  EXPECT_NE(message.find("line 2, column"), message.npos) << message;
  std::filesystem::remove(path_);
  const std::string none = ComplaintOf(ReadTemplate(Given("chat-template-file", path_)));
  EXPECT_TRUE(none.starts_with(begin)) << none;
  EXPECT_TRUE(none.ends_with(": cannot open: No such file or directory")) << none;
}

TEST_F(TemplateFlagsTest, ANameAndAFileExcludeEachOther) {
  Args args = Given("chat-template", "chatml");
  args.Set("chat-template-file", {path_});
  EXPECT_EQ(ComplaintOf(ReadTemplate(args)),
            "give only one of --chat-template and --chat-template-file");
}

TEST_F(TemplateFlagsTest, VariablesAreAJsonObject) {
  const std::string object = R"({"enable_thinking": false, "n": [1, {"a": null}]})";
  EXPECT_EQ(ReadTemplateVariables(Given("chat-template-kwargs", object)), object);
  EXPECT_EQ(ReadTemplateVariables(Given("chat-template-kwargs", "{}")), "{}");
  for (const std::string text : {"", "[]", "7", "{", "{\"a\": }", "enable_thinking"}) {
    const Args args = Given("chat-template-kwargs", text);
    const std::string message = ComplaintOf(ReadTemplateVariables(args));
    EXPECT_TRUE(message.starts_with("--chat-template-kwargs: '" + text + "' ")) << message;
    EXPECT_EQ(ComplaintOf(ChooseTemplate(args)), message);
  }
}

}  // namespace
}  // namespace kvasir::cli
