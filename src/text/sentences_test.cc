#include "text/sentences.h"

#include <gtest/gtest.h>

namespace kvasir {
namespace {

using Texts = std::vector<std::string>;

Texts Split(std::string_view text) {
  const Sentences sentences(text);
  Texts texts;
  for (size_t i = 0; i < sentences.size(); ++i) texts.emplace_back(sentences.At(i));
  return texts;
}

TEST(Sentences, EndBehindMarksOfManyScripts) {
  EXPECT_EQ(Split("One. Two! Three?  Four"), (Texts{"One.", "Two!", "Three?", "Four"}));
  EXPECT_EQ(Split("Was?! Ja... Nein…"), (Texts{"Was?!", "Ja...", "Nein…"}));
  EXPECT_EQ(Split("吾輩は猫である。名前はまだ無い。"),
            (Texts{"吾輩は猫である。", "名前はまだ無い。"}));
  EXPECT_EQ(Split("什么？！好。“是。”他说。"), (Texts{"什么？！", "好。", "“是。”", "他说。"}));
  EXPECT_EQ(Split("كيف حالك؟ أنا بخير. شكرا!"), (Texts{"كيف حالك؟", "أنا بخير.", "شكرا!"}));
  EXPECT_EQ(Split("یہ ایک ہے۔ وہ دو ہے۔"), (Texts{"یہ ایک ہے۔", "وہ دو ہے۔"}));
  EXPECT_EQ(Split("यह एक है। वह दो है॥ अंत"), (Texts{"यह एक है।", "वह दो है॥", "अंत"}));
  EXPECT_EQ(Split("ሰላም ነው። ደህና ነህ፧ አዎ"), (Texts{"ሰላም ነው።", "ደህና ነህ፧", "አዎ"}));
  EXPECT_EQ(Split("ឈ្មោះ។ ខ្ញុំ"), (Texts{"ឈ្មោះ។", "ខ្ញុំ"}));
}

TEST(Sentences, EndBehindClosingQuotesAndBrackets) {
  EXPECT_EQ(Split("He said: \"Go.\" (She went.) Then \"no\"."),
            (Texts{"He said: \"Go.\"", "(She went.)", "Then \"no\"."}));
  EXPECT_EQ(Split("「行け。」彼は言った。"), (Texts{"「行け。」", "彼は言った。"}));
}

TEST(Sentences, DoNotEndInsideOfWordsAndNumbers) {
  for (const char* text :
       {"Version 3.14 of a.b.c is out", "See example.com/a?b=1!2 now", "Dr. Smith and Mr. Jones",
        "J. R. R. Tolkien", "approx. five", "The U.S. Army", "e.g. this", "1. First of all",
        "12. Dezember", "wait... what", "Ö. Ä. Test"}) {
    EXPECT_EQ(Split(text), Texts{text});
  }
  EXPECT_EQ(Split("It was 1999. Then"), (Texts{"It was 1999.", "Then"}));
  EXPECT_EQ(Split("what? yes"), (Texts{"what?", "yes"}));
}

TEST(Sentences, AreThoseOfTheExampleInDocs) {
  EXPECT_EQ(Split("Dr. Smith left. \"Why?\" asked J. R. Jones. 吾輩は猫である。名前はまだ無い。"),
            (Texts{"Dr. Smith left.", "\"Why?\" asked J. R. Jones.", "吾輩は猫である。",
                   "名前はまだ無い。"}));
}

TEST(Sentences, EndAtAnEmptyLine) {
  EXPECT_EQ(Split("A title\n\nA line\nand more.\nNext"),
            (Texts{"A title", "A line\nand more.", "Next"}));
  EXPECT_EQ(Split("a \r\n \r\nb"), (Texts{"a", "b"}));
}

TEST(Sentences, OfNothingAreNone) {
  for (const char* text : {"", " ", "\n\n \u3000"}) EXPECT_EQ(Split(text), Texts{}) << text;
  EXPECT_EQ(Split("."), Texts{"."});
  EXPECT_EQ(Split("。。"), Texts{"。。"});
  EXPECT_EQ(Split(" . "), Texts{"."});
}

// Sentences and what is between them are the text.
TEST(Sentences, LoseNothingButWhiteSpace) {
  const std::string all = "A. B!  c?\n\n\"D\" e. 1. F。G";
  std::string text;
  for (int i = 0; i < 200; ++i) text += all.substr(static_cast<size_t>(i * 7) % 12, 9);
  text.resize(text.size() - 3);
  if (text.find("\xE3") != text.npos) text = text.substr(0, text.rfind('\xE3'));
  std::string kept, expected;
  const Sentences sentences(text);
  EXPECT_GT(sentences.size(), 20u);
  for (size_t i = 0; i < sentences.size(); ++i) kept += sentences.At(i);
  for (std::string* s : {&kept, &text}) {
    std::erase_if(*s, [](char c) { return c == ' ' || c == '\n'; });
  }
  EXPECT_EQ(kept, text);
}

TEST(Sentences, AreJoinedWithASpaceOrTheLineBreaksBetween) {
  const auto join = [](std::string_view text, Texts translations) {
    return Sentences(text).Join(translations);
  };
  EXPECT_EQ(join("  A!  B!\nC ", {"x!", "y!", "z"}), "x! y!\nz");
  EXPECT_EQ(join("你。好。", {"You.", "Good."}), "You. Good.");
  EXPECT_EQ(join("You. Good. Yes.", {"你。", "好。", "是"}), "你。好。是");
  EXPECT_EQ(join("A!\n\nB", {"", "b"}), "\n\nb");
  EXPECT_EQ(join("A! B", {"", "b"}), "b");
  EXPECT_EQ(join("", {}), "");
  const Sentences sentences("A! B!\n\nC");
  EXPECT_EQ(sentences.BreakBefore(0), "");
  EXPECT_EQ(sentences.BreakBefore(1), "");
  EXPECT_EQ(sentences.BreakBefore(2), "\n\n");
  EXPECT_EQ(Sentences::Joint("x", ""), " ");
  EXPECT_EQ(Sentences::Joint("x。", ""), "");
  EXPECT_EQ(Sentences::Joint("x", "\n"), "\n");
}

}  // namespace
}  // namespace kvasir
