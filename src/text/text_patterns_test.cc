#include "text/text_patterns.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "text/tokenizer.h"
#include "text/vocabulary.h"

namespace kvasir {
namespace {

using Ids = std::vector<TokenId>;

// Counts words. Each byte of ASCII text is a token, and neighbours in one word always merge: two
// tokens mean that the text was cut between them.
size_t CountWords(const std::string& pre, const std::string& text) {
  Vocabulary vocabulary;
  vocabulary.file = "v";
  vocabulary.pre = pre;
  vocabulary.merges.emplace();
  std::string space = "\xC4\xA0", line = "\xC4\x8A";  // GPT-2's characters for a space and \n
  std::vector<std::string> words;
  for (const std::string& c : {space, line, std::string("a"), std::string("1")}) {
    vocabulary.tokens.push_back({c});
    words.push_back(c);
  }
  for (size_t length = 2; length <= 4; ++length) {  // all words of up to four characters
    std::vector<std::string> longer;
    for (const std::string& word : words) {
      for (size_t c = 0; c < 4; ++c) {
        const std::string last = vocabulary.tokens[c].text;
        longer.push_back(word + last);
        vocabulary.tokens.push_back({word + last});
        vocabulary.merges->push_back(word + " " + last);
      }
    }
    words = std::move(longer);
  }
  const auto tokenizer = Tokenizer::Make(vocabulary);
  EXPECT_TRUE(tokenizer) << pre << ": " << tokenizer.error().message;
  const auto ids = (*tokenizer)->Encode(text, {.add_special = false});
  EXPECT_TRUE(ids);
  EXPECT_EQ((*tokenizer)->Decode(*ids), text) << pre;
  return ids->size();
}

TEST(TextPatterns, EveryNameCutsTextAndLosesNone) {
  std::istringstream names(TextPatternNames());
  size_t count = 0;
  for (std::string name; std::getline(names, name, ','); ++count) {
    const std::string pre = name.substr(name.find_first_not_of(' '));
    ASSERT_NE(FindTextPattern(pre), nullptr);
    EXPECT_GE(CountWords(pre, "aa aa 11 a\na1"), 5u) << pre;
  }
  EXPECT_GE(count, 18u);
}

TEST(TextPatterns, TheirDifferencesAreTheirFamilies) {
  EXPECT_EQ(CountWords("gpt-2", "a 1111"), 3u);        // " 111" "1": four characters at most
  EXPECT_EQ(CountWords("llama-bpe", "a 1111"), 4u);    // " ", "111", "1"
  EXPECT_EQ(CountWords("qwen2", "a 1111"), 6u);        // each digit, and the space
  EXPECT_EQ(CountWords("starcoder", "a 1111"), 6u);    // the same
  EXPECT_EQ(CountWords("deepseek-v3", "a 1111"), 4u);  // " ", "111", "1"
  EXPECT_EQ(CountWords("gpt-2", "a\n\na"), 4u);
  EXPECT_EQ(CountWords("llama-bpe", "a\n\na"), 3u);  // line feeds stay together
  EXPECT_EQ(FindTextPattern("mystery"), nullptr);
  EXPECT_TRUE(FindTextPattern("qwen2")->traits.nfc);
  EXPECT_TRUE(FindTextPattern("tekken")->traits.whole_words);
}

}  // namespace
}  // namespace kvasir
