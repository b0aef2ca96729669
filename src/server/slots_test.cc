#include "server/slots.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "base/atomic_file.h"

namespace kvasir {
namespace {

const Digest kIdentity = SlotIdentity("model", "anna");

SlotPath Path(std::vector<TokenId> ids, std::optional<std::string> salt = std::nullopt) {
  return {.tenant = "anna", .space = {.owner = {}, .salt = std::move(salt)}, .ids = std::move(ids)};
}

std::string MessageOf(const Result<SlotPath>& path) { return path ? "" : path.error().message; }

TEST(SlotFile, GivesBackWhatWasSaved) {
  for (const SlotPath& path : {Path({1, 2, 0, 4'000'000}), Path({}), Path({7}, "salt"),
                               Path({7}, std::string(256, 'x'))}) {
    const auto read = DecodeSlot(EncodeSlot(path, kIdentity), kIdentity, "anna", "a.bin");
    ASSERT_TRUE(read) << read.error().message;
    EXPECT_EQ(read->ids, path.ids);
    EXPECT_EQ(read->space.salt, path.space.salt);
    EXPECT_EQ(read->tenant, "anna");
  }
}

TEST(SlotFile, IsRefusedWithAnyByteChangedOrMissing) {
  const std::string whole = EncodeSlot(Path({1, 2, 3}, "s"), kIdentity);
  for (size_t i = 0; i < whole.size(); ++i) {
    std::string changed = whole;
    changed[i] ^= 1;
    EXPECT_FALSE(DecodeSlot(changed, kIdentity, "anna", "a.bin")) << i;
    EXPECT_FALSE(DecodeSlot(whole.substr(0, i), kIdentity, "anna", "a.bin")) << i;
  }
  EXPECT_FALSE(DecodeSlot(whole + "x", kIdentity, "anna", "a.bin"));
}

TEST(SlotFile, SaysWhyItIsRefused) {
  const std::string whole = EncodeSlot(Path({1}), kIdentity);
  const auto message = [&](std::string bytes, const Digest& identity) {
    return MessageOf(DecodeSlot(bytes, identity, "anna", "a.bin"));
  };
  EXPECT_EQ(message(whole, SlotIdentity("other", "anna")),
            "a.bin was saved with another model or another key");
  EXPECT_EQ(message(whole, SlotIdentity("model", "ben")),
            "a.bin was saved with another model or another key");
  EXPECT_EQ(message("kvslot9\n" + whole.substr(8), kIdentity),
            "a.bin is of another version of kvasir; save it again");
  EXPECT_EQ(message(whole.substr(0, whole.size() - 1), kIdentity),
            "a.bin is damaged; save it again");
  EXPECT_TRUE(message("ggsq", kIdentity).starts_with("a.bin is not a file that this server saved"));
}

TEST(SlotFile, IsAPlainNameInItsFolder) {
  for (const char* name : {"a", "slot1.bin", "a b", "ä.bin"})
    EXPECT_TRUE(CheckSlotFile(name)) << name;
  for (const std::string name :
       {"", ".", "..", "../a", "a/b", "/etc/passwd", ".hidden", "a\\b", "a\nb", "\xff"}) {
    const Status checked = CheckSlotFile(name);
    ASSERT_FALSE(checked) << name;
    EXPECT_EQ(checked.error().field, "filename");
  }
  EXPECT_FALSE(CheckSlotFile(std::string("a\0b", 3)));
}

TEST(SlotFile, IsNeitherALinkNorAFifoNorTooLarge) {
  const auto folder = std::filesystem::path(testing::TempDir()) / "kvasir_slots_test";
  std::filesystem::remove_all(folder);
  std::filesystem::create_directory(folder);
  ASSERT_TRUE(WriteAtomicFile(folder / "a", "12345", {}));
  EXPECT_EQ(*ReadSlotFile(folder, "a", 5), "12345");
  EXPECT_EQ(ReadSlotFile(folder, "a", 4).error().code, Code::kInvalidArgument);
  EXPECT_EQ(ReadSlotFile(folder, "b", 5).error().code, Code::kNotFound);
  std::filesystem::create_symlink("a", folder / "link");
  EXPECT_EQ(ReadSlotFile(folder, "link", 5).error().message, "link cannot be read: it is a link");
  ASSERT_EQ(mkfifo((folder / "fifo").c_str(), 0600), 0);
  EXPECT_EQ(ReadSlotFile(folder, "fifo", 5).error().code, Code::kInvalidArgument);
  std::filesystem::remove_all(folder);
}

TEST(Slots, HaveTheLastRequestOfTheirTenantUntilItIsForgotten) {
  Slots slots(2);
  EXPECT_EQ(slots.size(), 2u);
  EXPECT_EQ(slots.Get(0, "anna"), nullptr);
  slots.Set(0, Path({1}), slots.epoch());
  slots.Set(1, Path({2}), slots.epoch());
  EXPECT_EQ(slots.Get(0, "anna")->ids, std::vector<TokenId>{1});
  EXPECT_EQ(slots.Get(0, "ben"), nullptr);
  const uint64_t before = slots.epoch();
  slots.Forget(0);
  EXPECT_EQ(slots.Get(0, "anna"), nullptr);
  EXPECT_EQ(slots.Get(1, "anna")->ids, std::vector<TokenId>{2});
  slots.Set(0, Path({3}), before);  // a request that began before
  EXPECT_EQ(slots.Get(0, "anna"), nullptr);
  slots.Set(1, Path({4}), before);
  EXPECT_EQ(slots.Get(1, "anna")->ids, std::vector<TokenId>{4});
  slots.ForgetAll();
  EXPECT_EQ(slots.Get(1, "anna"), nullptr);
}

TEST(SlotKeeper, KeepsThePromptAndTheFirstAnswerWithoutItsLastToken) {
  Slots slots(1);
  GenerateRequest request;
  request.tenant = "anna";
  request.prompt = {1, 2};
  Event first, other;
  first.tokens = {{.id = 3}, {.id = 4}};
  other.choice = 1;
  other.tokens = {{.id = 9}};
  {
    SlotKeeper keeper(slots, 0, request);
    keeper.Take(first);
    keeper.Take(other);
    EXPECT_TRUE(keeper.Finish());
    EXPECT_EQ(slots.Get(0, "anna")->ids, (std::vector<TokenId>{1, 2, 3}));
  }
  EXPECT_EQ(slots.Get(0, "anna")->ids, (std::vector<TokenId>{1, 2, 3}));
  { const SlotKeeper hung_up(slots, 0, request); }  // no token came
  EXPECT_EQ(slots.Get(0, "anna")->ids, (std::vector<TokenId>{1, 2}));
}

}  // namespace
}  // namespace kvasir
