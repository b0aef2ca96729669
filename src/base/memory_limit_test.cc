#include "base/memory_limit.h"

#include <gtest/gtest.h>

#include "base/fake_system_for_test.h"

namespace kvasir {
namespace {

constexpr uint64_t kGib = uint64_t{1} << 30;

// A machine of 8 GiB.
class MemoryLimitTest : public testing::Test {
 protected:
  MemoryLimitTest() {
    system_.File("proc/meminfo", "MemTotal:        8388608 kB\nMemFree:          100000 kB");
  }
  void Expect(uint64_t bytes, const std::string& source, const MemoryUlimits& ulimits = {}) {
    const MemoryLimit limit = ReadMemoryLimit(system_.root(), ulimits);
    EXPECT_EQ(limit.bytes, bytes);
    EXPECT_EQ(limit.source, source);
  }

  FakeSystem system_;
};

TEST_F(MemoryLimitTest, IsTheMachinesWhereNothingElseLimits) {
  Expect(8 * kGib, "the machine's RAM");
  Expect(8 * kGib, "the machine's RAM", {.address_space = 9 * kGib, .data = 10 * kGib});
  EXPECT_EQ(ReadMemoryLimit(FakeSystem().root(), {}).bytes, UINT64_MAX);
}

TEST_F(MemoryLimitTest, IsThatOfTheTightestCgroupAbove) {
  system_.File("proc/self/cgroup", "0::/user.slice/job/leaf");
  system_.File("proc/self/mountinfo", "31 24 0:28 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw");
  system_.File("sys/fs/cgroup/user.slice/job/leaf/memory.max", "max");
  Expect(8 * kGib, "the machine's RAM");
  system_.File("sys/fs/cgroup/user.slice/job/memory.max", std::to_string(2 * kGib));
  Expect(2 * kGib, "memory.max of /sys/fs/cgroup/user.slice/job");
  system_.File("sys/fs/cgroup/user.slice/memory.max", std::to_string(kGib));
  Expect(kGib, "memory.max of /sys/fs/cgroup/user.slice");
  system_.File("sys/fs/cgroup/user.slice/job/leaf/memory.max", std::to_string(kGib / 2));
  Expect(kGib / 2, "memory.max of /sys/fs/cgroup/user.slice/job/leaf");
  system_.File("sys/fs/cgroup/user.slice/job/leaf/memory.max", std::to_string(9 * kGib));
  Expect(kGib, "memory.max of /sys/fs/cgroup/user.slice");
}

TEST_F(MemoryLimitTest, IsThatOfTheFirstCgroups) {
  system_.File("proc/self/cgroup", "4:memory:/docker/c0ffee\n5:cpu,cpuacct:/docker/c0ffee");
  system_.File("proc/self/mountinfo",
               "31 24 0:28 /docker/c0ffee /sys/fs/cgroup/memory ro - cgroup cgroup ro,memory\n"
               "32 24 0:29 /docker/c0ffee /sys/fs/cgroup/cpu ro - cgroup cgroup ro,cpu,cpuacct");
  system_.File("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712");  // none
  Expect(8 * kGib, "the machine's RAM");
  system_.File("sys/fs/cgroup/memory/memory.limit_in_bytes", std::to_string(3 * kGib));
  Expect(3 * kGib, "memory.limit_in_bytes of /sys/fs/cgroup/memory");
}

TEST_F(MemoryLimitTest, IsTheUlimitWhereThatIsLess) {
  Expect(4 * kGib, "ulimit -v", {.address_space = 4 * kGib});
  Expect(3 * kGib, "ulimit -d", {.address_space = 4 * kGib, .data = 3 * kGib});
}

}  // namespace
}  // namespace kvasir
