#include "kvasir/backup.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "session/sealed_rows_for_test.h"
#include "session/sealed_stream.h"

namespace kvasir {
namespace {

constexpr std::string_view kPassphrase = "five random words";

class SealedStreamTest : public testing::Test {
 protected:
  ~SealedStreamTest() override { std::filesystem::remove(path_); }

  void Write(const std::vector<std::string>& lines) {
    auto writer = SealedWriter::Create(path_, kPassphrase);
    ASSERT_TRUE(writer) << writer.error().message;
    for (const std::string& line : lines) ASSERT_TRUE(writer->Add(line));
    EXPECT_FALSE(std::filesystem::exists(path_));
    ASSERT_TRUE(writer->Finish());
  }
  // Returns the lines, and the error after them.
  static std::pair<std::vector<std::string>, std::string> Read(SealedReader& reader) {
    std::vector<std::string> lines;
    for (;;) {
      auto line = reader.Next();
      if (!line) return {lines, line.error().message};
      if (!*line) return {lines, ""};
      lines.push_back(**line);
    }
  }

  const std::string path_ =
      testing::TempDir() + "/kvasir-sealed-" + std::to_string(getpid()) + ".backup";
};

TEST_F(SealedStreamTest, GivesBackTheLinesThatWereWritten) {
  std::vector<std::string> lines = {"one", "", std::string(700'000, 'x'), "\xff two \0"};
  for (int i = 0; i < 5000; ++i) lines.push_back("line " + std::to_string(i * 7919));
  Write(lines);
  auto reader = SealedReader::Open(path_, kPassphrase);
  ASSERT_TRUE(reader) << reader.error().message;
  for (int i = 0; i < 2; ++i) {
    const auto [read, error] = Read(*reader);
    EXPECT_EQ(error, "");
    EXPECT_EQ(read, lines);
    reader->Rewind();
  }
}

TEST_F(SealedStreamTest, ALineThatIsAsLongAsAChunkEndsWithIt) {
  for (const size_t size : {(256u << 10) - 2, (256u << 10) - 1, 256u << 10, (512u << 10) - 1}) {
    std::filesystem::remove(path_);
    Write({std::string(size, 'y'), "end"});
    auto reader = SealedReader::Open(path_, kPassphrase);
    const auto [read, error] = Read(*reader);
    EXPECT_EQ(error, "");
    ASSERT_EQ(read.size(), 2u);
    EXPECT_EQ(read[0].size(), size);
  }
}

TEST_F(SealedStreamTest, ChunksThatAreLeftOutOrMovedAreNotUnsealed) {
  Write({std::string(600'000, 'z')});
  std::ifstream file(path_, std::ios::binary);
  const std::string whole(std::istreambuf_iterator<char>(file), {});
  constexpr size_t kHead = sizeof(SealedHead), kChunk = 4 + (256 << 10) + 16;
  ASSERT_GT(whole.size(), kHead + 2 * kChunk);
  const std::string head = whole.substr(0, kHead), first = whole.substr(kHead, kChunk),
                    second = whole.substr(kHead + kChunk, kChunk),
                    last = whole.substr(kHead + 2 * kChunk);
  for (const std::string& wrong : {head, head + first, head + first + second, head + first + last,
                                   head + second + first + last, head + last, whole + last}) {
    std::ofstream(path_, std::ios::binary) << wrong;
    auto reader = SealedReader::Open(path_, kPassphrase);
    ASSERT_TRUE(reader) << reader.error().message;
    const auto [read, error] = Read(*reader);
    EXPECT_NE(error.find("damaged, cut or was changed"), std::string::npos) << error;
    EXPECT_TRUE(read.empty());
  }
}

TEST_F(SealedRowsTest, AddsAllRowsOrNone) {
  const auto rows = Open();
  ASSERT_TRUE(rows->Put(kMira, "sess_1", 1, 100, Bytes("mine"), SealedRows::Old::kStays));
  const auto keys = [this] {
    size_t count = 0;
    for (const auto& entry : std::filesystem::directory_iterator(PathOf("keys"))) {
      count += entry.is_regular_file() ? 1 : 0;
    }
    return count;
  };
  ASSERT_EQ(keys(), 1u);
  const auto add = [&](std::vector<NewRow> given, uint64_t bytes, bool fails) {
    size_t next = 0;
    return rows->AddAll(bytes, given.size(), [&]() -> Result<std::optional<NewRow>> {
      if (next < given.size()) return given[next++];
      if (fails) return tl::unexpected(Error{Code::kCorruption, "cut"});
      return std::nullopt;
    });
  };
  const NewRow two{kMira, "sess_2", 50, Bytes("two")}, three{kOther, "sess_3", 60, Bytes("three")},
      same{kMira, "sess_1", 70, Bytes("other")};
  EXPECT_EQ(add({two, three, same}, 100, false).error().code, Code::kInvalidArgument);
  EXPECT_EQ(add({two, three}, 100, true).error().message, "cut");
  EXPECT_EQ(add({two, three}, 7, false).error().code, Code::kCorruption);
  EXPECT_EQ(rows->List()->size(), 1u);
  EXPECT_EQ(keys(), 1u);  // that of kOther is gone again
  EXPECT_EQ(add({two}, uint64_t{1} << 30, false).error().code, Code::kExhausted);
  ASSERT_TRUE(add({two, three}, 8, false));
  EXPECT_EQ(keys(), 2u);
  EXPECT_EQ(TextOf(rows->Get(kMira, "sess_1")), "mine");
  EXPECT_EQ(TextOf(rows->Get(kMira, "sess_2")), "two");
  EXPECT_EQ(TextOf(rows->Get(kOther, "sess_3")), "three");
  EXPECT_EQ(rows->List()->at(1).used_s, 50);
}

}  // namespace
}  // namespace kvasir
