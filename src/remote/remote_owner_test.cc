// What machines write that change an owner's object at the same time.
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <optional>
#include <string>

#include "base/clock.h"
#include "remote/owner_object.h"
#include "remote/remote_on_fake_for_test.h"

namespace kvasir {
namespace {

class RemoteOwnerChanges : public RemoteTierOnFake {
 protected:
  std::string Object(uint64_t epoch, uint8_t random) {
    const auto sealed =
        keys_.SealOwner(name_, {.epoch = epoch, .random = TestRecord::Filled(random)}, {});
    return {reinterpret_cast<const char*>(sealed->data()), sealed->size()};
  }
  // Has another machine write an object just before this one's transaction is done.
  void ChangeMeanwhile(const std::string& object, int times = 1) {
    fake_.Answer([this, object, times](const FakeWords& words) -> std::optional<std::string> {
      if (words[0] == "EXEC" && changes_ < times) {
        fake_.Put(name_, object + std::string(changes_++ % 2, 'x'));
      }
      return std::nullopt;
    });
  }
  std::optional<OwnerEpoch> Stored() {
    const std::string bytes = fake_.values().at(name_);
    return keys_.UnsealOwner(name_, std::as_bytes(std::span(bytes)));
  }

  const FleetKeys keys_{TestRecord::Filled(77)};
  const std::string name_ = keys_.OwnerName(TestRecord::Owner(0));
  std::atomic<int> changes_ = 0;
};

// Its clock is an hour ahead: the epoch of this machine alone would be lower, and hide that erase.
TEST_F(RemoteOwnerChanges, AnEraseComesAfterOneThatAnotherMachineDidMeanwhile) {
  Open();
  const auto ahead = static_cast<uint64_t>(UnixNs() / 1'000'000) + 3'600'000;
  ChangeMeanwhile(Object(ahead, 9));
  const auto erased = driver_->Erase(TestRecord::Owner(0));
  ASSERT_TRUE(erased) << erased.error().message;
  EXPECT_EQ(erased->remote->epoch, ahead + 1);
  ASSERT_TRUE(Stored());
  EXPECT_EQ(Stored()->epoch, ahead + 1);
}

// The store has lost its data, and another machine erases while this one writes back what it knows.
TEST_F(RemoteOwnerChanges, WhatIsWrittenBackDoesNotHideAnErase) {
  Open();
  const auto erased = driver_->Erase(TestRecord::Owner(0));
  ASSERT_TRUE(erased) << erased.error().message;
  fake_.Put(name_, Object(1, 8));
  ChangeMeanwhile(Object(erased->remote->epoch + 7, 9));
  driver_->Look(FaultRecord(0, 0));
  EXPECT_EQ(changes_, 1);
  ASSERT_TRUE(Stored());
  EXPECT_EQ(Stored()->epoch, erased->remote->epoch + 7);
  const ErasedOwner expected{TestRecord::Owner(0), erased->remote->epoch + 7, true};
  EXPECT_EQ(tier_->TakeErased(), std::vector<ErasedOwner>{expected});
}

TEST_F(RemoteOwnerChanges, OneThatChangesAllTheTimeIsAnError) {
  Open();
  ChangeMeanwhile(Object(5, 9), 1000);
  const auto erased = driver_->Erase(TestRecord::Owner(0));
  ASSERT_FALSE(erased);
  EXPECT_NE(erased.error().message.find("change an owner's object"), std::string::npos)
      << erased.error().message;
}

TEST_F(RemoteOwnerChanges, AStoreThatRefusesSaysWhy) {
  Open();
  struct Refusal {
    std::string command, reply, why;
  };
  for (const Refusal& one : {
           Refusal{"WATCH", "-NOPERM this user may not\r\n", "NOPERM"},
           Refusal{"SET", "-OOM command not allowed\r\n", "OOM"},
           Refusal{"EXEC", "-EXECABORT Transaction discarded\r\n", "EXECABORT"},
           Refusal{"EXEC", "*1\r\n-READONLY a replica\r\n", "READONLY"},
           Refusal{"EXEC", "+OK\r\n", "not a reply to EXEC"},
       }) {
    fake_.Answer([&](const FakeWords& words) -> std::optional<std::string> {
      if (words[0] == one.command) return one.reply;
      if (words[0] == "EXEC") return "-EXECABORT as SET was refused\r\n";
      return std::nullopt;
    });
    const auto erased = driver_->Erase(TestRecord::Owner(0));
    ASSERT_FALSE(erased) << one.why;
    EXPECT_NE(erased.error().message.find(one.why), std::string::npos) << erased.error().message;
    fake_.Answer({});
    ASSERT_TRUE(WaitFor(RemoteStats::State::kOn));
  }
}

// By who has tried the store alone: selftest.
TEST_F(RemoteTierOnFake, OneThatIsRemovedLeavesNothing) {
  Open();
  for (const uint32_t owner : {0u, 1u}) {
    ASSERT_TRUE(tier_->ReadyOwner(TestRecord::Owner(owner)));
    driver_->Look(FaultRecord(owner, 0, owner));
    for (uint32_t i = 0; i < 3; ++i) ASSERT_TRUE(driver_->Write(FaultRecord(owner, i, owner)));
  }
  ASSERT_TRUE(driver_->Flush());
  ASSERT_EQ(fake_.values().size(), 2u * (1 + 3));
  const RemoteTierOptions options = SmallOptions(fake_.address());
  tier_.reset();
  const auto waits = [] { return true; };
  const auto client = StoreClient::Create(options);
  ASSERT_TRUE(client && (*client)->Open(*Resolve(options.address), waits));
  const FleetKeys keys(options.fleet);
  ASSERT_TRUE(RemoveOwner(**client, keys, TestRecord::Owner(0), waits));
  EXPECT_EQ(fake_.values().size(), 1u + 3);
  EXPECT_TRUE(fake_.values().contains(keys.OwnerName(TestRecord::Owner(1))));
  ASSERT_TRUE(RemoveOwner(**client, keys, TestRecord::Owner(1), waits));
  EXPECT_TRUE(fake_.values().empty());
  Answer("UNLINK", "-NOPERM it may not\r\n");
  fake_.Put(keys.OwnerName(TestRecord::Owner(1)), "v");
  EXPECT_EQ(RemoveOwner(**client, keys, TestRecord::Owner(1), waits).error().code,
            Code::kUnavailable);
  fake_.Answer({});
}

}  // namespace
}  // namespace kvasir
