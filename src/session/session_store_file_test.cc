// SessionStore with a file that it gives up, so that another process can open it.
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "session/session_folder_for_test.h"

namespace kvasir {
namespace {

const Error kElsewhere{Code::kUnavailable, "another server has them"};

class LeftFileTest : public SessionFolderTest {
 protected:
  LeftFileTest() {
    options_.on_need = [this](uint64_t) {
      if (during_write_) std::exchange(during_write_, nullptr)();
    };
    store_ = OpenStore({.max_responses = 4});
  }

  void Leave() { store_->LeaveFile(kElsewhere); }
  void LeaveDuringTheNextWrite() {
    during_write_ = [this] { Leave(); };
  }
  void UseFileAgain() { ASSERT_TRUE(store_->UseFile(OpenFile())); }

  std::string Make(const std::string& text, bool on_disk = true) {
    SessionSetup setup;
    setup.on_disk = on_disk;
    const SessionState state = FreshState(*store_, std::move(setup));
    const auto made = store_->Create("t", *Append(*store_, state, OneSaid("user", text)));
    EXPECT_TRUE(made) << made.error().message;
    return made ? made->id : "";
  }
  Status Add(SessionStore::Turn& turn, const std::string& text) {
    return turn.Replace(*Append(*store_, *turn.Read()->state, OneSaid("user", text)));
  }
  void ExpectElsewhere(const std::string& id) {
    EXPECT_EQ(store_->file(), nullptr);
    const auto found = store_->Find("t", id);
    ASSERT_FALSE(found);
    EXPECT_EQ(found.error().text(), kElsewhere.text());
    EXPECT_EQ(store_->counts().sessions, 0u);
    EXPECT_EQ(store_->counts().bytes, 0u);
  }
  // Adds a message, and gives the file up while it is written.
  void AddWhileItLeaves(const std::string& id) {
    {
      const auto turn = *store_->Queue("t", id, [] {});
      LeaveDuringTheNextWrite();
      EXPECT_TRUE(Add(*turn, "second"));
    }
    ExpectElsewhere(id);
    UseFileAgain();
    EXPECT_EQ(LastText(id), "second");
  }
  std::string LastText(const std::string& id) {
    const auto found = store_->Find("t", id);
    return found ? found->state->messages.back()->content : found.error().text();
  }

  std::function<void()> during_write_;  // called once
  std::unique_ptr<SessionStore> store_;
};

TEST_F(LeftFileTest, WhatItHasLeavesTheStoreUntilItIsUsedAgain) {
  const std::string kept = Make("kept"), brief = Make("brief", false);
  Leave();
  EXPECT_EQ(store_->counts().sessions, 1u);
  EXPECT_EQ(store_->Find("t", kept).error().text(), kElsewhere.text());
  EXPECT_EQ(LastText(brief), "brief");
  const std::string later = Make("later");
  EXPECT_FALSE(store_->Find("t", later)->on_disk);
  {
    const auto other = OpenFile();  // as another process would
    ASSERT_NE(other, nullptr);
    EXPECT_EQ(other->List()->size(), 1u);
  }
  UseFileAgain();
  EXPECT_EQ(LastText(kept), "kept");
  ASSERT_TRUE(store_->SweepFile());
  EXPECT_TRUE(store_->Find("t", later)->on_disk);
  EXPECT_EQ(store_->counts().sessions, 3u);
}

TEST_F(LeftFileTest, ATurnThatWaitsIsToldWhereItsSessionIs) {
  const std::string id = Make("first");
  const auto turn = *store_->Queue("t", id, [] {});
  SessionState longer = *Append(*store_, *turn->Read()->state, OneSaid("user", "second"));
  Leave();
  EXPECT_EQ(turn->Read().error().text(), kElsewhere.text());
  EXPECT_EQ(turn->Replace(std::move(longer)).error().text(), kElsewhere.text());
  EXPECT_EQ(turn->Remove().error().text(), kElsewhere.text());
  turn->End();
  UseFileAgain();
  EXPECT_EQ(LastText(id), "first");
}

TEST_F(LeftFileTest, AChangeThatIsUnderWayIsInTheFile) {
  LeaveDuringTheNextWrite();
  const std::string id = Make("first");
  ExpectElsewhere(id);
  UseFileAgain();
  EXPECT_EQ(LastText(id), "first");
  AddWhileItLeaves(id);
}

TEST_F(LeftFileTest, AFirstRowThatIsUnderWayIsInTheFile) {
  Leave();
  const std::string id = Make("first");
  UseFileAgain();
  EXPECT_FALSE(store_->Find("t", id)->on_disk);
  AddWhileItLeaves(id);
}

TEST_F(LeftFileTest, AResponseThatIsBeingStoredIsInTheFile) {
  SessionStore responses = store_->Responses();
  const std::string id = "resp_" + std::string(32, '1');
  LeaveDuringTheNextWrite();
  EXPECT_TRUE(responses.Store("t", id, responses.Removals("t"), [](SessionStore& own) {
    return Append(own, FreshState(own), OneSaid("user", "said"));
  }));
  EXPECT_EQ(store_->counts().responses, 0u);
  EXPECT_EQ(responses.Find("t", id).error().text(), kElsewhere.text());
  UseFileAgain();
  EXPECT_EQ(responses.Find("t", id)->state->messages[0]->content, "said");
}

}  // namespace
}  // namespace kvasir
