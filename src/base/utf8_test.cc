#include "base/utf8.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/random.h"

namespace kvasir {
namespace {

// Returns the length of the character at text[0] by RFC 3629's definition: it encodes one of
// U+0..U+10FFFF except surrogates in the fewest bytes. 0 when there is no character.
size_t LengthByDefinition(std::string_view text) {
  for (size_t length = 1; length <= 4 && length <= text.size(); ++length) {
    const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
    char32_t c = byte(0);
    if (length > 1) {
      const unsigned ones = 0xF0u << (4 - length) & 0xFFu, mask = 0xF8u << (4 - length) & 0xFFu;
      if ((c & mask) != ones) continue;
      c &= ~mask & 0xFFu;
      bool tails = true;
      for (size_t i = 1; i < length; ++i) {
        tails &= (byte(i) & 0xC0) == 0x80;
        c = c << 6 | (byte(i) & 0x3F);
      }
      if (!tails) continue;
    } else if (c >= 0x80) {
      continue;
    }
    constexpr char32_t kFirst[] = {0, 0x80, 0x800, 0x10000};
    const bool surrogate = c >= 0xD800 && c <= 0xDFFF;
    if (c >= kFirst[length - 1] && c <= 0x10FFFF && !surrogate) return length;
  }
  return 0;
}

size_t FirstInvalidByDefinition(std::string_view text) {
  size_t pos = 0;
  while (pos < text.size()) {
    const size_t length = LengthByDefinition(text.substr(pos));
    if (length == 0) break;
    pos += length;
  }
  return pos;
}

std::string Lossy(std::string_view bytes, size_t* taken) {
  std::string out;
  *taken = AppendLossyUtf8(bytes, &out);
  return out;
}

TEST(Utf8, FindsTheCharacterBeforeAPlace) {
  const std::string text = "a\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80z";  // 1, 2, 3, 4 and 1 bytes
  size_t begin = 0;
  for (const size_t bytes : {1u, 2u, 3u, 4u, 1u}) {
    EXPECT_FALSE(ContinuesChar(text[begin]));
    for (size_t i = 1; i < bytes; ++i) EXPECT_TRUE(ContinuesChar(text[begin + i]));
    EXPECT_EQ(StartOfCharBefore(text, begin + bytes), begin);
    begin += bytes;
  }
  EXPECT_EQ(StartOfCharBefore("\x80\x80", 2), 0u) << "it does not leave the text";
}

TEST(Utf8, EveryCharacterIsReadAsItWasWritten) {
  for (char32_t c = 0; c <= 0x10FFFF; ++c) {
    if (c == 0xD800) c = 0xE000;
    std::string text = "a";
    AppendUtf8(c, &text);
    text += "z";
    ASSERT_EQ(FirstInvalidUtf8(text), text.size()) << uint32_t{c};
    size_t pos = 1;
    ASSERT_EQ(NextChar(text, &pos), c);
    ASSERT_EQ(pos, text.size() - 1) << uint32_t{c};
  }
}

TEST(Utf8, KnownCharactersHaveTheirKnownBytes) {
  const std::pair<char32_t, std::string_view> kKnown[] = {{0x24, "$"},
                                                          {0x7F, "\x7F"},
                                                          {0x80, "\xC2\x80"},
                                                          {0xA3, "\xC2\xA3"},
                                                          {0x7FF, "\xDF\xBF"},
                                                          {0x800, "\xE0\xA0\x80"},
                                                          {0x20AC, "\xE2\x82\xAC"},
                                                          {0xD7FF, "\xED\x9F\xBF"},
                                                          {0xE000, "\xEE\x80\x80"},
                                                          {0xFFFF, "\xEF\xBF\xBF"},
                                                          {0x10000, "\xF0\x90\x80\x80"},
                                                          {0x10FFFF, "\xF4\x8F\xBF\xBF"}};
  for (const auto& [c, bytes] : kKnown) {
    std::string text;
    AppendUtf8(c, &text);
    EXPECT_EQ(text, bytes);
  }
}

TEST(Utf8, ValidationIsTheDefinitionForAllShortSequences) {
  // Bytes at the ends of every range that RFC 3629 names.
  constexpr uint8_t kEnds[] = {0x00, 0x41, 0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF,
                               0xC0, 0xC1, 0xC2, 0xDF, 0xE0, 0xE1, 0xEC, 0xED, 0xEE,
                               0xEF, 0xF0, 0xF1, 0xF3, 0xF4, 0xF5, 0xF8, 0xFE, 0xFF};
  constexpr size_t kCount = std::size(kEnds);
  for (size_t i = 0; i < kCount * kCount * kCount * kCount; ++i) {
    std::string text;
    for (size_t rest = i, j = 0; j < 4; ++j, rest /= kCount) {
      text += static_cast<char>(kEnds[rest % kCount]);
    }
    ASSERT_EQ(FirstInvalidUtf8(text), FirstInvalidByDefinition(text)) << i;
  }
}

TEST(Utf8, ABrokenByteIsFoundAtEveryPlaceOfALongText) {
  for (size_t size = 1; size < 40; ++size) {
    for (size_t at = 0; at < size; ++at) {
      std::string text(size, 'a');
      EXPECT_EQ(FirstInvalidUtf8(text), size);
      text[at] = '\xFF';
      EXPECT_EQ(FirstInvalidUtf8(text), at) << size;
      text[at] = '\xC3';  // the first byte of two
      EXPECT_EQ(FirstInvalidUtf8(text), at) << size;
    }
  }
  EXPECT_EQ(FirstInvalidUtf8(""), 0u);
}

TEST(Utf8, ACutCharacterEndsAtTheEndOfTheText) {
  for (const std::string_view text : {"\xC3", "\xE2\x82", "\xE2", "\xF0\x9F\x98", "\xF0"}) {
    size_t pos = 0;
    EXPECT_EQ(NextChar(text, &pos), char32_t{0xFFFD});
    EXPECT_EQ(pos, text.size());
  }
}

// Unicode 15, section 3.9, table 3-8 and the text around it: each maximal part of a character
// becomes one U+FFFD, and so does each other byte.
TEST(Utf8, BrokenBytesBecomeAsManyReplacementsAsUnicodeSays) {
  const std::pair<std::string_view, std::string_view> kCases[] = {
      {"a\xFFz", "a\uFFFDz"},
      {"\xC0\xAF\xE0\x80\xBF\xF0\x81\x82\x41", "\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFDA"},
      {"\xED\xA0\x80\xED\xBF\xBF\xED\xAF\x41", "\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFDA"},
      {"\xF4\x91\x92\x93\xFF\x41\x80\xBF\x42", "\uFFFD\uFFFD\uFFFD\uFFFD\uFFFDA\uFFFD\uFFFDB"},
      {"\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41", "\uFFFD\uFFFD\uFFFD\uFFFDA"}};
  for (const auto& [bytes, expected] : kCases) {
    size_t taken = 0;
    EXPECT_EQ(Lossy(bytes, &taken), expected);
    EXPECT_EQ(taken, bytes.size());
  }
}

TEST(Utf8, WhatMayBecomeWholeIsKept) {
  for (const std::string_view bytes : {"\xC3", "\xE2", "\xE2\x82", "\xF0\x9F\x98"}) {
    size_t taken = 0;
    EXPECT_EQ(Lossy("ab" + std::string(bytes), &taken), "ab");
    EXPECT_EQ(taken, 2u);
    EXPECT_EQ(Lossy(std::string(bytes) + "c", &taken), "\uFFFDc");  // it can never be completed
  }
}

TEST(Utf8, LossyTextDoesNotDependOnWhereItsBytesWereCut) {
  Random random(3);
  for (int round = 0; round < 5000; ++round) {
    SCOPED_TRACE(round);
    std::string bytes;
    for (uint64_t i = random.Below(12); i > 0; --i) {
      if (random.Below(3) == 0) bytes += static_cast<char>(random.Bits());
      if (random.Below(2) == 0) AppendUtf8(static_cast<char32_t>(random.Below(0xD800)), &bytes);
    }
    size_t taken = 0;
    const std::string whole = Lossy(bytes, &taken);
    EXPECT_EQ(FirstInvalidUtf8(whole), whole.size());
    EXPECT_LE(bytes.size() - taken, 3u);
    std::string out, held;
    for (const char c : bytes) {
      held += c;
      held.erase(0, AppendLossyUtf8(held, &out));
    }
    ASSERT_EQ(out, whole);
    ASSERT_EQ(held, bytes.substr(taken));
    if (FirstInvalidByDefinition(bytes) == bytes.size()) {
      ASSERT_EQ(whole, bytes);
    }
  }
}

// The classes of Rust's char and the regex crate, which `tokenizers` uses.
TEST(Utf8, CharactersHaveTheClassesThatTokenizersCounts) {
  const auto all = [](bool (*is)(char32_t), const std::vector<char32_t>& chars, bool expected) {
    for (const char32_t c : chars) EXPECT_EQ(is(c), expected) << std::hex << uint32_t{c};
  };
  all(IsWhitespace, {9, 10, 13, ' ', 0x85, 0xA0, 0x1680, 0x2003, 0x2028, 0x202F, 0x3000}, true);
  all(IsWhitespace, {0, 8, 14, 0x1F, 'a', 0x180E, 0x200B, 0x2060, 0xFEFF}, false);
  all(IsNumeric, {'0', '9', 0xB2, 0xBD, 0x660, 0x2167, 0x3007, 0x1D7CE}, true);  // Nd, No, Nl
  all(IsNumeric, {'a', '/', ':', 0x4E00, 0x1F600}, false);
  all(IsPunctuation, {'!', '$', '+', '@', '^', '`', '~', 0xA1, 0x2014, 0x3002}, true);
  all(IsPunctuation, {'a', '0', ' ', 0xA3, 0xD7, 0x20AC}, false);  // symbols beyond ASCII are not
  all(IsCombiningMark, {0x300, 0x591, 0x903, 0x20DD}, true);
  all(IsCombiningMark, {'a', 0xA8, 0x5E}, false);
  all(IsWordChar, {'a', 'Z', '5', '_', 0xE9, 0x300, 0x203F, 0x4E00, 0x200D, 0x24B6, 0x2160}, true);
  all(IsWordChar, {' ', '-', 0xB2, 0x2028, 0x1F600}, false);
}

}  // namespace
}  // namespace kvasir
