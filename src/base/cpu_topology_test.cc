#include "base/cpu_topology.h"

#include <gtest/gtest.h>
#include <linux/mempolicy.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <thread>

#include "base/fake_system_for_test.h"

namespace kvasir {
namespace {

// A simulated /sys and /proc.
class FakeMachine : public FakeSystem {
 public:
  FakeMachine& Siblings(const std::string& list, const std::vector<uint32_t>& cpus,
                        const std::string& name = "core_cpus_list") {
    for (const uint32_t cpu : cpus) {
      File("sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/" + name, list);
    }
    return *this;
  }
  FakeMachine& Node(uint32_t id, const std::string& cpus, uint64_t memory_kib) {
    const std::string folder = "sys/devices/system/node/node" + std::to_string(id);
    const std::string name = "Node " + std::to_string(id);
    File(folder + "/cpulist", cpus);
    File(folder + "/meminfo",
         name + " MemFree:  1 kB\n" + name + " MemTotal:  " + std::to_string(memory_kib) + " kB");
    return *this;
  }
  CpuTopology Read(const std::vector<uint32_t>& allowed) const {
    return ReadCpuTopology(root(), allowed);
  }
};

// Two packages of two cores of two threads, numbered as Intel's firmware does, one node each, and a
// third node that has only memory.
struct TwoPackages : FakeMachine {
  TwoPackages() {
    Siblings("0,4", {0, 4}).Siblings("1,5", {1, 5});
    Siblings("2,6", {2, 6}).Siblings("3,7", {3, 7});
    File("sys/devices/system/node/online", "0-2");
    File("sys/devices/system/node/has_memory", "0-2");
    Node(0, "0-1,4-5", 1024).Node(1, "2-3,6-7", 2048).Node(2, "", 4096);
  }
};

TEST(CpuTopology, CountsTheThreadsOfACoreOnceAndTheNodesInUse) {
  const TwoPackages machine;
  const CpuTopology all = machine.Read({0, 1, 2, 3, 4, 5, 6, 7});
  EXPECT_EQ(all.cpus.size(), 8u);
  EXPECT_EQ(all.num_cores(), 4u);
  EXPECT_EQ(all.default_threads(), 4u);
  EXPECT_EQ(all.cpu_limit, std::nullopt);
  ASSERT_EQ(all.nodes.size(), 2u);
  EXPECT_EQ(all.nodes[0].memory_bytes, 1024u * 1024);
  EXPECT_EQ(all.nodes[1].id, 1u);
  EXPECT_EQ(all.cpus[6].core, 2u);
  EXPECT_EQ(all.cpus[6].node, 1u);
  EXPECT_EQ(all.PinOrder(10), (std::vector<uint32_t>{0, 1, 2, 3, 4, 5, 6, 7, 0, 1}));

  const CpuTopology some = machine.Read({7, 3, 5});
  EXPECT_EQ(some.num_cores(), 2u);
  EXPECT_EQ(some.nodes.size(), 2u);
  EXPECT_EQ(some.PinOrder(3), (std::vector<uint32_t>{5, 3, 7}));
  EXPECT_EQ(machine.Read({1, 4}).nodes.size(), 1u) << "the other package is not ours";
}

TEST(CpuTopology, ReadsTheNameOfSiblingsThatOldKernelsUse) {
  FakeMachine machine;
  machine.Siblings("0-1", {0, 1}, "thread_siblings_list");
  machine.Siblings("2-3", {2, 3}, "thread_siblings_list");
  EXPECT_EQ(machine.Read({0, 1, 2, 3}).num_cores(), 2u);
}

TEST(CpuTopology, TakesTheTightestLimitOnTheWayToTheTop) {
  TwoPackages machine;
  machine.File("proc/self/cgroup", "0::/user.slice/job/leaf");
  machine.File("proc/self/mountinfo",
               "24 1 0:22 / / rw - ext4 /dev/vda rw\n"
               "31 24 0:28 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw");
  machine.File("sys/fs/cgroup/user.slice/cpu.max", "350000 100000");
  machine.File("sys/fs/cgroup/user.slice/job/cpu.max", "125000 50000");
  machine.File("sys/fs/cgroup/user.slice/job/leaf/cpu.max", "max 100000");
  const CpuTopology topology = machine.Read({0, 1, 2, 3});
  EXPECT_EQ(topology.cpu_limit, 2.5);
  EXPECT_EQ(topology.default_threads(), 2u) << "a third thread would be throttled";
  machine.File("sys/fs/cgroup/user.slice/job/leaf/cpu.max", "20000 100000");
  EXPECT_EQ(machine.Read({0, 1}).default_threads(), 1u);
  machine.File("sys/fs/cgroup/user.slice/job/leaf/cpu.max", "900000 100000");
  EXPECT_EQ(machine.Read({0, 4}).default_threads(), 1u) << "one core";
}

TEST(CpuTopology, FindsTheLimitWhereAContainerShowsAPartOfTheTree) {
  FakeMachine machine;
  machine.File("proc/self/cgroup", "0::/docker/c0ffee/app");
  machine.File("proc/self/mountinfo",
               "31 24 0:28 /docker/c0ffee /sys/fs/cgroup ro - cgroup2 cgroup ro");
  machine.File("sys/fs/cgroup/cpu.max", "300000 100000");
  EXPECT_EQ(machine.Read({0, 1, 2, 3}).cpu_limit, 3.0);
  machine.File("sys/fs/cgroup/app/cpu.max", "100000 100000");
  EXPECT_EQ(machine.Read({0, 1, 2, 3}).cpu_limit, 1.0);
  // A path beyond the mount: the process was moved out of its cgroup namespace.
  machine.File("proc/self/cgroup", "0::/../elsewhere");
  EXPECT_EQ(machine.Read({0, 1, 2, 3}).cpu_limit, 3.0);
}

TEST(CpuTopology, ReadsTheQuotaOfTheFirstCgroups) {
  FakeMachine machine;
  machine.File("proc/self/cgroup", "5:cpuset:/\n4:cpu,cpuacct:/kube/pod\n1:name=systemd:/\n0::/");
  machine.File("proc/self/mountinfo",
               "30 24 0:30 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
               "31 24 0:31 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset");
  machine.File("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1");
  machine.File("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000");
  EXPECT_EQ(machine.Read({0, 1, 2}).cpu_limit, std::nullopt);
  machine.File("sys/fs/cgroup/cpu,cpuacct/kube/pod/cpu.cfs_quota_us", "200000");
  machine.File("sys/fs/cgroup/cpu,cpuacct/kube/pod/cpu.cfs_period_us", "100000");
  EXPECT_EQ(machine.Read({0, 1, 2}).default_threads(), 2u);
}

TEST(CpuTopology, WhatCannotBeReadLimitsNothing) {
  FakeMachine machine;
  EXPECT_EQ(machine.Read({0, 1, 2}).default_threads(), 3u);
  EXPECT_EQ(machine.Read({}).default_threads(), 1u);
  machine.Siblings("what,-3,9-x,99999999", {0, 1});
  machine.File("sys/devices/system/node/online", "0-");
  machine.File("proc/self/cgroup", "0\nnonsense:");
  machine.File("proc/self/mountinfo", "1 2 3\n- - -");
  const CpuTopology topology = machine.Read({0, 1});
  EXPECT_EQ(topology.num_cores(), 2u);
  EXPECT_EQ(topology.nodes.size(), 1u);
  machine.File("proc/self/cgroup", "0::/");
  machine.File("proc/self/mountinfo", "1 2 0:3 / /cg rw - cgroup2 cgroup rw");
  for (const char* text : {"", "max", "0 100000", "100000 0", "99999999999999999999 1", "1 x"}) {
    machine.File("cg/cpu.max", text);
    EXPECT_EQ(machine.Read({0, 1}).cpu_limit, std::nullopt) << text;
  }
}

TEST(CpuTopology, OfThisProcessAllowsWhatItsMaskAllows) {
  const CpuTopology topology = ReadCpuTopology();
  EXPECT_EQ(topology.cpus.size(), AllowedCpus().size());
  EXPECT_GE(topology.default_threads(), 1u);
  EXPECT_LE(topology.default_threads(), topology.cpus.size());
  std::thread([&] {
    const uint32_t last = topology.cpus.back().id;
    {
      const PinScope pin({last, 0});
      EXPECT_EQ(AllowedCpus(), std::vector<uint32_t>{last});
    }
    EXPECT_EQ(AllowedCpus().size(), topology.cpus.size()) << "as before";
    ASSERT_TRUE(PinThisThread({last}));
    EXPECT_EQ(AllowedCpus(), std::vector<uint32_t>{last});
    EXPECT_EQ(ReadCpuTopology().default_threads(), 1u);
    EXPECT_FALSE(PinThisThread({8191}));
    EXPECT_FALSE(PinThisThread({1u << 30}));
  }).join();
}

TEST(CpuTopology, InterleavesPagesOverSeveralNodes) {
  const uint64_t bytes = uint64_t{1} << 20;
  void* base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(base, MAP_FAILED);
  const auto mode = [&] {
    int value = -1;
    return syscall(SYS_get_mempolicy, &value, nullptr, 0, base, MPOL_F_ADDR) == 0 ? value : -1;
  };
  const uint32_t node = ReadCpuTopology().nodes[0].id;
  EXPECT_TRUE(InterleavePages(base, bytes, {{node, 0}}));
  if (mode() == -1) {
    munmap(base, bytes);
    GTEST_SKIP() << "this kernel has no memory policies";
  }
  EXPECT_EQ(mode(), MPOL_DEFAULT);
  // Naming a node twice tests the system call on a machine with one node.
  EXPECT_TRUE(InterleavePages(base, bytes, {{node, 0}, {node, 0}}));
  EXPECT_EQ(mode(), MPOL_INTERLEAVE);
  EXPECT_FALSE(InterleavePages(static_cast<char*>(base) + 1, 4096, {{node, 0}, {node, 0}}));
  munmap(base, bytes);
}

}  // namespace
}  // namespace kvasir
