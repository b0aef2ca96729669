#include "api/prompt_heads.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <string>

namespace kvasir {
namespace {

// A chat whose line `changed` is not that of other chats.
std::string ChatText(int changed, std::string_view other = "other", int lines = 30) {
  std::string text;
  for (int i = 0; i < lines; ++i) {
    text += i == changed ? std::string(other) : "line " + std::to_string(i);
    text += '\n';
  }
  return text;
}

std::vector<LineChange> AskedIn(const HeadSpace& space, std::string_view text,
                                std::string_view salt = "") {
  std::vector<uint64_t> lines = space.LinesOf(text, LineBegins(text));
  if (!salt.empty()) space.AddSalt(salt, &lines);
  return space.Explain(lines, space.Note(lines));
}

TEST(PromptHeads, LinesEndWithTheirEndsAndAtCuts) {
  using Begins = std::vector<size_t>;
  EXPECT_EQ(LineBegins(""), (Begins{0}));
  EXPECT_EQ(LineBegins("ab\n\ncd"), (Begins{0, 3, 4, 6}));
  EXPECT_EQ(LineBegins("ab\ncd\n"), (Begins{0, 3, 6}));
  const std::vector<size_t> cuts = {0, 1, 3, 5, 5, 7};
  EXPECT_EQ(LineBegins("ab\ncdef\n", cuts), (Begins{0, 1, 3, 5, 7, 8}));
}

TEST(PromptHeads, NameTheLineThatChanged) {
  PromptHeads heads(1 << 20, 5);
  const HeadSpace space = heads.SpaceOf("a");
  EXPECT_TRUE(AskedIn(space, ChatText(3)).empty()) << "there was no chat before it";
  EXPECT_TRUE(AskedIn(space, ChatText(3)).empty()) << "it is the same";
  EXPECT_EQ(AskedIn(space, ChatText(3, "new")), (std::vector{LineChange{3, 1, 4, 30}}));
  // The chat that has most of the lines after the change counts.
  EXPECT_EQ(AskedIn(space, ChatText(9, "x") + "more\nand\nmore\n").size(), 2u);
}

TEST(PromptHeads, ATenantsChatsAreComparedWithItsOwn) {
  PromptHeads heads(1 << 20, 5);
  AskedIn(heads.SpaceOf("a"), ChatText(3));
  EXPECT_TRUE(AskedIn(heads.SpaceOf("b"), ChatText(4)).empty());
  EXPECT_FALSE(AskedIn(heads.SpaceOf("a"), ChatText(4)).empty());
}

TEST(PromptHeads, SoAreThoseOfASalt) {
  PromptHeads heads(1 << 20, 5);
  const HeadSpace space = heads.SpaceOf("a");
  AskedIn(space, ChatText(3), "salt");
  EXPECT_TRUE(AskedIn(space, ChatText(4)).empty());
  EXPECT_TRUE(AskedIn(space, ChatText(4), "other").empty());
  EXPECT_FALSE(AskedIn(space, ChatText(4), "salt").empty());
}

TEST(PromptHeads, LaterChatsExplainNothing) {
  PromptHeads heads(1 << 20, 5);
  const HeadSpace space = heads.SpaceOf("a");
  const std::vector<uint64_t> first = space.LinesOf(ChatText(3), LineBegins(ChatText(3)));
  const uint64_t number = space.Note(first);
  AskedIn(space, ChatText(4));
  EXPECT_TRUE(space.Explain(first, number).empty());
}

TEST(PromptHeads, AChatThatGoesOnTakesThePlaceOfItsBeginning) {
  PromptHeads heads(1 << 20, 5);
  const HeadSpace space = heads.SpaceOf("a");
  AskedIn(space, ChatText(-1, "", 10));
  const uint64_t bytes = heads.bytes();
  AskedIn(space, ChatText(-1, "", 11));
  EXPECT_LE(heads.bytes(), bytes + 64);
  AskedIn(space, ChatText(2, "other", 11));
  EXPECT_GT(heads.bytes(), bytes + 64);
}

TEST(PromptHeads, TakeNoMoreThanTheirBytesAndTheOldestLeave) {
  constexpr uint64_t kBytes = 4000;
  PromptHeads heads(kBytes, 5);
  const HeadSpace space = heads.SpaceOf("a"), other = heads.SpaceOf("b");
  AskedIn(other, ChatText(3));
  for (int i = 0; i < 40; ++i) {
    AskedIn(space, "chat " + std::to_string(i) + "\n" + ChatText(i % 30, std::to_string(i)));
    EXPECT_LE(heads.bytes(), kBytes);
  }
  EXPECT_GT(heads.bytes(), kBytes / 2);
  EXPECT_TRUE(AskedIn(other, ChatText(4)).empty()) << "it left";
  const std::string long_text(PromptHeads::kMostLines * 2, '\n');
  EXPECT_EQ(space.LinesOf(long_text, LineBegins(long_text)).size(), PromptHeads::kMostLines);
  AskedIn(space, long_text);  // too long for these bytes
  EXPECT_LE(heads.bytes(), kBytes);
}

// Prints what it takes to compare 4,000 lines with a full table.
TEST(PromptHeads, AFullTableTakesLittleTime) {
  PromptHeads heads(4 << 20, 5);
  const HeadSpace space = heads.SpaceOf("a");
  for (int i = 0; i < 300; ++i) AskedIn(space, ChatText(1, std::to_string(i), 4000));
  EXPECT_GT(heads.bytes(), uint64_t{4} << 19);
  const std::string text = ChatText(1500, "new", 4000);
  const auto began = std::chrono::steady_clock::now();
  const std::vector<LineChange> changes = AskedIn(space, text);
  const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - began;
  EXPECT_EQ(changes.size(), 2u);
  std::printf("4,000 lines against %d KiB of digests: %.2f ms\n",
              static_cast<int>(heads.bytes() >> 10), took.count());
}

TEST(PromptHeads, AnEraseTakesThemAndWhatWouldStillBeNoted) {
  PromptHeads heads(1 << 20, 5);
  const HeadSpace before = heads.SpaceOf("a");
  AskedIn(before, ChatText(3));
  AskedIn(heads.SpaceOf("b"), ChatText(3));
  heads.Erase("a");
  AskedIn(before, ChatText(4));
  EXPECT_TRUE(AskedIn(heads.SpaceOf("a"), ChatText(5)).empty());
  EXPECT_FALSE(AskedIn(heads.SpaceOf("b"), ChatText(5)).empty());
  heads.EraseAll();
  EXPECT_EQ(heads.bytes(), 0u);
}

TEST(PromptHeads, WithoutMemoryKeepNothing) {
  PromptHeads heads(0, 5);
  const HeadSpace space = heads.SpaceOf("a");
  EXPECT_FALSE(space);
  EXPECT_TRUE(space.LinesOf("a\nb\n", LineBegins("a\nb\n")).empty());
  EXPECT_EQ(space.Note({1, 2}), 0u);
}

}  // namespace
}  // namespace kvasir
