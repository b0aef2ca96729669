// An erase in the store that takes long, and one that fails.
#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <optional>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "remote/fleet_keys.h"
#include "remote/remote_on_fake_for_test.h"

namespace kvasir {
namespace {

constexpr uint32_t kPageOfScan = 400;  // names that a reply to SCAN has here

class RemoteRemoval : public RemoteTierOnFake {
 protected:
  ~RemoteRemoval() override {
    LetGo();
    tier_.reset();  // which may call Erase's function
    fake_.Answer({});
  }
  // Has the store know so many names of owner 0 beside its object.
  void PutNames(uint32_t num) {
    for (uint32_t i = 0; i < num; ++i) fake_.Put(below_ + std::to_string(i), "v");
  }
  // Returns the reply to SCAN with the names of a page; after the last one the cursor is 0.
  std::string Page(uint32_t page, uint32_t num_pages) const {
    const uint32_t next = page + 1 < num_pages ? page + 1 : 0;
    std::string reply = "*2\r\n" + RedisFake::Bulk(std::to_string(next)) + "*" +
                        std::to_string(kPageOfScan) + "\r\n";
    for (uint32_t i = page * kPageOfScan; i < (page + 1) * kPageOfScan; ++i) {
      reply += RedisFake::Bulk(below_ + std::to_string(i));
    }
    return reply;
  }
  // Erases owner 0, and notes each answer.
  void Erase() {
    tier_->Erase(TestRecord::Owner(0), [this](Result<TierErased> erased) {
      MutexLock lock(mutex_);
      answers_.push_back(std::move(erased));
    });
  }
  std::vector<Result<TierErased>> answers() {
    MutexLock lock(mutex_);
    return answers_;
  }
  void Wait() {
    MutexLock lock(mutex_);
    while (!is_open_) lock.Wait(opened_);
  }
  void LetGo() {
    MutexLock lock(mutex_);
    is_open_ = true;
    opened_.notify_all();
  }

  const std::string below_ =
      FleetKeys(TestRecord::Filled(77)).OwnerName(TestRecord::Owner(0)) + "/";
  // Read by the fake's threads, also after a test's end.
  std::atomic<bool> fails_ = false, has_failed_ = false;
  Mutex mutex_;
  std::condition_variable opened_;
  bool is_open_ KV_GUARDED_BY(mutex_) = false;
  std::vector<Result<TierErased>> answers_ KV_GUARDED_BY(mutex_);
};

TEST_F(RemoteRemoval, OneThatTakesLongAnswersAndGoesOn) {
  RemoteTierOptions options = SmallOptions(fake_.address());
  EXPECT_EQ(options.answer_ns, 10'000'000'000u);
  options.answer_ns = 0;
  Open(options);
  constexpr uint32_t kPages = 3;
  PutNames(kPages * kPageOfScan);
  fake_.Answer([&](const FakeWords& words) -> std::optional<std::string> {
    if (words[0] != "SCAN") return std::nullopt;
    const auto page = static_cast<uint32_t>(std::stoul(words[1]));
    if (page > 0) Wait();
    return Page(page, kPages);
  });
  Erase();
  ASSERT_TRUE(driver_->WaitUntil([&] { return !answers().empty(); }));
  ASSERT_TRUE(answers()[0]) << answers()[0].error().message;
  const RemoteErased erased = *answers()[0]->remote;
  EXPECT_FALSE(erased.complete);
  EXPECT_EQ(erased.records, kPageOfScan);
  EXPECT_GT(erased.epoch, 1u);
  EXPECT_EQ(fake_.values().size(), 1 + (kPages - 1) * kPageOfScan);
  driver_->Look(FaultRecord(0, 0));
  EXPECT_FALSE(driver_->Write(FaultRecord(0, 0))) << "until all names are removed";
  LetGo();
  ASSERT_TRUE(driver_->WaitUntil([&] { return fake_.values().size() == 1; })) << "its object stays";
  ASSERT_TRUE(driver_->WaitUntil([&] { return driver_->Write(FaultRecord(0, 0)).has_value(); }));
  EXPECT_EQ(answers().size(), 1u) << "it answers once";
}

TEST_F(RemoteRemoval, OneThatFailsAfterItsAnswerIsTriedAgain) {
  RemoteTierOptions options = SmallOptions(fake_.address());
  EXPECT_EQ(options.again_ns, 60'000'000'000u);
  options.answer_ns = 0;
  options.again_ns = 200'000'000;
  Open(options);
  constexpr uint32_t kPages = 2;
  PutNames(kPages * kPageOfScan);
  fake_.Answer([&](const FakeWords& words) -> std::optional<std::string> {
    if (words[0] != "SCAN" || has_failed_) return std::nullopt;
    if (words[1] == "0") return Page(0, kPages);
    has_failed_ = true;
    return RedisFake::kHangUp;
  });
  Erase();
  ASSERT_TRUE(driver_->WaitUntil([&] { return fake_.values().size() == 1; }));
  EXPECT_TRUE(has_failed_);
  EXPECT_GE(tier_->Remote().fault_io, 1u);
  ASSERT_EQ(answers().size(), 1u) << "it answers once";
  EXPECT_FALSE(answers()[0]->remote->complete);
}

TEST_F(RemoteRemoval, OneThatFailsSaysSoAndIsTriedAgain) {
  RemoteTierOptions options = SmallOptions(fake_.address());
  options.again_ns = 200'000'000;
  Open(options);
  PutNames(10);
  fails_ = true;
  fake_.Answer([&](const FakeWords& words) -> std::optional<std::string> {
    return words[0] == "SCAN" && fails_ ? std::optional(RedisFake::kHangUp) : std::nullopt;
  });
  Erase();
  ASSERT_TRUE(driver_->WaitUntil([&] { return !answers().empty(); }));
  ASSERT_FALSE(answers()[0]);
  EXPECT_EQ(answers()[0].error().code, Code::kUnavailable);
  EXPECT_NE(answers()[0].error().message.find("it is tried again each minute"), std::string::npos);
  EXPECT_EQ(fake_.values().size(), 11u);
  EXPECT_FALSE(driver_->Write(FaultRecord(0, 0))) << "until it has succeeded";
  const uint32_t scans = fake_.Count("SCAN");
  ASSERT_TRUE(driver_->WaitUntil([&] { return fake_.Count("SCAN") > scans; })) << "and failed";
  fails_ = false;
  ASSERT_TRUE(driver_->WaitUntil([&] { return fake_.values().size() == 1; }));
  ASSERT_TRUE(driver_->WaitUntil([&] { return driver_->Write(FaultRecord(0, 0)).has_value(); }));
  EXPECT_EQ(answers().size(), 1u);
}

}  // namespace
}  // namespace kvasir
