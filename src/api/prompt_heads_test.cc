#include "api/prompt_heads.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "base/fault.h"
#include "base/rounds_for_test.h"

namespace kvasir {
namespace {

// Writes a chat whose line `changed` is not that of other chats.
std::string ChatText(int changed, std::string_view other = "other", int lines = 30) {
  std::string text;
  for (int i = 0; i < lines; ++i) {
    text += i == changed ? std::string(other) : "line " + std::to_string(i);
    text += '\n';
  }
  return text;
}

PromptHead HeadOf(const HeadSpace& space, std::string_view text, std::string_view salt = "") {
  PromptHead head;
  head.lines = space.LinesOf(text, LineBegins(text));
  head.said_lines = static_cast<uint32_t>(head.lines.size());
  head.tokens = head.said_lines * 10;
  if (!salt.empty()) space.AddSalt(salt, &head);
  return head;
}

std::vector<LineChange> AskedIn(const HeadSpace& space, std::string_view text,
                                std::string_view salt = "", std::string_view id = "an id") {
  const PromptHead head = HeadOf(space, text, salt);
  return space.Explain(head.lines, space.Note(head, id));
}

// Tells how a prompt differs from that of an earlier answer.
HeadChange ChangeSince(const HeadSpace& space, const char* id, const PromptHead& head) {
  HeadComparison compared{.with = id};
  space.Compare(head, &compared);
  return compared.change;
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

// Tells whether what a tenant asks is compared with what another one has asked.
bool TellsAnotherTenant() {
  PromptHeads heads(1 << 20, 5);
  AskedIn(heads.SpaceOf("a"), ChatText(3), "", "msg_1");
  const HeadSpace other = heads.SpaceOf("b");
  const bool is_known =
      ChangeSince(other, "msg_1", HeadOf(other, ChatText(4))) != HeadChange::kUnknown;
  return !AskedIn(other, ChatText(4)).empty() || is_known;
}

TEST(PromptHeads, ATenantsChatsAreComparedWithItsOwn) {
  EXPECT_FALSE(TellsAnotherTenant());
  PromptHeads heads(1 << 20, 5);
  AskedIn(heads.SpaceOf("a"), ChatText(3));
  EXPECT_FALSE(AskedIn(heads.SpaceOf("a"), ChatText(4)).empty());
}

TEST(PromptHeads, TheMutantWithHeadsOfAllTenantsIsFound) {
  InjectFault(Fault::kHeadsOfAllTenants);
  EXPECT_TRUE(TellsAnotherTenant());
  InjectFault(Fault::kNone);
}

TEST(PromptHeads, SayWhatChangedSinceAnAnswer) {
  PromptHeads heads(1 << 20, 5);
  const HeadSpace space = heads.SpaceOf("a");
  EXPECT_EQ(ChangeSince(space, "msg_1", HeadOf(space, ChatText(3))), HeadChange::kUnknown);
  PromptHead first = HeadOf(space, ChatText(3));
  first.parts = {.model = 0, .tools = 5, .system = 6, .others = 7};
  space.Note(first, "msg_1");
  HeadComparison compared{.with = "msg_1"};
  space.Compare(first, &compared);
  EXPECT_EQ(compared.change, HeadChange::kNone);
  EXPECT_EQ(compared.tokens, 300u);
  EXPECT_TRUE(compared.is_whole);
  PromptHead next = HeadOf(space, ChatText(3) + "an answer\nmore\n");
  next.parts = first.parts;
  EXPECT_EQ(ChangeSince(space, "msg_1", next), HeadChange::kNone);
  next.parts.system = 8;
  EXPECT_EQ(ChangeSince(space, "msg_1", next), HeadChange::kNone) << "its prompt has not changed";
  next = HeadOf(space, ChatText(20));
  next.parts = first.parts;
  EXPECT_EQ(ChangeSince(space, "msg_1", next), HeadChange::kMessages);
  next.parts.others = 1;
  EXPECT_EQ(ChangeSince(space, "msg_1", next), HeadChange::kUnavailable);
  next.parts.system = 1;
  EXPECT_EQ(ChangeSince(space, "msg_1", next), HeadChange::kSystem);
  next.parts.tools = 0;
  EXPECT_EQ(ChangeSince(space, "msg_1", next), HeadChange::kTools);
  next.parts.model = 1;
  EXPECT_EQ(ChangeSince(space, "msg_1", next), HeadChange::kModel);
  EXPECT_EQ(ChangeSince(space, "msg_2", next), HeadChange::kUnknown);
  EXPECT_EQ(ChangeSince(space, "msg_1", HeadOf(space, ChatText(20))), HeadChange::kTools)
      << "parts without a digest";
  EXPECT_EQ(ChangeSince(space, "msg_1", HeadOf(space, ChatText(3), "salt")), HeadChange::kUnknown);
  heads.Erase("a");
  EXPECT_EQ(ChangeSince(heads.SpaceOf("a"), "msg_1", first), HeadChange::kUnknown);
}

TEST(PromptHeads, AnswersOfAChatAreFoundWhileItGoesOn) {
  PromptHeads heads(1 << 20, 5);
  const HeadSpace space = heads.SpaceOf("a");
  std::string text = ChatText(-1, "", 10);
  for (int turn = 0; turn < 40; ++turn) {
    AskedIn(space, text, "", "msg_" + std::to_string(turn));
    text += "turn " + std::to_string(turn) + "\n";
  }
  EXPECT_LT(heads.bytes(), 2500u);
  const PromptHead now = HeadOf(space, text);
  for (int turn = 0; turn < 40; ++turn) {
    EXPECT_EQ(ChangeSince(space, ("msg_" + std::to_string(turn)).c_str(), now),
              turn < 24 ? HeadChange::kUnknown : HeadChange::kNone);
  }
  EXPECT_EQ(ChangeSince(space, "msg_30", HeadOf(space, ChatText(2))), HeadChange::kMessages);
}

TEST(PromptHeads, LinesThatAreNotComparedAreNotSaidToBeEqual) {
  PromptHeads heads(1 << 20, 5);
  const HeadSpace space = heads.SpaceOf("a");
  const PromptHead head = HeadOf(space, ChatText(-1, "", 3000));
  space.Note(head, "msg_1");
  HeadComparison compared{.with = "msg_1"};
  space.Compare(head, &compared);
  EXPECT_EQ(compared.ChangeWith(head.tokens - 64), HeadChange::kNone);
  EXPECT_EQ(compared.ChangeWith(head.tokens - 65), HeadChange::kUnavailable);
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
  const PromptHead first = HeadOf(space, ChatText(3));
  const uint64_t number = space.Note(first, "an id");
  AskedIn(space, ChatText(4));
  EXPECT_TRUE(space.Explain(first.lines, number).empty());
}

TEST(PromptHeads, AChatThatGoesOnTakesThePlaceOfItsBeginning) {
  PromptHeads heads(1 << 20, 5);
  const HeadSpace space = heads.SpaceOf("a");
  AskedIn(space, ChatText(-1, "", 10));
  const uint64_t bytes = heads.bytes();
  AskedIn(space, ChatText(-1, "", 11));
  EXPECT_LE(heads.bytes(), bytes + 128);
  AskedIn(space, ChatText(2, "other", 11));
  EXPECT_GT(heads.bytes(), bytes + 128);
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

// Returns the least milliseconds that `call` takes of so many times.
template <typename Call>
double LeastMs(int times, Call call) {
  double least = 1e9;
  for (int i = 0; i < times; ++i) {
    const auto began = std::chrono::steady_clock::now();
    call(i);
    const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - began;
    least = std::min(least, took.count());
  }
  return least;
}

// 4,000 lines against a table of 4 MiB: a miss takes 1 ms at most, and a hit, which has its lines
// digested and noted, a fourth of that; asserted in slow, where nothing runs beside. The chats of
// the table have another line near their beginning, or near the end of what is compared.
TEST(PromptHeads, AFullTableTakesLittleTime) {
  constexpr double kMostMs = Rounds(1.0, 30.0);
  constexpr int kTimes = 15;
  for (const int changed : {1, 2040}) {
    PromptHeads heads(4 << 20, 5);
    const HeadSpace space = heads.SpaceOf("a");
    for (int i = 0; i < 300; ++i) AskedIn(space, ChatText(changed, std::to_string(i), 4000));
    EXPECT_GT(heads.bytes(), uint64_t{15} << 18);
    std::vector<std::string> texts;
    for (int i = 0; i < kTimes; ++i) {
      texts.push_back(ChatText(1500, "new" + std::to_string(i), 4000));
    }
    std::vector<PromptHead> made(kTimes);
    const double digests_ms = LeastMs(kTimes, [&](int i) {
      made[static_cast<size_t>(i)] = HeadOf(space, texts[static_cast<size_t>(i)]);
    });
    const std::vector<uint64_t> lines = made[0].lines;
    const uint64_t number = space.Note(made[0], "an id");
    const double note_ms =
        LeastMs(kTimes, [&](int i) { space.Note(std::move(made[static_cast<size_t>(i)]), "id"); });
    std::vector<LineChange> changes;
    const double compared_ms =
        LeastMs(kTimes, [&](int) { changes = space.Explain(lines, number); });
    EXPECT_EQ(changes.size(), 2u);
    std::printf(
        "4,000 lines, %d KiB of digests that differ in line %d: digests %.3f ms, noted in "
        "%.3f ms, compared in %.3f ms\n",
        static_cast<int>(heads.bytes() >> 10), changed, digests_ms, note_ms, compared_ms);
    if (std::getenv("KVASIR_SLOW") == nullptr) continue;
    EXPECT_LT(digests_ms + note_ms + compared_ms, kMostMs);
    EXPECT_LT(digests_ms + note_ms, kMostMs / 4);
  }
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
  EXPECT_EQ(space.Note({.lines = {1, 2}}, "an id"), 0u);
}

}  // namespace
}  // namespace kvasir
