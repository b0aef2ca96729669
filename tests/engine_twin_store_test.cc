// Contracts C1 and C2 for machines that share a store which loses, swaps and delays what it has.
#include <atomic>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/rounds_for_test.h"
#include "engine_twin.h"
#include "remote/redis_fake_for_test.h"

namespace kvasir {
namespace {

constexpr uint64_t kStoreRows = Rounds(50'000, 2'000);

std::string FleetSecretFile() {
  const auto path = ScratchDir() / "twin-fleet";
  std::ofstream(path) << std::string(32, 'k').replace(0, 5, "fleet");
  std::filesystem::permissions(
      path, std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
  return path.string();
}

using Values = std::map<std::string, std::string>;

bool IsBlock(const std::string& name) { return name.size() > 100; }  // not an owner's object

// A store that loses and swaps blocks, and stalls.
struct BadStore {
  // Lets go of some blocks, as a full store does, or gives some the values of others.
  void Disturb(Random& random) {
    const uint64_t what = random.Below(8);
    if (what > 1) return;
    fake.Change([&](Values& values) {
      std::vector<std::string> names;
      for (const auto& [name, value] : values) {
        if (IsBlock(name) && random.Below(3) == 0) names.push_back(name);
      }
      for (const std::string& name : names) {
        const std::string& other = names[random.Below(names.size())];
        if (what == 0) {
          evicted += values.erase(name);
        } else if (name != other) {
          std::swap(values[name], values[other]);
          ++swapped;
        }
      }
    });
  }
  void Clear() {
    fake.Change([](Values& values) {
      std::erase_if(values, [](const auto& value) { return IsBlock(value.first); });
    });
  }

  std::atomic<bool> stalls = false;
  std::atomic<uint64_t> commands = 0, reads = 0;
  uint64_t evicted = 0, swapped = 0;  // blocks
  RedisFake fake{[this](const RedisFake::Words& words) -> std::optional<std::string> {
    if (stalls && ++commands % 500 == 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
    const bool reads_block = words[0] == "GET" && IsBlock(words.at(1));
    // As if it was evicted since it was looked up.
    return reads_block && ++reads % 20 == 0 ? std::optional<std::string>("$-1\r\n") : std::nullopt;
  }};
};

TEST(EngineTwin, NoAnswerIsChangedByAStoreThatMachinesShare) {
  BadStore store;
  TwinRun run(20261127);
  RemoteOptions remote;
  remote.url = "redis://" + store.fake.address().text();
  remote.fleet_secret = FleetSecretFile();
  remote.compression = RemoteCompression::kZstd;  // f16 too, however fast the store is
  const uint64_t usual_stall_ms = std::exchange(remote.stall_ms, 5'000);  // a busy machine is late
  const auto disturb = [&](Random& random) { store.Disturb(random); };
  const TwinCounts& counts = run.OnStore(remote, disturb).Compare(kStoreRows / 2);
  // A round in which nothing of what it is for happened is followed by others.
  const auto compare_until = [&](uint64_t rows, const auto& is_shown) {
    run.Compare(rows);
    for (int more = 0; more < 20 && !is_shown(); ++more) run.Compare(counts.rows + 1);
  };
  compare_until(kStoreRows / 2, [&] {
    return counts.remote_tokens > 0 && counts.damaged > 0 && counts.missing > 0;
  });
  EXPECT_GT(counts.remote_tokens, 0u);
  EXPECT_GT(store.evicted, 0u);
  EXPECT_GT(store.swapped, 0u);
  EXPECT_GT(counts.missing, 0u);
  EXPECT_GT(counts.damaged, 0u);
  EXPECT_EQ(counts.stalls, 0u);

  // Three stalls turn a tier off, until a new machine takes the place of this one.
  remote.stall_ms = usual_stall_ms;
  run.OnStore(remote, disturb);
  store.stalls = true;
  compare_until(kStoreRows * 3 / 4, [&] { return counts.stalls > 0; });
  EXPECT_GT(counts.stalls, 0u);
  store.stalls = false;

  remote.stall_ms = 5'000;
  run.OnStore(remote, {});
  store.Clear();  // also what other targets have written
  const Target writer = ParseTarget("avx2").value_or(BestTarget());
  run.Across(writer, Target::kScalar);
  compare_until(kStoreRows, [&] { return counts.crossed_tokens > 100; });
  if (writer != Target::kScalar) {
    EXPECT_GT(counts.crossed_tokens, 0u);
  }
  PrintTwin(counts);
  const auto n = [](uint64_t number) { return static_cast<unsigned long long>(number); };
  std::printf(
      "written under %s, read under scalar: %llu tokens; the store evicted %llu blocks and "
      "swapped %llu: missing %llu, damaged %llu; stalls %llu\n",
      NameOf(writer).data(), n(counts.crossed_tokens), n(store.evicted), n(store.swapped),
      n(counts.missing), n(counts.damaged), n(counts.stalls));
  EXPECT_GE(counts.rows, kStoreRows);
  EXPECT_EQ(counts.differ, 0u);
}

}  // namespace
}  // namespace kvasir
