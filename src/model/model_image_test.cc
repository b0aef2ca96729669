#include "model/model_image.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <algorithm>
#include <fstream>
#include <numeric>

#include "base/descriptor.h"
#include "base/file_limit_for_test.h"
#include "base/random.h"
#include "import/model_files_for_test.h"

namespace kvasir {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kLarge = uint64_t{1} << 40;

class Images : public testing::Test {
 protected:
  static std::vector<std::byte> Payload(size_t bytes, uint64_t seed) {
    std::vector<std::byte> payload(bytes);
    Random random(seed);
    for (std::byte& b : payload) b = std::byte(random.Bits());
    return payload;
  }
  ModelImages Make(uint64_t cap_bytes = kLarge) const {
    return ModelImages(folder_.path() / "images", cap_bytes, secret_);
  }
  fs::path OnlyFile() const {
    const auto images = ModelImages::List(folder_.path() / "images");
    EXPECT_EQ(images.size(), 1u);
    return images.empty() ? fs::path() : images[0].path;
  }
  static void SetUsed(const fs::path& path, int64_t seconds) {
    const timespec times[2] = {{seconds, 0}, {seconds, 0}};
    ASSERT_EQ(utimensat(AT_FDCWD, path.c_str(), times, 0), 0);
  }

  TemporaryFolder folder_;
  Secret secret_ = *EphemeralSecret();
  ThreadPool pool_{2, nullptr};
  Digest key_ = Sha256Of("a model");
  // Two chunks of 4 MiB and a part of a third.
  std::vector<std::byte> payload_ = Payload((9 << 20) + 5, 1);
};

TEST_F(Images, AreReadAsTheyWereWritten) {
  const ModelImages images = Make();
  const auto absent = images.Open(key_, payload_.size(), pool_);
  ASSERT_TRUE(absent);
  EXPECT_FALSE(*absent);
  ASSERT_TRUE(images.Write(key_, {"llama", "q8_0"}, payload_, pool_));
  const auto opened = images.Open(key_, payload_.size(), pool_);
  ASSERT_TRUE(opened && *opened) << opened.error().message;
  EXPECT_TRUE(std::ranges::equal((*opened)->payload, payload_));
  EXPECT_EQ(reinterpret_cast<uintptr_t>((*opened)->payload.data()) % 4096, 0u);
  struct stat about;
  ASSERT_EQ(stat(OnlyFile().c_str(), &about), 0);
  EXPECT_EQ(about.st_mode & 0777, 0600u);
  const auto other = images.Open(Sha256Of("another model"), payload_.size(), pool_);
  EXPECT_TRUE(other && !*other);
}

TEST_F(Images, NoFlippedBitAndNoCutIsTrusted) {
  const ModelImages images = Make();
  ASSERT_TRUE(images.Write(key_, {"llama", "q8_0"}, payload_, pool_));
  const fs::path path = OnlyFile();
  std::string whole;
  {
    std::ifstream in(path, std::ios::binary);
    whole.assign(std::istreambuf_iterator<char>(in), {});
  }
  const auto refused = [&](const std::string& content) {
    std::ofstream(path, std::ios::binary) << content;
    ExpectError(images.Open(key_, payload_.size(), pool_), Code::kCorruption, {"image"});
    EXPECT_FALSE(fs::exists(path));  // so it is made again
  };
  // Header, its tag, the chunks' tags, the padding, both ends of the payload and of its chunks.
  const size_t payload_at = whole.size() - payload_.size();
  for (const size_t at : {size_t{0},
                          size_t{9},
                          size_t{13},
                          size_t{16},
                          size_t{50},
                          size_t{72},
                          size_t{80},
                          size_t{90},
                          size_t{215},
                          size_t{231},
                          size_t{232},
                          size_t{247},
                          size_t{248},
                          size_t{295},
                          size_t{296},
                          size_t{1000},
                          payload_at - 1,
                          payload_at,
                          payload_at + (4 << 20) - 1,
                          payload_at + (4 << 20),
                          whole.size() - 1}) {
    for (const int bit : {0, 7}) {
      std::string broken = whole;
      broken[at] = static_cast<char>(broken[at] ^ 1 << bit);
      refused(broken);
    }
  }
  for (const size_t size : {size_t{0}, size_t{1}, size_t{231}, size_t{4096}, payload_at,
                            whole.size() - 4096, whole.size() - 1}) {
    refused(whole.substr(0, size));
  }
  refused(whole + "x");
  std::ofstream(path, std::ios::binary) << whole;
  const auto opened = images.Open(key_, payload_.size(), pool_);
  EXPECT_TRUE(opened && *opened);
}

TEST_F(Images, OneOfAnotherVersionIsCalledSoAndRemoved) {
  const ModelImages images = Make();
  for (const size_t at : {size_t{8}, size_t{12}}) {  // version, layout
    ASSERT_TRUE(images.Write(key_, {"llama", "q8_0"}, payload_, pool_));
    const fs::path path = OnlyFile();
    std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
    file.seekp(static_cast<std::streamoff>(at));
    file.put(7);
    file.close();
    fs::resize_file(path, 5000);  // another version may have another size too
    ExpectError(images.Open(key_, payload_.size(), pool_), Code::kCorruption,
                {path.string(), "another version", at == 8 ? "file version 7" : "layout 7"});
    EXPECT_FALSE(fs::exists(path));
  }
}

TEST_F(Images, SwappedChunksAndAnotherImagesBytesAreRefused) {
  const ModelImages images = Make();
  const Digest other = Sha256Of("b");
  ASSERT_TRUE(images.Write(key_, {"a", "i8"}, payload_, pool_));
  const fs::path path = OnlyFile();
  ASSERT_TRUE(images.Write(other, {"b", "i8"}, Payload(payload_.size(), 2), pool_));
  for (const ImageListing& image : ModelImages::List(path.parent_path())) {
    if (image.path != path) fs::rename(image.path, path);  // another model under this name
  }
  ExpectError(images.Open(key_, payload_.size(), pool_), Code::kCorruption, {"image"});

  ASSERT_TRUE(images.Write(key_, {"a", "i8"}, payload_, pool_));
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  file.seekp(4096);
  file.write(reinterpret_cast<const char*>(payload_.data()) + (4 << 20), 4 << 20);
  file.write(reinterpret_cast<const char*>(payload_.data()), 4 << 20);
  file.close();
  ExpectError(images.Open(key_, payload_.size(), pool_), Code::kCorruption, {"image"});
}

TEST_F(Images, OpeningOneChangesNoTimeOfAnImageThatIsMapped) {
  const ModelImages images = Make();
  ASSERT_TRUE(images.Write(key_, {"a", "i8"}, payload_, pool_));
  const int64_t written_ns = ModelImages::List(folder_.path() / "images").at(0).used_ns;
  const auto opened = images.Open(key_, payload_.size(), pool_);
  ASSERT_TRUE(opened && *opened);
  const auto again = images.Open(key_, payload_.size(), pool_);
  ASSERT_TRUE(again && *again);
  EXPECT_EQ((*opened)->file->stamp(), *(*opened)->file->Now());
  EXPECT_GT(ModelImages::List(folder_.path() / "images").at(0).used_ns, written_ns);
}

TEST_F(Images, TheMarkOfOneThatIsGoneGoesToo) {
  const ModelImages images = Make();
  ASSERT_TRUE(images.Write(key_, {"a", "i8"}, payload_, pool_));
  const auto opened = images.Open(key_, payload_.size(), pool_);
  ASSERT_TRUE(opened && *opened);
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_.path() / "images-used"), {}), 1);
  fs::remove(OnlyFile());
  const std::vector<std::byte> small = Payload(1000, 3);
  ASSERT_TRUE(images.Write(Sha256Of("b"), {"b", "i8"}, small, pool_));
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_.path() / "images-used"), {}), 0);
}

TEST_F(Images, AnotherSecretIsNoTrust) {
  ASSERT_TRUE(Make().Write(key_, {"a", "i8"}, payload_, pool_));
  secret_ = *EphemeralSecret();
  ExpectError(Make().Open(key_, payload_.size(), pool_), Code::kCorruption, {"secret"});
}

TEST_F(Images, TheLeastRecentlyUsedGoUntilANewOneFits) {
  const std::vector<std::byte> small = Payload(100'000, 3);
  const uint64_t file_bytes = 4096 + small.size();
  const ModelImages images = Make(3 * file_bytes + 10);
  std::vector<Digest> keys;
  for (int i = 0; i < 3; ++i) {
    keys.push_back(Sha256Of(std::to_string(i)));
    ASSERT_TRUE(images.Write(keys[i], {"m" + std::to_string(i), "i8"}, small, pool_));
  }
  int64_t seconds = 1'000'000;
  for (const ImageListing& image : ModelImages::List(folder_.path() / "images")) {
    EXPECT_EQ(image.file_bytes, file_bytes);
    SetUsed(image.path, seconds + (image.title.model == "m1"   ? 0
                                   : image.title.model == "m0" ? 5
                                                               : 9));
  }
  // m1 is the oldest until Open uses it.
  const auto used = images.Open(keys[1], small.size(), pool_);
  ASSERT_TRUE(used && *used);
  ASSERT_TRUE(images.Write(Sha256Of("new"), {"new", "i8"}, small, pool_));
  std::vector<std::string> names;
  for (const ImageListing& image : ModelImages::List(folder_.path() / "images")) {
    names.push_back(image.title.model);
  }
  std::ranges::sort(names);
  EXPECT_EQ(names, (std::vector<std::string>{"m1", "m2", "new"}));
  EXPECT_TRUE(std::ranges::equal((*used)->payload, small));

  ExpectError(images.Write(key_, {"large", "i8"}, payload_, pool_), Code::kExhausted, {"cap"});
  EXPECT_EQ(ModelImages::List(folder_.path() / "images").size(),
            3u);  // no image was removed in vain
}

TEST_F(Images, ACapThatWasLoweredHoldsAtTheNextStart) {
  const std::vector<std::byte> small = Payload(100'000, 3);
  const uint64_t file_bytes = 4096 + small.size();
  const auto count = [&] { return ModelImages::List(folder_.path() / "images").size(); };
  for (const char* name : {"a", "b", "c"}) {
    ASSERT_TRUE(Make().Write(Sha256Of(name), {name, "i8"}, small, pool_));
  }
  folder_.Write("images/.kvasir-11.draft", "of a crash");
  SetUsed(folder_.path() / "images/.kvasir-11.draft", 1'000'000);
  const auto opened = Make(2 * file_bytes).Open(Sha256Of("a"), small.size(), pool_);
  ASSERT_TRUE(opened && *opened);
  EXPECT_EQ(count(), 2u);
  EXPECT_FALSE(fs::exists(folder_.path() / "images/.kvasir-11.draft"));
  const auto last = Make(file_bytes - 1).Open(Sha256Of("a"), small.size(), pool_);
  ASSERT_TRUE(last && *last);
  EXPECT_EQ(count(), 0u);
  EXPECT_TRUE(std::ranges::equal((*last)->payload, small));
}

TEST_F(Images, WhatAnotherProcessWritesCountsToTheCap) {
  const std::vector<std::byte> small = Payload(100'000, 3);
  const uint64_t file_bytes = 4096 + small.size();
  const fs::path draft = folder_.path() / "images/.kvasir-11.draft";
  folder_.Write("images/.kvasir-11.draft", std::string(file_bytes, 'x'));
  const Descriptor writer(open(draft.c_str(), O_RDONLY | O_CLOEXEC));
  ASSERT_EQ(flock(writer.fd(), LOCK_EX | LOCK_NB), 0);
  const ModelImages images = Make(2 * file_bytes - 1);
  ExpectError(images.Write(key_, {"a", "i8"}, small, pool_), Code::kExhausted,
              {"bytes of other images"});
  // The other process has finished its image meanwhile: the next writer removes that.
  fs::rename(draft, folder_.path() / "images/image-11.kvw");
  ASSERT_TRUE(images.Write(key_, {"a", "i8"}, small, pool_));
  EXPECT_EQ(ModelImages::List(folder_.path() / "images").size(), 1u);
}

TEST_F(Images, AFolderThatCannotBeMadeIsAnError) {
  folder_.Write("images", "a file where the folder should be");
  ExpectError(Make().Write(key_, {"a", "i8"}, payload_, pool_), Code::kNotFound,
              {"cannot make the folder", "images: Not a directory"});
  EXPECT_TRUE(ModelImages::List(folder_.path() / "images").empty());
}

TEST_F(Images, AWriteThatFallsShortSaysWhyAndChangesNothing) {
  const ModelImages images = Make();
  ASSERT_TRUE(images.Write(key_, {"a", "i8"}, payload_, pool_));
  const std::vector<std::byte> other = Payload(payload_.size(), 2);
  for (const rlim_t max_bytes : {0, 100, 5 << 20}) {  // nothing, the header, a part of a chunk
    Status written;
    {
      const FileLimit limit(max_bytes);
      written = images.Write(key_, {"a", "i8"}, other, pool_);
    }
    ExpectError(written, Code::kIoError, {"model image: cannot write", ": File too large"});
  }
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_.path() / "images"), {}), 1);
  const auto opened = images.Open(key_, payload_.size(), pool_);
  ASSERT_TRUE(opened && *opened);
  EXPECT_TRUE(std::ranges::equal((*opened)->payload, payload_));
}

TEST_F(Images, WhatIsNoFileIsNoImage) {
  const ModelImages images = Make();
  ASSERT_TRUE(images.Write(key_, {"a", "i8"}, payload_, pool_));
  const fs::path path = OnlyFile();
  fs::remove(path);
  fs::create_directory(path);
  const auto opened = images.Open(key_, payload_.size(), pool_);
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().code, Code::kInvalidArgument);
  ExpectError(images.Write(key_, {"a", "i8"}, payload_, pool_), Code::kInvalidArgument,
              {"model image: cannot write", "not a regular file"});
}

TEST_F(Images, DraftsOfACrashGoAndThoseThatAreWrittenStay) {
  const fs::path crashed = folder_.path() / "images/.kvasir-11.draft";
  const fs::path young = folder_.path() / "images/.kvasir-22.draft";
  const fs::path written = folder_.path() / "images/.kvasir-33.draft";
  for (const char* number : {"11", "22", "33"}) {
    folder_.Write(fmt::format("images/.kvasir-{}.draft", number), "half");
  }
  for (const fs::path& path : {crashed, written}) SetUsed(path, 1'000'000);
  const Descriptor writer(open(written.c_str(), O_RDONLY | O_CLOEXEC));
  ASSERT_EQ(flock(writer.fd(), LOCK_EX | LOCK_NB), 0);
  ASSERT_TRUE(Make().Write(key_, {"a", "i8"}, payload_, pool_));
  EXPECT_FALSE(fs::exists(crashed));
  EXPECT_TRUE(fs::exists(young));
  EXPECT_TRUE(fs::exists(written));
}

TEST_F(Images, ANameIsPrintable) {
  ASSERT_TRUE(
      Make().Write(key_, {"bad\033[31m\nname" + std::string(200, 'x'), "i8"}, payload_, pool_));
  const auto images = ModelImages::List(folder_.path() / "images");
  ASSERT_EQ(images.size(), 1u);
  EXPECT_TRUE(images[0].title.model.starts_with("bad?[31m?name"));
  EXPECT_EQ(images[0].title.model.size(), 127u);
}

}  // namespace
}  // namespace kvasir
