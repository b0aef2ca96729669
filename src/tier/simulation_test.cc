// The disk tier on a simulated disk: stopped at every call, and in random histories with faults.
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "base/fault.h"
#include "base/log.h"
#include "base/rounds_for_test.h"
#include "tier/disk_tier.h"
#include "tier/sim_storage_for_test.h"
#include "tier/tier_driver_for_test.h"

namespace kvasir {
namespace {

using Read = TierDriver::Read;

constexpr uint32_t kChains = 6, kLength = 12, kOwners = 2;
constexpr int64_t kHour = 3600;
constexpr uint64_t kTtlHours = 24;

const TestRecord& SimRecord(uint32_t chain, uint32_t number) {
  static std::map<std::pair<uint32_t, uint32_t>, TestRecord> made;
  const auto found = made.find({chain, number});
  if (found != made.end()) return found->second;
  const auto added =
      made.emplace(std::pair(chain, number),
                   TestRecord(chain, number, chain % kOwners, kSmallTokens, kSmallPayload));
  return added.first->second;
}

using Key = std::pair<uint32_t, uint32_t>;  // chain, number

// A tier on a simulated disk, and what must be true of it.
class World {
 public:
  explicit World(SimStorage& storage) : storage_(storage) {
    SetLogLevel(LogLevel::kError);  // each fault would be a line
    options_ = {.folder = "/sim/kv",
                .cap_bytes = (uint64_t{2} << 20) + 3 * kSegment - 1,
                .ttl_hours = kTtlHours,
                .secret = Secret{1},
                .identity = Digest{2},
                .shape = {.block_tokens = kSmallTokens, .payload_bytes = kSmallPayload},
                .threads = 0,
                .segment_bytes = kSegment,
                .num_buffers = 16};
    storage_.cap_bytes = *options_.cap_bytes;
  }

  bool Open() {
    auto tier = DiskTier::Open(options_, storage_);
    if (!tier) return false;
    tier_ = std::move(*tier);
    driver_.emplace(*tier_, [this] { tier_->RunPending(); });
    return true;
  }
  void Close() {
    driver_.reset();
    tier_.reset();
  }
  DiskTier* tier() { return tier_.get(); }
  TierDriver& driver() { return *driver_; }
  SimStorage& storage() { return storage_; }

  void Write(uint32_t chain, uint32_t number) {
    if (tier_ == nullptr) return;
    if (driver_->Write(SimRecord(chain, number), true)) {
      Note({chain, number});
    }
  }
  void Note(Key key) {
    // After the stop nothing counts: the machine is off.
    if (storage_.is_stopped()) return;
    written_s_[key] = storage_.UnixS();
    unsure_.erase(key);
  }
  void Run() {
    if (tier_ != nullptr) tier_->RunPending();
  }
  void Flush() {
    if (tier_ != nullptr) (void)driver_->Flush();
  }
  void TouchChain(uint32_t chain) {
    for (uint32_t i = kLength; tier_ != nullptr && i-- > 0;) {
      tier_->Touch(SimRecord(chain, i).facts.name);
    }
  }
  void Erase(uint32_t owner) {
    if (tier_ == nullptr) return;
    // What counts is the moment of the answer: whatever happens after it, nothing may come back.
    tier_->Erase(TestRecord::Owner(owner), [this, owner](const Result<TierErased>& erased) {
      if (!erased || storage_.is_stopped()) return;
      for (uint32_t chain = owner; chain < kChains; chain += kOwners) NoteErased(chain, 0);
    });
    tier_->RunPending();
  }
  // Forgets a text that begins `num_before` records before.
  void Forget(uint32_t chain, uint32_t number, uint64_t num_tokens, uint32_t num_before = 0) {
    if (tier_ == nullptr) return;
    tier_->Forget(TierDriver::ForgetOf(SimRecord(chain, number), num_tokens, num_before),
                  [this, chain, first = number - num_before](const Result<TierErased>& erased) {
                    if (erased && !storage_.is_stopped()) NoteErased(chain, first);
                  });
    tier_->RunPending();
  }
  void NoteErased(uint32_t chain, uint32_t first) {
    for (uint32_t i = first; i < kLength; ++i) {
      erased_.insert({chain, i});
      written_s_.erase({chain, i});
    }
  }
  // Tells whether a record is erased: it may be there again when it was written again.
  bool IsErased(Key key) const { return erased_.contains(key) && !written_s_.contains(key); }

  std::set<Key> Stored() const {
    std::set<Key> stored;
    if (tier_ == nullptr) return stored;
    for (uint32_t chain = 0; chain < kChains; ++chain) {
      for (uint32_t i = 0; i < kLength; ++i) {
        if (tier_->Has(SimRecord(chain, i).facts.name)) stored.insert({chain, i});
      }
    }
    return stored;
  }
  // Says what is wrong now, with an open tier. `stored` must be found, except what has expired.
  std::optional<std::string> Wrong(const std::set<Key>& stored, bool must_find) {
    const auto say = [](const char* what, Key key) {
      return std::string(what) + ": chain " + std::to_string(key.first) + " record " +
             std::to_string(key.second);
    };
    if (storage_.has_exceeded_cap()) return "the cap was exceeded";
    for (uint32_t chain = 0; chain < kChains; ++chain) {
      for (uint32_t i = 0; i < kLength; ++i) {
        const Key key{chain, i};
        const bool has = tier_->Has(SimRecord(chain, i).facts.name);
        if (has && IsErased(key)) return say("an erased record is there", key);
        const Read read = driver_->ReadBack(SimRecord(chain, i));
        if (read == Read::kRight) opened_.insert(key);
        if (read == Read::kWrong) return say("wrong bytes were served", key);
        const auto written = written_s_.find(key);
        const bool may_expire =
            written == written_s_.end() ||
            storage_.UnixS() - written->second > static_cast<int64_t>(kTtlHours) * kHour;
        if (must_find && stored.contains(key) && !may_expire && read != Read::kRight) {
          return say(has ? "a stored record cannot be unsealed" : "a stored record is lost", key);
        }
      }
    }
    if (!tier_->CheckInvariants()) return "the index is inconsistent";
    return std::nullopt;
  }

  // Notes the records that a start found and that were not read since. A crash may have left their
  // headers and not their payloads; that shows when they are read, and they were never called
  // stored before it.
  void NoteFound() {
    opens_ = storage_.num_opens();
    for (const Key& key : Stored()) {
      if (!opened_.contains(key)) unsure_.insert(key);
    }
  }
  // Returns what is stored without those, and without what depends on a record that was damaged and
  // has left: no path leads to it, and a start frees it.
  std::set<Key> SurelyStored() const {
    std::set<Key> sure;
    if (storage_.num_opens() != opens_) return sure;  // broken, and opened again by itself
    const std::set<Key> stored = Stored();
    for (const Key& key : stored) {
      bool is_anchored = true;
      for (uint32_t i = 0; i < key.second; ++i) is_anchored &= stored.contains({key.first, i});
      if (is_anchored && !unsure_.contains(key)) sure.insert(key);
    }
    return sure;
  }

  std::map<Key, int64_t> written_s_;
  std::set<Key> erased_;
  std::set<Key> unsure_, opened_;
  uint64_t opens_ = 0;

 private:
  static constexpr uint64_t kSegment = 96 * 1024;
  SimStorage& storage_;
  DiskTierOptions options_;
  std::unique_ptr<DiskTier> tier_;
  std::optional<TierDriver> driver_;
};

// Runs through put, reuse, evict, expire, erase, forget; segments and keys are made on the way.
void FixedHistory(World& world) {
  if (!world.Open()) return;
  const auto pass = [&](int64_t seconds) {
    world.storage().PassTime(seconds);
    world.Run();
  };
  for (uint32_t i = 0; i < 6; ++i) world.Write(0, i);
  world.Flush();
  for (uint32_t i = 0; i < 4; ++i) world.Write(1, i);
  world.Flush();
  if (world.tier() != nullptr) (void)world.driver().ReadBack(SimRecord(0, 2));
  // A child that is handed over before its parent.
  if (world.tier() != nullptr) {
    const auto parent = world.tier()->BeginWrite(SimRecord(0, 6).Facts());
    if (parent) {
      const auto child = world.tier()->BeginWrite(SimRecord(0, 7).Facts());
      if (child) {
        world.tier()->Seal(*child, SimRecord(0, 7).payload);
        world.tier()->EndWrite(*child);
        world.Note({0, 7});
      }
      world.Run();
      world.tier()->Seal(*parent, SimRecord(0, 6).payload);
      world.tier()->EndWrite(*parent);
      world.Note({0, 6});
    }
  }
  world.Flush();
  pass(2 * kHour);
  for (uint32_t chain = 2; chain < kChains; ++chain) {
    for (uint32_t i = 0; i < kLength; ++i) {
      world.Write(chain, i);
      if (i % 5 == 4) world.Run();
    }
    world.TouchChain(0);
    pass(11);
  }
  world.Flush();
  world.Erase(0);
  for (uint32_t i = 0; i < 3; ++i) world.Write(0, i);
  world.Flush();
  world.Write(5, 0);  // on its way when the forget comes
  world.Forget(5, 2, 5);
  world.Forget(4, 7, kSmallTokens);
  for (uint32_t i = 0; i < 5; ++i) world.Write(5, i);
  world.Flush();
  pass((static_cast<int64_t>(kTtlHours) - 1) * kHour);
  world.Write(5, 0);
  world.Flush();
  pass(3 * kHour);
  for (uint32_t i = 0; i < 4; ++i) world.Write(1, i);
  world.Flush();
  world.Close();
}

// Runs the history until the given call; absent when it ended before.
struct Stopped {
  std::set<Key> stored;
};
std::optional<Stopped> RunUntil(World& world, uint64_t call) {
  Stopped stopped;
  world.storage().stops_at = call;
  world.storage().on_stop = [&] { stopped.stored = world.Stored(); };
  FixedHistory(world);
  world.Close();
  if (!world.storage().is_stopped()) return std::nullopt;
  return stopped;
}

// Crashes at the call, recovers, and says what is wrong; and so when the recovery is stopped too.
// `recovery`: of how many of its calls each one is stopped, 1 is all.
std::optional<std::string> WrongAfter(uint64_t call, uint64_t seed, uint64_t recovery,
                                      bool* ended) {
  SimStorage storage(seed);
  World world(storage);
  const std::optional<Stopped> stopped = RunUntil(world, call);
  *ended = !stopped;
  const std::string where =
      "stopped at call " + std::to_string(call) + ", seed " + std::to_string(seed) + ": ";
  if (!stopped) {
    if (storage.has_exceeded_cap()) return "the cap was exceeded";
    return std::nullopt;
  }
  storage.Crash();
  const auto recovered = [&](SimStorage& disk) -> std::optional<std::string> {
    World after(disk);
    after.written_s_ = world.written_s_;
    after.erased_ = world.erased_;
    if (!after.Open()) return "the store does not open";
    return after.Wrong(stopped->stored, true);
  };
  uint64_t calls = 0;
  {
    SimStorage copy(storage, seed + 1);
    World after(copy);
    (void)after.Open();
    calls = copy.num_calls();
    after.Close();
  }
  for (uint64_t again = call % recovery; again < calls; again += recovery) {
    SimStorage copy(storage, seed + 2 + again);
    {
      World after(copy);
      copy.stops_at = again;
      (void)after.Open();
      after.Close();
    }
    copy.Crash();
    if (const auto wrong = recovered(copy)) {
      return where + "its recovery at " + std::to_string(again) + ": " + *wrong;
    }
  }
  if (const auto wrong = recovered(storage)) return where + *wrong;
  return std::nullopt;
}

// Returns the first thing that is wrong in all stops of the fixed history.
std::optional<std::string> FirstWrongStop(uint64_t seed, uint64_t recovery, uint64_t* calls) {
  for (uint64_t call = 0;; ++call) {
    bool ended = false;
    if (auto wrong = WrongAfter(call, seed + call, recovery, &ended)) return wrong;
    *calls = call;
    if (ended) return std::nullopt;
  }
}

// Runs a random history of a seed, with crashes and faults. `media`: what is read may be damaged.
std::optional<std::string> WrongInRandom(uint64_t seed, bool media) {
  Random random(Mix64(seed));
  SimStorage storage(seed);
  World world(storage);
  const auto set_faults = [&] {
    storage.faults = {};
    if (random.Below(2) == 0) storage.faults.short_write = storage.faults.interrupted = 2000;
    if (random.Below(4) == 0) storage.faults.sync_error = 3000;
    if (random.Below(4) == 0) storage.faults.no_space = 2000;
    if (random.Below(6) == 0) storage.faults.write_error = 1000;
    if (media) {
      storage.faults.read_error = 300;
      storage.faults.flipped = 300;
      storage.faults.stale = storage.faults.misdirected = 300;
    }
  };
  set_faults();
  const uint64_t rounds = 1 + random.Below(3);
  std::set<Key> stored;
  for (uint64_t round = 0; round < rounds; ++round) {
    storage.stops_at = random.Below(600);
    storage.on_stop = [&] { stored = world.SurelyStored(); };
    for (int tries = 0; tries < 20 && !world.Open(); ++tries) storage.PassTime(1);
    world.unsure_.clear();
    world.NoteFound();
    world.opened_.clear();
    const uint64_t steps = 5 + random.Below(60);
    for (uint64_t step = 0; step < steps && !storage.is_stopped(); ++step) {
      const auto chain = static_cast<uint32_t>(random.Below(kChains));
      switch (random.Below(13)) {
        case 0:
          world.Flush();
          break;
        case 1:
          world.TouchChain(chain);
          break;
        case 2:
          storage.PassTime(static_cast<int64_t>(random.Below(20)) * 600);
          world.Run();
          break;
        case 3:
          if (random.Below(6) == 0)
            storage.JumpClock(static_cast<int64_t>(random.Below(7200)) - 3600);
          break;
        case 4:
          if (random.Below(3) == 0) world.Erase(chain % kOwners);
          break;
        case 5:
          if (world.tier() != nullptr) {
            const Key key{chain, static_cast<uint32_t>(random.Below(kLength))};
            const Read read = world.driver().ReadBack(SimRecord(key.first, key.second));
            if (read == Read::kWrong) return "wrong bytes were served before the crash";
          }
          break;
        case 12:
          if (random.Below(3) == 0) {
            const auto number = static_cast<uint32_t>(random.Below(kLength));
            const uint64_t num_tokens = 1 + random.Below(kSmallTokens);
            world.Forget(chain, number, num_tokens, num_tokens % 4 == 0 ? number / 2 : 0);
          }
          break;
        default: {
          const auto count = static_cast<uint32_t>(1 + random.Below(6));
          for (uint32_t i = 0, n = 0; i < kLength && n < count && world.tier() != nullptr; ++i) {
            if (world.tier()->Has(SimRecord(chain, i).facts.name)) continue;
            world.Write(chain, i);
            ++n;
          }
          if (random.Below(2) == 0) world.Run();
        }
      }
    }
    if (!storage.is_stopped()) stored = world.SurelyStored();
    if (storage.has_exceeded_cap()) return "the cap was exceeded";
    storage.stops_at = 0;
    storage.on_stop = nullptr;
    world.Close();
    storage.Crash();
    storage.faults = {};
    if (!media) {
      if (!world.Open()) return "the store does not open";
      if (auto wrong = world.Wrong(stored, true)) return wrong;
      world.Close();
    } else {
      storage.faults.flipped = storage.faults.stale = storage.faults.misdirected = 300;
      if (world.Open()) {
        if (auto wrong = world.Wrong(stored, false)) return wrong;
        world.Close();
      }
    }
    set_faults();
  }
  return std::nullopt;
}

uint64_t NumSeeds() {
  if (const char* text = std::getenv("KVASIR_TIER_SEEDS")) return std::strtoull(text, nullptr, 10);
  return Rounds(5000, 100);
}

TEST(TierSimulation, AHistoryWithoutACrashKeepsTheCap) {
  bool ended = false;
  EXPECT_EQ(WrongAfter(UINT64_MAX, 1, 1, &ended).value_or(""), "");
  EXPECT_TRUE(ended);
}

TEST(TierSimulation, ACrashAtAnyCallLosesNothingThatWasStored) {
  uint64_t calls = 0;
  const bool is_slow = std::getenv("KVASIR_SLOW") != nullptr;
  EXPECT_EQ(FirstWrongStop(1, is_slow ? 1 : Rounds(7, 51), &calls).value_or(""), "");
  EXPECT_GT(calls, 300u);
}

TEST(TierSimulation, RandomHistoriesWithFailingCallsLoseNothing) {
  for (uint64_t seed = 0; seed < NumSeeds(); ++seed) {
    const auto wrong = WrongInRandom(seed, false);
    ASSERT_FALSE(wrong) << "seed " << seed << ": " << *wrong;
  }
}

TEST(TierSimulation, RandomHistoriesWithDamagedReadsServeNothingWrong) {
  for (uint64_t seed = 0; seed < NumSeeds(); ++seed) {
    const auto wrong = WrongInRandom(seed, true);
    ASSERT_FALSE(wrong) << "seed " << seed << ": " << *wrong;
  }
}

// What the simulation must find, each within some seeds.
class TierMutant : public testing::TestWithParam<Fault> {
 protected:
  ~TierMutant() override { InjectFault(Fault::kNone); }
};
INSTANTIATE_TEST_SUITE_P(Each, TierMutant,
                         testing::Values(Fault::kStoredBeforeSync, Fault::kBelievedSync,
                                         Fault::kUnsyncedKeyFolder, Fault::kSkippedTag,
                                         Fault::kErasedBeforeSync, Fault::kForgottenBeforeSync,
                                         Fault::kKeptCopies, Fault::kCapAfterGrowth,
                                         Fault::kChildWithoutParent));

constexpr uint64_t kFirstSeed = 7'380;  // shortly before the first that shows kKeptCopies

TEST_P(TierMutant, IsFound) {
  InjectFault(GetParam());
  const bool media = GetParam() == Fault::kSkippedTag || GetParam() == Fault::kKeptCopies;
  uint64_t calls = 0;
  std::optional<std::string> wrong;
  if (!media) wrong = FirstWrongStop(1, 1000, &calls);
  uint64_t seed = kFirstSeed;
  for (; !wrong && seed < kFirstSeed + 10'000; ++seed) wrong = WrongInRandom(seed, media);
  EXPECT_TRUE(wrong);
  if (wrong)
    std::printf("found with seed %llu: %s\n", static_cast<unsigned long long>(seed),
                wrong->c_str());
}

}  // namespace
}  // namespace kvasir
