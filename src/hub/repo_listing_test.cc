#include "hub/repo_listing.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace kvasir::hub {
namespace {

const std::string kSha1(40, 'a'), kSha256(64, 'b');

std::string Listing(const std::string& siblings) {
  return R"({"id":"a/b","sha":")" + kSha1 + R"(","siblings":[)" + siblings + "]}";
}

std::string Small(const std::string& name) {
  return fmt::format(R"({{"rfilename":"{}","size":3,"blobId":"{}"}})", name, kSha1);
}

std::string ErrorOf(const std::string& json) {
  const auto listing = ParseListing(json);
  if (listing) return "";
  EXPECT_EQ(listing.error().code, Code::kCorruption);
  return listing.error().message;
}

TEST(RepoListing, NamesBlobsAsHuggingFaceDoes) {
  const auto listing = ParseListing(
      Listing(Small("config.json") + R"(,{"rfilename":"m.gguf","size":9,"blobId":")" + kSha1 +
              R"(","lfs":{"sha256":")" + kSha256 + R"(","size":9,"pointerSize":3}})"));
  ASSERT_TRUE(listing) << listing.error().message;
  EXPECT_EQ(listing->commit, kSha1);
  ASSERT_EQ(listing->Names(), (std::vector<std::string>{"config.json", "m.gguf"}));
  EXPECT_EQ(listing->files[0].blob, kSha1);
  EXPECT_EQ(listing->files[1].blob, kSha256);
  EXPECT_EQ(listing->files[1].size_bytes, 9u);
}

TEST(RepoListing, RefusesNamesThatLeadOut) {
  for (const char* name : {"../x", "/etc/passwd", "a/../../x", "a\\\\b", "x\\u0000", "x\\n", ""}) {
    EXPECT_NE(ErrorOf(Listing(Small("config.json") + "," + Small(name))).find("has the file name"),
              std::string::npos)
        << name;
  }
  EXPECT_EQ(ErrorOf(Listing(Small("x") + "," + Small("x"))), "the hub's list has x twice");
}

TEST(RepoListing, RefusesWhatIsNoList) {
  for (const char* json : {"", "[]", "{}", "<html>", R"({"sha":"main","siblings":[]})",
                           R"({"sha":1,"siblings":[]})"}) {
    EXPECT_NE(ErrorOf(json).find("is not the list"), std::string::npos) << json;
  }
  EXPECT_NE(ErrorOf(Listing("7")).find("file name ''"), std::string::npos);
  for (const char* size : {"-1", "1.5", "\"3\"", "null", "9223372036854775807"}) {
    EXPECT_NE(
        ErrorOf(Listing(fmt::format(R"({{"rfilename":"x","size":{},"blobId":"{}"}})", size, kSha1)))
            .find("no valid size of x"),
        std::string::npos)
        << size;
  }
  for (const char* blob : {R"("blobId":"../x")", R"("blobId":7)", R"("lfs":{"sha256":"b"})"}) {
    EXPECT_NE(ErrorOf(Listing(fmt::format(R"({{"rfilename":"x","size":3,{}}})", blob)))
                  .find("no checksum of x"),
              std::string::npos)
        << blob;
  }
}

}  // namespace
}  // namespace kvasir::hub
