// Contracts C1 and C2 for machines that share a store which loses, swaps and delays what it has.
#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
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

// Lets go of some blocks, as a full store does, or gives some the values of others.
void Disturb(RedisFake& store, Random& random) {
  const uint64_t what = random.Below(8);
  if (what > 1) return;
  store.Change([&](std::map<std::string, std::string>& values) {
    std::vector<std::string> names;
    for (const auto& [name, value] : values) {
      if (name.size() > 100 && random.Below(3) == 0) names.push_back(name);  // objects stay
    }
    for (size_t i = 0; i < names.size(); ++i) {
      if (what == 0) {
        values.erase(names[i]);
      } else {
        std::swap(values[names[i]], values[names[random.Below(names.size())]]);
      }
    }
  });
}

TEST(EngineTwin, NoAnswerIsChangedByAStoreThatMachinesShare) {
  std::atomic<uint64_t> commands = 0;
  RedisFake store([&](const RedisFake::Words&) -> std::optional<std::string> {
    const uint64_t number = ++commands;  // three stalls would turn an engine's tier off
    if (number % 20'000 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(50));
    return std::nullopt;
  });
  TwinRun run(20261127);
  RemoteOptions remote;
  remote.url = "redis://" + store.address().text();
  remote.fleet_secret = FleetSecretFile();
  remote.compression = RemoteCompression::kZstd;  // f16 too, however fast the store is
  remote.stall_ms = 5'000;                        // a busy machine uses a store that seems late
  run.OnStore(remote, [&](Random& random) { Disturb(store, random); }).Compare(kStoreRows * 3 / 4);
  // A prompt of the tiny model is often computed before a store has answered, and where the machine
  // is busy a store seems late and is left alone: then more rounds follow, which compute slowly.
  const std::string demo = *DemoOptions().model;
  const TwinCounts& counts = run.CompareFolder(demo, kStoreRows);
  run.OnScalar();
  for (int more = 0; counts.remote_tokens < kStoreRows / 100 && more < 3; ++more) {
    run.CompareFolder(demo, counts.rows + 1);
  }
  PrintTwin(counts);
  EXPECT_GE(counts.rows, kStoreRows);
  EXPECT_EQ(counts.differ, 0u);
  if (counts.remote_tokens == 0) GTEST_SKIP() << "the machine is too busy: nothing was shared";
}

}  // namespace
}  // namespace kvasir
