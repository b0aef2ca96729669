#include "hub/blob_writer.h"

#include <gtest/gtest.h>

#include "base/hex.h"
#include "hub/cache_for_test.h"

namespace kvasir::hub {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kText = "what is up, doc?";
// `printf 'what is up, doc?' | git hash-object --stdin`, the example of git's own book.
constexpr const char* kGitSha1 = "bd9dbf5aae1a3862dd1526723246b20206e5fc37";

std::span<const std::byte> Bytes(std::string_view text) { return std::as_bytes(std::span(text)); }

// A folder with one blob to write.
class BlobWriterTest : public testing::Test {
 protected:
  BlobWriterTest() : test_("blob_writer") { fs::create_directories(test_.cache().root()); }

  fs::path Path() const { return test_.cache().root() / "blob"; }
  std::unique_ptr<BlobWriter> Open(const HubFile& file) {
    auto writer = BlobWriter::Open(file, Path(), [](uint64_t) {});
    EXPECT_TRUE(writer) << writer.error().message;
    return std::move(*writer);
  }
  bool HasDraft() const { return fs::exists(BlobWriter::DraftOf(Path())); }

  CacheForTest test_;
  const HubFile sha1_{"x", kText.size(), kGitSha1};
  const HubFile sha256_{"x", kText.size(), ToHex(Sha256Of(kText))};
};

TEST_F(BlobWriterTest, PublishesWhatHasTheListedHash) {
  for (const HubFile* file : {&sha1_, &sha256_}) {
    const auto writer = Open(*file);
    ASSERT_TRUE(writer->Take(Bytes(kText)));
    EXPECT_FALSE(fs::exists(Path())) << "not before it is checked";
    const Status published = writer->Publish();
    EXPECT_TRUE(published) << published.error().message;
    EXPECT_EQ(fs::file_size(Path()), kText.size());
    EXPECT_FALSE(HasDraft());
    fs::remove(Path());
  }
}

TEST_F(BlobWriterTest, GoesOnWhereAnEarlierOneEnded) {
  ASSERT_TRUE(Open(sha256_)->Take(Bytes(kText.substr(0, 5))));
  ASSERT_TRUE(HasDraft());
  const auto writer = Open(sha256_);
  EXPECT_EQ(writer->offset(), 5u);
  ASSERT_TRUE(writer->Take(Bytes(kText.substr(5))));
  EXPECT_TRUE(writer->Publish());
}

TEST_F(BlobWriterTest, KeepsNothingOfAnotherContent) {
  const auto writer = Open(sha256_);
  ASSERT_TRUE(writer->Take(Bytes("what is up, cat?")));
  const Status published = writer->Publish();
  ASSERT_FALSE(published);
  EXPECT_NE(published.error().message.find("x: checksum mismatch"), std::string::npos);
  EXPECT_FALSE(HasDraft() || fs::exists(Path()));
}

TEST_F(BlobWriterTest, TakesNoMoreThanTheListedSize) {
  const auto writer = Open(sha256_);
  ASSERT_TRUE(writer->Take(Bytes(kText)));
  EXPECT_EQ(writer->Take(Bytes("!")).error().code, Code::kIoError);
  EXPECT_EQ(writer->offset(), 0u) << "the next pull begins again";
  std::ofstream(BlobWriter::DraftOf(Path())) << kText << "and more";
  EXPECT_EQ(Open(sha256_)->offset(), 0u);
}

TEST_F(BlobWriterTest, DoesNotFollowALink) {
  const fs::path outside = test_.cache().root() / "precious";
  std::ofstream(outside) << "precious";
  fs::create_symlink(outside, BlobWriter::DraftOf(Path()));
  EXPECT_FALSE(BlobWriter::Open(sha1_, Path(), [](uint64_t) {}));
  EXPECT_EQ(fs::file_size(outside), 8u);
}

}  // namespace
}  // namespace kvasir::hub
