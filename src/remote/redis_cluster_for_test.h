// RedisCluster: three real redis-servers for a test that are one cluster, each with a third of the
// slots.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/certificates_for_test.h"
#include "base/needs_for_test.h"
#include "remote/redis_server_for_test.h"
#include "remote/redis_slots.h"

namespace kvasir {

class RedisCluster {
 public:
  static constexpr size_t kNodes = 3;

  // nullptr: redis-server is not installed, or does not start. With certificates, it speaks TLS at
  // other ports too, which it tells who asks there, and between its nodes.
  static std::unique_ptr<RedisCluster> Start(const TestCertificates* tls = nullptr) {
    for (int tries = 0; tries < 3; ++tries) {  // another program may take a port that was free
      std::unique_ptr<RedisCluster> cluster(new RedisCluster());
      if (cluster->Begin(tls)) return cluster;
    }
    return nullptr;
  }
  // Returns one that lasts until the process ends, without values. nullptr: as Start.
  static RedisCluster* Shared() {
    static const std::unique_ptr<RedisCluster> kShared = Start();
    if (kShared) kShared->ForEach({"FLUSHALL"});
    return kShared.get();
  }
  ~RedisCluster() {
    for (auto& node : nodes_) node.reset();
    std::filesystem::remove_all(folder_);
  }

  RedisServer& node(size_t i) { return *nodes_[i]; }
  RemoteAddress address() const { return nodes_[0]->address(); }
  // Returns the address with TLS. REQUIRES: it has certificates.
  RemoteAddress tls_address() const {
    RemoteAddress address = nodes_[0]->address();
    address.port = tls_ports_[0];
    address.has_tls = true;
    return address;
  }
  // Sends a command to each node; false: one refuses it.
  bool ForEach(std::initializer_list<std::string_view> words) {
    return std::ranges::all_of(nodes_, [&](auto& node) {
      const auto reply = node->Ask(words);
      return reply && reply->kind != RedisReply::Kind::kError;
    });
  }
  // Returns how many values a node has.
  uint64_t NumKeys(size_t i) {
    const auto reply = nodes_[i]->Ask({"DBSIZE"});
    return reply ? static_cast<uint64_t>(reply->number) : 0;
  }
  uint64_t NumKeys() {
    uint64_t all = 0;
    for (size_t i = 0; i < kNodes; ++i) all += NumKeys(i);
    return all;
  }
  // Returns the node that has a slot.
  size_t OwnerOf(uint16_t slot) const { return owners_[slot]; }

  // Moves a slot as `redis-cli --cluster reshard` does, in these three steps.
  bool BeginMove(uint16_t slot, size_t to) {
    const std::string number = std::to_string(slot);
    const size_t from = owners_[slot];
    return IsOk(to, {"CLUSTER", "SETSLOT", number, "IMPORTING", ids_[from]}) &&
           IsOk(from, {"CLUSTER", "SETSLOT", number, "MIGRATING", ids_[to]});
  }
  bool MoveValues(uint16_t slot, size_t to) {
    const std::string number = std::to_string(slot);
    RedisServer& from = *nodes_[owners_[slot]];
    const std::string port =
        std::to_string(tls_ports_.empty() ? nodes_[to]->address().port : tls_ports_[to]);
    for (;;) {
      std::vector<std::string> names;
      std::array<std::byte, 256> bulk;
      const auto list = from.Ask({"CLUSTER", "GETKEYSINSLOT", number, "8"});
      if (!list || list->kind != RedisReply::Kind::kArray) return false;
      for (int64_t i = 0; i < list->number; ++i) {
        const auto name = from.connection().ReadBulk(bulk, [] { return true; });
        if (!name) return false;
        names.emplace_back(*name);
      }
      if (names.empty()) return true;
      for (const std::string& name : names) {
        if (!IsOk(owners_[slot], {"MIGRATE", "127.0.0.1", port, name, "0", "5000"})) return false;
      }
    }
  }
  bool EndMove(uint16_t slot, size_t to) {
    const std::string number = std::to_string(slot);
    const size_t from = owners_[slot];
    owners_[slot] = static_cast<uint8_t>(to);
    for (const size_t i : {to, from, kNodes - to - from}) {
      if (!IsOk(i, {"CLUSTER", "SETSLOT", number, "NODE", ids_[to]})) return false;
    }
    return WaitForOneEpoch();
  }

 private:
  RedisCluster() {
    std::string pattern =
        std::filesystem::temp_directory_path().string() + "/kvasir-cluster-XXXXXX";
    folder_ = mkdtemp(pattern.data());
  }
  bool IsOk(size_t i, std::initializer_list<std::string_view> words) {
    const auto reply = nodes_[i]->Ask(words);
    const bool is_ok = reply && (reply->is_ok() || reply->text == "NOKEY");
    EXPECT_TRUE(is_ok) << *words.begin() << ": " << (reply ? reply->text : reply.error().message);
    return is_ok;
  }
  // Returns what a node says of a field in CLUSTER INFO; "": it says nothing of it.
  std::string InfoOf(size_t i, const std::string& field) {
    std::array<std::byte, 4096> bulk;
    const auto told = nodes_[i]->Ask({"CLUSTER", "INFO"}, bulk);
    if (!told || told->kind != RedisReply::Kind::kBulk) return "";
    const std::string text(reinterpret_cast<const char*>(bulk.data()),
                           static_cast<size_t>(told->number));
    const size_t at = text.find(field + ":");
    if (at == std::string::npos) return "";
    const size_t value = at + field.size() + 1;
    return text.substr(value, text.find('\r', value) - value);
  }
  // Waits until no node has yet to hear of a move: else the next owner of the slot could take an
  // epoch that is taken, and lose the slot.
  bool WaitForOneEpoch() {
    return WaitUntil([this] {
      const std::string epoch = InfoOf(0, "cluster_current_epoch");
      return epoch == InfoOf(1, "cluster_current_epoch") &&
             epoch == InfoOf(2, "cluster_current_epoch");
    });
  }
  static bool WaitUntil(const std::function<bool()>& is_so) {
    for (int tries = 0; tries < 30'000; ++tries) {
      if (is_so()) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return false;
  }
  bool Begin(const TestCertificates* tls) {
    std::array<std::byte, 4096> bulk;
    for (size_t i = 0; i < kNodes; ++i) {
      const std::string number = std::to_string(i);
      const char* const port = RedisServer::kPort;
      std::vector<std::string> flags = {
          "--cluster-enabled", "yes", "--cluster-config-file",  folder_ + "/" + number,
          "--cluster-port",    port,  "--cluster-node-timeout", "5000"};
      if (tls != nullptr) {
        const std::vector<std::string> more = {"--tls-port",         port,
                                               "--tls-cluster",      "yes",
                                               "--tls-cert-file",    tls->CertificateFile("server"),
                                               "--tls-key-file",     tls->KeyFile("server"),
                                               "--tls-ca-cert-file", tls->ca_file(),
                                               "--tls-auth-clients", "no"};
        flags.insert(flags.end(), more.begin(), more.end());
      }
      nodes_.push_back(RedisServer::Start(flags));
      if (nodes_[i] == nullptr) return false;
      if (tls != nullptr) tls_ports_.push_back(nodes_[i]->ports()[1]);
      const auto id = nodes_[i]->Ask({"CLUSTER", "MYID"}, bulk);
      if (!id || id->kind != RedisReply::Kind::kBulk) return false;
      ids_.emplace_back(reinterpret_cast<const char*>(bulk.data()),
                        static_cast<size_t>(id->number));
      const size_t first = kRedisSlots * i / kNodes, end = kRedisSlots * (i + 1) / kNodes;
      std::fill(owners_.begin() + static_cast<ptrdiff_t>(first),
                owners_.begin() + static_cast<ptrdiff_t>(end), static_cast<uint8_t>(i));
      if (!IsOk(i, {"CLUSTER", "ADDSLOTSRANGE", std::to_string(first), std::to_string(end - 1)}) ||
          !IsOk(i, {"CLUSTER", "SET-CONFIG-EPOCH", std::to_string(i + 1)})) {
        return false;
      }
    }
    for (size_t i = 1; i < kNodes; ++i) {
      const std::string port = std::to_string(nodes_[i]->address().port);
      const std::string bus = std::to_string(nodes_[i]->ports()[0]);
      if (!IsOk(0, {"CLUSTER", "MEET", "127.0.0.1", port, bus})) return false;
    }
    return WaitUntil([this] {
      for (size_t i = 0; i < kNodes; ++i) {
        if (InfoOf(i, "cluster_state") != "ok" || InfoOf(i, "cluster_slots_ok") != "16384" ||
            InfoOf(i, "cluster_known_nodes") != "3") {
          return false;
        }
      }
      return true;
    });
  }

  std::string folder_;
  std::vector<std::unique_ptr<RedisServer>> nodes_;
  std::vector<uint16_t> tls_ports_;
  std::vector<std::string> ids_;
  std::array<uint8_t, kRedisSlots> owners_{};
};

// A test that needs the cluster; skipped where Redis is not installed.
class OnCluster : public testing::Test {
 protected:
  void SetUp() override {
    cluster_ = RedisCluster::Shared();
    if (cluster_ == nullptr) KV_NEEDS("/usr/bin/redis-server");
    ASSERT_NE(cluster_, nullptr);
  }
  RedisCluster* cluster_ = nullptr;
};

}  // namespace kvasir
