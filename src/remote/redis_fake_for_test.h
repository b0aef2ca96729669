// RedisFake: a store of a test that answers as Redis does, or as the test wants it.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "remote/connection_threads_for_test.h"
#include "remote/remote_address.h"

namespace kvasir {

// Keeps values without a lifetime. A thread for each connection; ends with the object.
class RedisFake {
 public:
  using Words = std::vector<std::string>;
  // Returns the bytes that are sent for a command; absent: what Redis would send. Several
  // connections call it at once.
  using Answers = std::function<std::optional<std::string>(const Words&)>;
  // As answers: the connection is closed; the number 0 comes, a byte each 5 ms, for 1 s.
  static inline const std::string kHangUp = "hang up", kDrips = "drips";

  explicit RedisFake(Answers answers = {})
      : answers_(std::move(answers)), connections_([this](int fd) { Serve(fd); }) {}

  RemoteAddress address() const {
    return {.host = "127.0.0.1", .port = connections_.port(), .user = {}};
  }
  // Sets what the next commands are answered by.
  void Answer(Answers answers) {
    MutexLock lock(mutex_);
    answers_ = std::move(answers);
  }
  // Returns how often a command came.
  uint32_t Count(const std::string& command) {
    MutexLock lock(mutex_);
    return counts_[command];
  }
  // Returns the arguments of a command, of all calls.
  Words Names(const std::string& command) {
    MutexLock lock(mutex_);
    return names_[command];
  }
  std::map<std::string, std::string> values() {
    MutexLock lock(mutex_);
    return values_;
  }

  void Put(const std::string& name, const std::string& value) {
    MutexLock lock(mutex_);
    values_[name] = value;
  }
  // Changes what is stored, by `change`.
  void Change(const std::function<void(std::map<std::string, std::string>& values)>& change) {
    MutexLock lock(mutex_);
    change(values_);
  }
  // Returns whether some reply of kDrips was sent to its end.
  bool has_dripped() const { return has_dripped_; }
  // Closes all connections.
  void HangUp() { connections_.HangUp(); }

  static std::string Bulk(std::string_view bytes) {
    return "$" + std::to_string(bytes.size()) + "\r\n" + std::string(bytes) + "\r\n";
  }

 private:
  // A connection's bytes, read one after the other.
  struct Input {
    int fd;
    std::string bytes;
    bool More() { return ConnectionThreads::Receive(fd, &bytes); }
    // Returns the number of a line like *3 or $17; below 0: the connection ended.
    int64_t Number() {
      size_t end;
      while ((end = bytes.find("\r\n")) == std::string::npos) {
        if (!More()) return -1;
      }
      const int64_t number = std::atoll(bytes.c_str() + 1);
      bytes.erase(0, end + 2);
      return number;
    }
    std::optional<Words> Command() {
      Words words;
      for (int64_t num = Number(); static_cast<int64_t>(words.size()) < num;) {
        const int64_t length = Number();
        if (length < 0) return std::nullopt;
        while (bytes.size() < static_cast<size_t>(length) + 2) {
          if (!More()) return std::nullopt;
        }
        words.push_back(bytes.substr(0, static_cast<size_t>(length)));
        bytes.erase(0, static_cast<size_t>(length) + 2);
      }
      return words.empty() ? std::nullopt : std::optional(words);
    }
  };

  // What WATCH and MULTI have begun on a connection.
  struct Transaction {
    std::map<std::string, std::optional<std::string>> watched;
    std::optional<std::vector<Words>> queued;
  };
  void Serve(int fd) {
    Input input{.fd = fd, .bytes = {}};
    Transaction transaction;
    while (const auto words = input.Command()) {
      Answers answers;
      {
        MutexLock lock(mutex_);
        ++counts_[words->at(0)];
        if (words->size() > 1) names_[words->at(0)].push_back(words->at(1));
        answers = answers_;
      }
      const auto own = answers ? answers(*words) : std::nullopt;
      if (own && words->at(0) == "EXEC") transaction = {};
      const std::string sent = own ? *own : Usual(*words, &transaction);
      if (sent == kHangUp) break;
      if (sent == kDrips ? !SendSlowly(fd, ":" + std::string(200, '0') + "\r\n")
                         : !ConnectionThreads::Send(fd, sent))
        break;
    }
  }
  // Takes 5 ms for each byte.
  bool SendSlowly(int fd, std::string_view bytes) {
    for (size_t i = 0; i < bytes.size(); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      if (!ConnectionThreads::Send(fd, bytes.substr(i, 1))) return false;
    }
    has_dripped_ = true;
    return true;
  }
  std::string Usual(const Words& words, Transaction* transaction) {
    MutexLock lock(mutex_);
    const std::string& command = words[0];
    if (command == "WATCH") {
      transaction->watched[words[1]] = ValueOf(words[1]);
      return "+OK\r\n";
    }
    if (command == "MULTI") {
      transaction->queued.emplace();
      return "+OK\r\n";
    }
    if (command == "UNWATCH" || command == "EXEC") {
      const Transaction begun = std::exchange(*transaction, {});
      if (command == "UNWATCH") return "+OK\r\n";
      for (const auto& [name, value] : begun.watched) {
        if (ValueOf(name) != value) return "*-1\r\n";
      }
      std::string replies = "*" + std::to_string(begun.queued->size()) + "\r\n";
      for (const Words& one : *begun.queued) replies += Done(one);
      return replies;
    }
    if (!transaction->queued) return Done(words);
    transaction->queued->push_back(words);
    return "+QUEUED\r\n";
  }
  std::optional<std::string> ValueOf(const std::string& name) KV_REQUIRES(mutex_) {
    const auto found = values_.find(name);
    return found == values_.end() ? std::nullopt : std::optional(found->second);
  }
  std::string Done(const Words& words) KV_REQUIRES(mutex_) {
    const std::string& command = words[0];
    const auto found = words.size() > 1 ? values_.find(words[1]) : values_.end();
    const bool is_there = found != values_.end();
    if (command == "PING") return "+PONG\r\n";
    if (command == "GET") return is_there ? Bulk(found->second) : "$-1\r\n";
    if (command == "GETRANGE") {
      const size_t most = static_cast<size_t>(std::atoll(words[3].c_str())) + 1;
      return Bulk(is_there ? found->second.substr(0, most) : "");
    }
    if (command == "EXISTS" || command == "EXPIRE") return is_there ? ":1\r\n" : ":0\r\n";
    if (command == "UNLINK") return ":" + std::to_string(values_.erase(words[1])) + "\r\n";
    if (command == "SET") {
      if (words.back() == "NX" && is_there) return "$-1\r\n";
      values_[words[1]] = words[2];
      return "+OK\r\n";
    }
    if (command == "SCAN") {
      const std::string below = words[3].substr(0, words[3].size() - 1);  // without its *
      std::string list;
      size_t num = 0;
      for (const auto& [name, value] : values_) {
        if (!name.starts_with(below)) continue;
        list += Bulk(name);
        ++num;
      }
      return "*2\r\n$1\r\n0\r\n*" + std::to_string(num) + "\r\n" + list;
    }
    return "-ERR unknown command\r\n";
  }

  std::atomic<bool> has_dripped_ = false;
  Mutex mutex_;
  Answers answers_ KV_GUARDED_BY(mutex_);
  std::map<std::string, uint32_t> counts_ KV_GUARDED_BY(mutex_);
  std::map<std::string, Words> names_ KV_GUARDED_BY(mutex_);
  std::map<std::string, std::string> values_ KV_GUARDED_BY(mutex_);
  ConnectionThreads connections_;  // last: its threads use the others
};

}  // namespace kvasir
