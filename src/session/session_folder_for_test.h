// Sessions on a disk of a test's own: texts, states, stores in a folder that goes at the end.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/secret.h"
#include "kvasir/session.h"
#include "kvasir/session_file.h"

namespace kvasir {

inline SessionMessage Said(std::string role, std::string content) {
  SessionMessage message;
  message.role = std::move(role);
  message.content = std::move(content);
  return message;
}

inline std::vector<SessionMessage> OneSaid(std::string role, std::string content) {
  std::vector<SessionMessage> messages;
  messages.push_back(Said(std::move(role), std::move(content)));
  return messages;
}

// Returns the state of a session without messages.
inline SessionState FreshState(SessionStore& store, SessionSetup setup = {}) {
  SessionState state;
  state.setup = *store.Keep(std::move(setup));
  return state;
}

class SessionFolderTest : public testing::Test {
 protected:
  SessionFolderTest() {
    std::string pattern = testing::TempDir() + "/kvasir-sessions-XXXXXX";
    parent_ = mkdtemp(pattern.data());
    options_ = {.folder = parent_ / "kv",
                .cap_bytes = uint64_t{64} << 20,
                .ttl_hours = 168,
                .secret = {.state_dir = parent_ / "state", .file = {}},
                .identity = {"model-1", "f16"},
                .vocab_size = 1000};
    (void)LoadOrCreateSecret(*options_.secret.state_dir);
  }
  ~SessionFolderTest() override { std::filesystem::remove_all(parent_); }

  std::shared_ptr<SessionFile> OpenFile() {
    auto opened = SessionFile::Open(options_);
    EXPECT_TRUE(opened) << opened.error().message;
    return opened ? std::shared_ptr<SessionFile>(std::move(*opened)) : nullptr;
  }
  std::unique_ptr<SessionStore> OpenStore(SessionLimits limits = {}) {
    auto store = std::make_unique<SessionStore>(limits);
    const Status used = store->UseFile(OpenFile());
    EXPECT_TRUE(used);
    return store;
  }

  std::filesystem::path parent_;
  SessionFileOptions options_;
};

}  // namespace kvasir
