#include "import/file_watch.h"

#include <fcntl.h>
#include <sys/stat.h>

#include "base/own_clock.h"
#include "import/model_files_for_test.h"

namespace kvasir {
namespace {

namespace fs = std::filesystem;

class FileWatchTest : public testing::Test {
 protected:
  FileWatchTest() { CatchMappingFaults(); }

  // Makes a watch of one file of 3 pages.
  FileWatch& Watch(FileWatch::Path path = FileWatch::Path::kMustStay,
                   FileWatch::Reads reads = FileWatch::Reads::kInEachStep) {
    file_ = *MappedFile::Open(path_);
    watch_.set_on_change([this](const std::string& text) { told_.push_back(text); });
    watch_.Add(file_, path, reads);
    return watch_;
  }
  void Overwrite(const fs::path& path, const char* text = "other") {
    std::fstream(path, std::ios::in | std::ios::out | std::ios::binary) << text;
  }
  // Makes both checks, twice: the file stays changed, and on_change is called once.
  void ExpectChanged(const std::string& what) {
    for (int i = 0; i < 2; ++i) {
      ExpectError(watch_.CheckStep(), Code::kModelChanged, {path_.string(), what, "restart"});
      ExpectError(watch_.CheckAll(), Code::kModelChanged, {path_.string(), what, "restart"});
    }
    ASSERT_EQ(told_.size(), 1u);
    EXPECT_NE(told_[0].find(path_.string()), std::string::npos);
    EXPECT_NE(told_[0].find("rename the new file over the old one"), std::string::npos);
  }
  void ExpectUnchanged() {
    EXPECT_TRUE(watch_.CheckStep());
    EXPECT_TRUE(watch_.CheckAll());
  }

  TemporaryFolder folder_;
  fs::path path_ = folder_.Write("model.safetensors", std::string(3 * 4096, 'x'));
  std::shared_ptr<const MappedFile> file_;
  std::vector<std::string> told_;
  FileWatch watch_;
};

TEST_F(FileWatchTest, NothingHappensToAFileThatIsOnlyRead) {
  Watch();
  ExpectUnchanged();
  EXPECT_TRUE(ReadTextFile(path_, 1 << 20));
  ExpectUnchanged();
  EXPECT_TRUE(told_.empty());
}

TEST_F(FileWatchTest, AWriteInPlaceIsAChange) {
  Watch();
  Overwrite(path_);
  ExpectChanged("has a new time of change");
}

TEST_F(FileWatchTest, AWriteThatPutsItsTimeBackIsAChange) {
  Watch();
  const fs::file_time_type time = fs::last_write_time(path_);
  Overwrite(path_);
  fs::last_write_time(path_, time);
  ExpectChanged("was changed");
}

TEST_F(FileWatchTest, AFileThatIsCutOrGrowsIsAChange) {
  Watch();
  fs::resize_file(path_, 4096);
  ExpectChanged("from 12288 bytes to 4096");
}

TEST_F(FileWatchTest, ALostPageIsAChangeEvenWhereTheFileIsWholeAgain) {
  Watch();
  fs::resize_file(path_, 0);
  EXPECT_EQ(reinterpret_cast<const volatile char*>(file_->bytes().data())[5000], '\0');
  folder_.Write("model.safetensors", std::string(3 * 4096, 'x'));
  ExpectChanged("lost a page");
}

TEST_F(FileWatchTest, RemovingThePathIsAnErrorUntilItIsBack) {
  Watch();
  const fs::path aside = folder_.path() / "aside";
  fs::rename(path_, aside);
  EXPECT_TRUE(watch_.CheckStep());  // the bytes are there
  for (int i = 0; i < 2; ++i) {
    ExpectError(watch_.CheckAll(), Code::kModelChanged, {path_.string(), "gone", "restart"});
  }
  EXPECT_EQ(told_.size(), 1u);
  fs::rename(aside, path_);
  ExpectUnchanged();
  EXPECT_EQ(told_.size(), 1u);
  Overwrite(path_);
  ExpectError(watch_.CheckStep(), Code::kModelChanged,
              {path_.string(), "has a new time of change"});
}

TEST_F(FileWatchTest, AFileThatIsMovedAsideForAnotherIsServedOn) {
  Watch();
  fs::rename(path_, folder_.path() / "old");
  fs::rename(folder_.Write("new", "another model"), path_);
  ExpectUnchanged();
  fs::remove(folder_.path() / "old");
  ExpectUnchanged();
  ASSERT_EQ(told_.size(), 1u);
  EXPECT_NE(told_[0].find("was replaced"), std::string::npos) << told_[0];
}

TEST_F(FileWatchTest, AFileThatIsReplacedByRenamingIsServedOnAndThatIsTold) {
  Watch();
  fs::rename(folder_.Write("new", "another model"), path_);
  for (int i = 0; i < 2; ++i) ExpectUnchanged();
  ASSERT_EQ(told_.size(), 1u);
  EXPECT_NE(told_[0].find("was replaced"), std::string::npos) << told_[0];
  Overwrite(path_);  // the other one
  ExpectUnchanged();
}

TEST_F(FileWatchTest, AnotherNameOfTheFileIsNoChange) {
  Watch();
  fs::create_hard_link(path_, folder_.path() / "backup");
  ExpectUnchanged();
  Overwrite(folder_.path() / "backup");
  ExpectChanged("has a new time of change");
}

TEST_F(FileWatchTest, AnImageMayBeRemovedButNotWrittenTo) {
  Watch(FileWatch::Path::kMayGo);
  fs::rename(path_, folder_.path() / "aside");
  fs::create_hard_link(folder_.path() / "aside", folder_.path() / "other");
  fs::remove(folder_.path() / "aside");
  ExpectUnchanged();
  Overwrite(folder_.path() / "other");
  ExpectChanged("has a new time of change");
}

TEST_F(FileWatchTest, WhatStepsDoNotReadIsLookedAtByCheckAll) {
  Watch(FileWatch::Path::kMustStay, FileWatch::Reads::kWhileLoading);
  Overwrite(path_);
  EXPECT_TRUE(watch_.CheckStep());
  ExpectError(watch_.CheckAll(), Code::kModelChanged, {"has a new time of change"});
  ExpectError(watch_.CheckStep(), Code::kModelChanged, {"has a new time of change"});
}

TEST_F(FileWatchTest, OneCallerLooksAndTheOthersGetTheLastResult) {
  OwnClock clock;
  Watch();
  std::vector<bool> meanwhile;
  watch_.set_on_change([&](const std::string&) {  // by who looks, before the result is there
    meanwhile.push_back(watch_.CheckLately().has_value());
  });
  EXPECT_TRUE(watch_.CheckLately());
  Overwrite(path_);
  EXPECT_TRUE(watch_.CheckLately());
  clock.Advance(FileWatch::kLately);
  ExpectError(watch_.CheckLately(), Code::kModelChanged, {"has a new time of change"});
  ExpectError(watch_.CheckLately(), Code::kModelChanged, {"has a new time of change"});
  EXPECT_EQ(meanwhile, std::vector<bool>{true});
}

TEST_F(FileWatchTest, AChangeWhileLoadingNamesTheFile) {
  const std::vector files = {*MappedFile::Open(path_)};
  EXPECT_TRUE(CheckWhileLoading(files));
  Overwrite(path_);
  ExpectError(CheckWhileLoading(files), Code::kModelChanged,
              {path_.string(), "has a new time of change", "start again"});
}

}  // namespace
}  // namespace kvasir
