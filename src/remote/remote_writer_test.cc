#include "remote/remote_writer.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>

#include "base/clock.h"
#include "remote/remote_parts_for_test.h"

namespace kvasir {
namespace {

namespace fs = std::filesystem;

// A store that is away for a while. A removal is tried again each minute, which no test waits for.
class RemoteWriterTest : public RemoteParts {
 protected:
  RemoteWriterTest() : RemoteParts(WithFolder()) {
    fake_.Put(NameOf(FaultRecord(0, 0)), "v");
    SetOn(false);
    Start();
  }
  ~RemoteWriterTest() override {
    Stop();
    fs::remove_all(fs::path(store_->options.epochs).parent_path());
  }

  static RemoteTierOptions WithFolder() {
    RemoteTierOptions options = SmallOptions();
    std::string pattern = testing::TempDir() + "/kvasir-removals-XXXXXX";
    options.epochs = std::string(mkdtemp(pattern.data())) + "/epochs";
    return options;
  }
  void SetOn(bool is_on) {
    {
      MutexLock lock(store_->mutex);
      store_->state.now = is_on ? RemoteStats::State::kOn : RemoteStats::State::kOff;
      if (is_on) store_->state.on_ns = MonotonicNs();
    }
    store_->writer_wake.notify_all();
  }
  // Begins, or begins again as a process that is started anew.
  void Start() {
    Stop();
    store_->is_stopping = false;
    writer_.emplace(*store_, looker_);
    Run([this] { writer_->Loop(); });
  }
  // Removes what the owner has, or one record alone; returns the error of the answer.
  std::string Remove(std::optional<ForgetFacts> forget = std::nullopt) {
    std::optional<Result<TierErased>> answer;
    Mutex mutex;
    const auto done = [&](Result<TierErased> erased) {
      MutexLock lock(mutex);
      answer = std::move(erased);
    };
    if (forget) {
      writer_->Forget(std::move(*forget), done);
    } else {
      writer_->Erase(TestRecord::Owner(0), done);
    }
    EXPECT_TRUE(WaitUntil([&](RemoteStore&) {
      MutexLock lock(mutex);
      return answer.has_value();
    }));
    return *answer ? "" : answer->error().message;
  }
  bool HasRecord() { return fake_.values().contains(record_); }
  uint32_t Notes() const {
    uint32_t num = 0;
    std::error_code error;
    for (const auto& entry : fs::directory_iterator(store_->options.epochs, error)) {
      num += entry.path().extension() == ".removal";
    }
    return num;
  }

  std::atomic<uint32_t> first_ = 0, second_ = 0;  // notes that the fake's threads have seen
  RemoteLooker looker_{*store_};
  std::optional<RemoteWriter> writer_;
  const OwnerId owner_ = HaveOwner();
  const std::string record_ = NameOf(FaultRecord(0, 0).facts.owner, FaultRecord(0, 0).facts.name);
};

TEST_F(RemoteWriterTest, AnEraseThatFailedIsDoneWhenTheStoreIsBack) {
  EXPECT_NE(Remove().find("it is tried again each minute and at the next start"),
            std::string::npos);
  EXPECT_EQ(Notes(), 1u);
  EXPECT_TRUE(HasRecord());
  EXPECT_EQ(fake_.Count("CLUSTER"), 0u) << "the looker alone tries whether it answers";
  SetOn(true);
  EXPECT_TRUE(WaitUntil([this](RemoteStore&) { return !HasRecord() && Notes() == 0; }));
}

TEST_F(RemoteWriterTest, AnEraseThatFailedIsDoneByTheNextProcess) {
  EXPECT_NE(Remove(), "");
  Start();
  EXPECT_EQ(Notes(), 1u);
  EXPECT_TRUE(HasRecord());
  SetOn(true);
  EXPECT_TRUE(WaitUntil([this](RemoteStore&) { return !HasRecord() && Notes() == 0; }));
  Start();
  EXPECT_EQ(Notes(), 0u);
}

// Its keys are not kept, so that all of the owner goes.
TEST_F(RemoteWriterTest, AForgetThatFailedIsDoneByTheNextProcess) {
  ForgetFacts facts;
  facts.owner = TestRecord::Owner(0);
  EXPECT_NE(Remove(facts), "");
  EXPECT_EQ(Notes(), 1u);
  Start();
  SetOn(true);
  EXPECT_TRUE(WaitUntil([this](RemoteStore&) { return !HasRecord() && Notes() == 0; }));
}

// Whatever ends the process, what it was asked for is done.
TEST_F(RemoteWriterTest, WhatWaitsIsNotedBeforeItIsDone) {
  fake_.Answer([&](const FakeWords& words) -> std::optional<std::string> {
    if (words[0] != "SCAN" || second_ != 0) return std::nullopt;
    if (first_ == 0) {
      first_ = Notes();
      writer_->Erase(TestRecord::Owner(1), nullptr);
      return "*2\r\n" + RedisFake::Bulk("1") + "*0\r\n";
    }
    second_ = Notes();
    return std::nullopt;
  });
  SetOn(true);
  EXPECT_EQ(Remove(), "");
  EXPECT_EQ(first_, 1u);
  EXPECT_EQ(second_, 2u) << "another one that waits meanwhile";
  EXPECT_TRUE(WaitUntil([this](RemoteStore&) { return Notes() == 0; }));
  fake_.Answer({});
}

// Its names are not known, so that all of the owner goes.
TEST_F(RemoteWriterTest, AForgetOfAnOwnerWhoseEpochIsDamagedIsDoneToo) {
  const std::string owner = store_->keys.OwnerName(TestRecord::Owner(1)), record = owner + "/x";
  fake_.Put(record, "v");
  fs::create_directories(store_->options.epochs);
  const auto epoch = fs::path(store_->options.epochs) / fs::path(owner).filename();
  std::ofstream(epoch) << "damaged";
  SetOn(true);
  ForgetFacts facts;
  facts.owner = TestRecord::Owner(1);
  EXPECT_EQ(Remove(facts), "");
  EXPECT_FALSE(fake_.values().contains(record));
  EXPECT_TRUE(HasRecord()) << "of another owner";
  EXPECT_TRUE(store_->epochs.Read(owner).has_value()) << "it is noted anew";
}

TEST_F(RemoteWriterTest, OneThatSucceedsLeavesNoNote) {
  SetOn(true);
  EXPECT_EQ(Remove(), "");
  EXPECT_FALSE(HasRecord());
  EXPECT_EQ(Notes(), 0u);
}

TEST_F(RemoteWriterTest, ADamagedNoteIsLeftOut) {
  const std::string folder = store_->options.epochs;
  fs::create_directories(folder);
  std::ofstream(folder + "/ab.removal") << "0123\n";
  EXPECT_TRUE(RemovalNotes(folder).All().empty());
  EXPECT_EQ(Notes(), 1u);
}

}  // namespace
}  // namespace kvasir
