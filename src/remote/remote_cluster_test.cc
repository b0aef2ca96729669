// A remote tier on a cluster: erases, slots that move, a node that is down.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <tuple>

#include "remote/redis_cluster_for_test.h"
#include "remote/remote_on_fake_for_test.h"

namespace kvasir {
namespace {

using Read = TierDriver::Read;

// One machine of a fleet whose store is a cluster.
struct ClusterMember {
  explicit ClusterMember(const RemoteTierOptions& options) {
    auto opened = RemoteTier::Open(options);
    EXPECT_TRUE(opened) << opened.error().message;
    tier = std::move(*opened);
    driver = std::make_unique<TierDriver>(*tier);
    EXPECT_TRUE(WaitFor(RemoteStats::State::kOn)) << tier->Remote().reason;
    EXPECT_TRUE(tier->ReadyOwner(TestRecord::Owner(0)));
    driver->Look(FaultRecord(0, 0));
  }
  bool WaitFor(RemoteStats::State state) {
    return driver->WaitUntil([&] { return tier->Remote().state == state; });
  }
  // Writes a record; a tier whose buffers are full is asked again.
  bool Write(const TestRecord& record) {
    for (;;) {
      const auto written = driver->Write(record);
      if (written) return true;
      if (written.error() != WriteRefusal::kNoBuffer || !driver->Flush()) return false;
    }
  }
  std::unique_ptr<RemoteTier> tier;
  std::unique_ptr<TierDriver> driver;
};

class RemoteTierOnCluster : public OnCluster {};

TEST_F(RemoteTierOnCluster, AnEraseRemovesWhatAllMastersHave) {
  ClusterMember one(SmallOptions(cluster_->address()));
  for (uint32_t i = 0; i < 200; ++i) ASSERT_TRUE(one.Write(FaultRecord(0, i))) << i;
  ASSERT_TRUE(one.driver->Flush());
  for (size_t i = 0; i < RedisCluster::kNodes; ++i) EXPECT_GT(cluster_->NumKeys(i), 30u) << i;
  // It starts at another node, which may have the owner's object or not.
  ClusterMember other(SmallOptions(cluster_->node(2).address()));
  EXPECT_EQ(other.driver->ReadBack(FaultRecord(0, 7)), Read::kRight);
  const auto erased = other.driver->Erase(TestRecord::Owner(0));
  ASSERT_TRUE(erased) << erased.error().message;
  EXPECT_EQ(erased->remote->records, 200u);
  EXPECT_TRUE(erased->remote->complete);
  EXPECT_EQ(cluster_->NumKeys(), 1u) << "the owner's object";
}

// Moves slots round, until the object ends: those that have values, and as often the owner's.
class SlotMover {
 public:
  explicit SlotMover(RedisCluster* cluster) : cluster_(cluster), thread_([this] { Run(); }) {}
  ~SlotMover() { End(); }
  uint32_t End() {
    ends_ = true;
    if (thread_.joinable()) thread_.join();
    return moved_;
  }

 private:
  void Run() {
    const std::string object = FleetKeys(TestRecord::Filled(77)).OwnerName(TestRecord::Owner(0));
    for (size_t from = 0; !ends_; from = (from + 1) % RedisCluster::kNodes) {
      Move(SlotOf(object));
      std::array<std::byte, 256> bulk;
      const auto name = cluster_->node(from).Ask({"RANDOMKEY"}, bulk);
      if (!name || name->kind != RedisReply::Kind::kBulk) continue;
      const uint16_t slot =
          SlotOf({reinterpret_cast<const char*>(bulk.data()), static_cast<size_t>(name->number)});
      // Not the same one again at once: a request may follow only one such move.
      if (slot != SlotOf(object)) Move(slot);
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  }
  void Move(uint16_t slot) {
    const size_t to = (cluster_->OwnerOf(slot) + 1) % RedisCluster::kNodes;
    const bool is_done = cluster_->BeginMove(slot, to) && cluster_->MoveValues(slot, to) &&
                         cluster_->EndMove(slot, to);
    EXPECT_TRUE(is_done) << slot;
    ends_ = ends_ || !is_done;
    ++moved_;
  }

  RedisCluster* const cluster_;
  std::atomic<bool> ends_ = false;
  uint32_t moved_ = 0;
  std::thread thread_;
};

// Two machines write, read and erase meanwhile: no request fails.
TEST_F(RemoteTierOnCluster, SlotsMoveUnderLoad) {
  ClusterMember writer(SmallOptions(cluster_->address()));
  ClusterMember reader(SmallOptions(cluster_->node(1).address()));
  SlotMover mover(cluster_);
  for (uint32_t round = 0; round < 30; ++round) {
    for (uint32_t i = 0; i < 60; ++i) ASSERT_TRUE(writer.Write(FaultRecord(round, i))) << i;
    ASSERT_TRUE(writer.driver->Flush());
    for (uint32_t i = 0; i < 60; ++i) {
      ASSERT_EQ(reader.driver->ReadBack(FaultRecord(round, i)), Read::kRight) << round << " " << i;
    }
    if (round % 6 != 5) continue;
    const auto erased = writer.driver->Erase(TestRecord::Owner(0));
    ASSERT_TRUE(erased) << erased.error().message;
    reader.driver->Look(FaultRecord(round, 0));
    EXPECT_EQ(reader.tier->TakeErased().size(), 1u);
    reader.tier->EraseHere(TestRecord::Owner(0), [](const Result<TierErased>&) {});
    EXPECT_EQ(reader.driver->ReadBack(FaultRecord(round, 7)), Read::kNotThere);
  }
  EXPECT_GT(mover.End(), 10u);
  for (const ClusterMember* member : {&writer, &reader}) {
    EXPECT_EQ(member->tier->Remote().fault_io, 0u);
    EXPECT_EQ(member->tier->Remote().fault_missing, 0u);
    EXPECT_EQ(member->tier->Remote().state, RemoteStats::State::kOn);
  }
}

TEST(RemoteCluster, AllMastersAreReachedWithTls) {
  TestCertificates certificates(testing::TempDir());
  certificates.Sign("server", "IP:127.0.0.1", 3600);
  const auto cluster = RedisCluster::Start(&certificates);
  if (cluster == nullptr) KV_NEEDS("/usr/bin/redis-server");
  ASSERT_NE(cluster, nullptr);
  RemoteTierOptions options = SmallOptions(cluster->tls_address());
  options.tls = *TlsContext::Create(certificates.ca_file());
  ClusterMember writer(options), reader(options);
  for (uint32_t i = 0; i < 60; ++i) ASSERT_TRUE(writer.Write(FaultRecord(0, i))) << i;
  ASSERT_TRUE(writer.driver->Flush());
  for (size_t i = 0; i < RedisCluster::kNodes; ++i) EXPECT_GT(cluster->NumKeys(i), 5u) << i;
  for (uint32_t i = 0; i < 60; ++i) {
    EXPECT_EQ(reader.driver->ReadBack(FaultRecord(0, i)), Read::kRight) << i;
  }
  // A slot that has moved: the node that says so names another one's port with TLS.
  const uint16_t slot = SlotOf(FleetKeys(options.fleet).OwnerName(TestRecord::Owner(0)));
  const size_t to = (cluster->OwnerOf(slot) + 1) % RedisCluster::kNodes;
  ASSERT_TRUE(cluster->BeginMove(slot, to) && cluster->MoveValues(slot, to) &&
              cluster->EndMove(slot, to));
  const auto erased = writer.driver->Erase(TestRecord::Owner(0));
  ASSERT_TRUE(erased) << erased.error().message;
  EXPECT_EQ(erased->remote->records, 60u);
  EXPECT_EQ(cluster->NumKeys(), 1u) << "the owner's object";
  for (const ClusterMember* member : {&writer, &reader}) {
    EXPECT_EQ(member->tier->Remote().fault_io, 0u);
  }
}

TEST(RemoteCluster, ANodeThatIsDownIsAReasonUntilItIsBack) {
  const auto cluster = RedisCluster::Start();
  if (cluster == nullptr) KV_NEEDS("/usr/bin/redis-server");
  ASSERT_NE(cluster, nullptr);
  ClusterMember member(SmallOptions(cluster->address()));
  ASSERT_TRUE(member.Write(FaultRecord(0, 0)));
  ASSERT_TRUE(member.driver->Flush());
  cluster->node(1).Stop();
  for (uint32_t i = 0; i < 400 && member.tier->Remote().state == RemoteStats::State::kOn; ++i) {
    std::ignore = member.driver->Write(FaultRecord(1 + i, 0));
    std::ignore = member.driver->Flush();
  }
  ASSERT_TRUE(member.WaitFor(RemoteStats::State::kOff));
  const std::string reason = member.tier->Remote().reason;
  EXPECT_TRUE(reason.find("cannot connect") != std::string::npos ||
              reason.find("CLUSTERDOWN") != std::string::npos ||
              reason.find("closed the connection") != std::string::npos)
      << reason;
  ASSERT_TRUE(cluster->node(1).Restart());
  for (uint32_t i = 0; i < 3; ++i) {  // it may be asked too early once
    if (member.WaitFor(RemoteStats::State::kOn)) break;
  }
  ASSERT_TRUE(member.driver->WaitUntil([&] {
    member.driver->Look(FaultRecord(900, 0));
    return member.driver->Write(FaultRecord(900, 0)).has_value();
  }));
  std::ignore = member.driver->Flush();  // it tells of what was lost
  EXPECT_TRUE(member.driver->Flush());
  EXPECT_EQ(member.driver->ReadBack(FaultRecord(900, 0)), Read::kRight);
}

}  // namespace
}  // namespace kvasir
