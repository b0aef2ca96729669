// Eviction policies on a published recording of conversations: the hits of each, beside Belady's
// optimum. One JSON line a policy and size; exit status 1 when a figure is wrong: LRU is not
// within 1% of the recording's golden figures, a policy has more hits than the optimum, or the
// default is not the winner at 10,000 blocks. A second line each has what KeptLast costs around the
// policy while nothing is marked: wrong beyond 2% of the replay, or with another victim.
//
// usage: eviction_bench [folder of conversation_trace.jsonl and golden.json]
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/random.h"
#include "policy/kept_last.h"
#include "source_paths.h"
#include "testing/belady.h"
#include "testing/prefix_replay.h"
#include "testing/recording.h"

namespace kvasir {
namespace {

constexpr uint32_t kSizes[] = {1'000, 10'000, 50'000};  // blocks of 512 tokens
constexpr uint32_t kDeciding = 10'000;

using Prompts = std::vector<std::vector<uint32_t>>;

// What a cache has asked of its policy, call by call.
struct PolicyCall {
  enum class Kind : uint8_t { kInserted, kEvictable, kHeld, kEvicted, kForgotten, kVictim };
  Kind kind;
  std::optional<BlockId> id;  // of kVictim: what it returned
  BlockFacts facts = {};
  size_t scope = 0;  // of kVictim
};
template <typename T>
using OptionalList = std::optional<std::vector<T>>;
struct PolicyCalls {
  const EvictionChoice* choice = nullptr;  // what the next recorder asks
  std::optional<EvictionLimits> limits;
  std::vector<PolicyCall> calls;
  std::vector<std::pair<OptionalList<NamespaceId>, OptionalList<LayerGroupId>>> scopes;

  EvictionScope ScopeOf(const PolicyCall& call) const {
    const auto& [namespaces, groups] = scopes[call.scope];
    EvictionScope scope;
    if (namespaces) scope.namespaces = *namespaces;
    if (groups) scope.groups = *groups;
    return scope;
  }
};

// Returns the one recording: EvictionChoice::make takes no other argument.
PolicyCalls& Recorded() {
  static PolicyCalls calls;
  return calls;
}

class CallRecorder final : public EvictionPolicy {
 public:
  using Kind = PolicyCall::Kind;
  explicit CallRecorder(std::unique_ptr<EvictionPolicy> policy) : policy_(std::move(policy)) {}

  void OnInserted(BlockId id, const BlockFacts& facts) override {
    Recorded().calls.push_back({Kind::kInserted, id, facts});
    policy_->OnInserted(id, facts);
  }
  void OnEvictable(BlockId id, const BlockFacts& facts) override {
    Recorded().calls.push_back({Kind::kEvictable, id, facts});
    policy_->OnEvictable(id, facts);
  }
  void OnHeld(BlockId id) override {
    Recorded().calls.push_back({Kind::kHeld, id});
    policy_->OnHeld(id);
  }
  void OnEvicted(BlockId id) override {
    Recorded().calls.push_back({Kind::kEvicted, id});
    policy_->OnEvicted(id);
  }
  void OnForgotten(BlockId id) override {
    Recorded().calls.push_back({Kind::kForgotten, id});
    policy_->OnForgotten(id);
  }
  std::optional<BlockId> Victim(const EvictionScope& scope) override {
    const std::optional<BlockId> victim = policy_->Victim(scope);
    auto& [namespaces, groups] = Recorded().scopes.emplace_back();
    if (scope.namespaces) namespaces.emplace(scope.namespaces->begin(), scope.namespaces->end());
    if (scope.groups) groups.emplace(scope.groups->begin(), scope.groups->end());
    Recorded().calls.push_back({Kind::kVictim, victim, {}, Recorded().scopes.size() - 1});
    return victim;
  }
  bool is_evictable(BlockId id) const override { return policy_->is_evictable(id); }
  uint32_t num_evictable() const override { return policy_->num_evictable(); }
  uint64_t allocated_bytes() const override { return policy_->allocated_bytes(); }
  void CheckInvariants() const override { policy_->CheckInvariants(); }

 private:
  const std::unique_ptr<EvictionPolicy> policy_;
};

// Returns the CPU seconds of the process: other programs change them less than the time.
double CpuSeconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

// Makes all calls again. Returns the CPU seconds; counts victims that are others.
double CallAgain(const PolicyCalls& made, EvictionPolicy& policy, uint64_t* other_victims) {
  const double begin = CpuSeconds();
  for (const PolicyCall& call : made.calls) {
    switch (call.kind) {
      case PolicyCall::Kind::kInserted:
        policy.OnInserted(*call.id, call.facts);
        break;
      case PolicyCall::Kind::kEvictable:
        policy.OnEvictable(*call.id, call.facts);
        break;
      case PolicyCall::Kind::kHeld:
        policy.OnHeld(*call.id);
        break;
      case PolicyCall::Kind::kEvicted:
        policy.OnEvicted(*call.id);
        break;
      case PolicyCall::Kind::kForgotten:
        policy.OnForgotten(*call.id);
        break;
      case PolicyCall::Kind::kVictim:
        *other_victims += policy.Victim(made.ScopeOf(call)) != call.id;
    }
  }
  return CpuSeconds() - begin;
}

// Does for each hit what a cache does with its policy, of any block. Returns the CPU seconds.
double UseAll(KeptLast& policy, uint64_t hits, uint32_t num_blocks) {
  const double begin = CpuSeconds();
  for (uint64_t i = 0; i < hits; ++i) {
    policy.Use(BlockId{static_cast<uint32_t>(Mix64(i) % num_blocks)});
  }
  return CpuSeconds() - begin;
}

// Compares a policy alone with the same policy in KeptLast, as each cache has it, on the calls of
// one replay: the least times of many rounds. Prints the line; false: it is wrong.
bool MeasureKeptLast(const Prompts& prompts, uint32_t num_blocks, const EvictionChoice& choice,
                     const PrefixReplay& replay) {
  Recorded() = {.choice = &choice};
  EvictionChoice recording = choice;
  recording.make = [](const EvictionLimits& limits) -> std::unique_ptr<EvictionPolicy> {
    Recorded().limits = limits;
    return std::make_unique<CallRecorder>(Recorded().choice->make(limits));
  };
  const auto again = ReplayPrefixes(prompts, num_blocks, recording);
  const PolicyCalls& made = Recorded();
  bool right = again && again->hits == replay.hits && made.limits;
  if (!right) return false;
  constexpr int kReplays = 3, kRounds = 25;
  double replay_s = 1e9, alone_s = 1e9, kept_s = 1e9;
  for (int round = 0; round < kReplays; ++round) {
    const double begin = CpuSeconds();
    right &= ReplayPrefixes(prompts, num_blocks, choice).has_value();
    replay_s = std::min(replay_s, CpuSeconds() - begin);
  }
  uint64_t other_victims = 0;
  for (int round = 0; round < kRounds; ++round) {
    const auto alone = choice.make(*made.limits);
    alone_s = std::min(alone_s, CallAgain(made, *alone, &other_victims));
    KeptLast kept(choice.make(*made.limits), *made.limits);
    const double calls_s = CallAgain(made, kept, &other_victims);
    kept_s = std::min(kept_s, calls_s + UseAll(kept, replay.hits, num_blocks));
  }
  const double ratio = replay_s / (replay_s - (kept_s - alone_s));
  right &= other_victims == 0 && ratio <= 1.02;
  fmt::print(
      "{{\"bench\": \"eviction_kept_last\", \"blocks\": {}, \"policy\": \"{}\", \"calls\": {}, "
      "\"alone_cpu_s\": {:.4f}, \"kept_last_cpu_s\": {:.4f}, \"replay_cpu_s\": {:.3f}, "
      "\"replay_ratio\": "
      "{:.4f}, \"other_victims\": {}, \"right\": {}}}\n",
      num_blocks, choice.name, made.calls.size() + replay.hits, alone_s, kept_s, replay_s, ratio,
      other_victims, right);
  return right;
}

// Prints the lines; returns the hits, or nothing where a figure cannot be right.
std::optional<uint64_t> Measure(const Prompts& prompts, uint32_t num_blocks, uint64_t most,
                                const EvictionChoice& choice, const nlohmann::json& golden) {
  const uint64_t begin = MonotonicNs();
  const auto replay = ReplayPrefixes(prompts, num_blocks, choice);
  const double seconds = static_cast<double>(MonotonicNs() - begin) * 1e-9;
  if (!replay) {
    fmt::print(stderr, "eviction_bench: {}\n", replay.error().message);
    return std::nullopt;
  }
  bool right = replay->hits <= most;
  std::string beside;
  if (choice.name == std::string_view("lru")) {
    const std::string at = fmt::format("/lru/{}/prefix_reverse_touch/hits", num_blocks);
    const double expected = golden.value(nlohmann::json::json_pointer(at), 0.0);
    right &= std::abs(static_cast<double>(replay->hits) - expected) <= 0.01 * expected;
    beside = fmt::format("\"golden_hits\": {:.0f}, ", expected);
  }
  fmt::print(
      "{{\"bench\": \"eviction\", \"blocks\": {}, \"policy\": \"{}\", \"hits\": {}, "
      "\"hit_ratio\": {:.4f}, \"optimum_hits\": {}, \"share_of_optimum\": {:.4f}, {}"
      "\"evictions\": {}, \"replay_s\": {:.2f}, \"right\": {}}}\n",
      num_blocks, choice.name, replay->hits,
      static_cast<double>(replay->hits) / static_cast<double>(replay->blocks), most,
      static_cast<double>(replay->hits) / static_cast<double>(most), beside, replay->evictions,
      seconds, right);
  right &= MeasureKeptLast(prompts, num_blocks, choice, *replay);
  return right ? std::optional(replay->hits) : std::nullopt;
}

int Run(const std::filesystem::path& folder) {
  const auto recording = ReadRecording(folder / "conversation_trace.jsonl");
  std::ifstream golden_file(folder / "golden.json");
  const auto golden = nlohmann::json::parse(golden_file, nullptr, /*allow_exceptions=*/false);
  if (!recording || !golden.contains("conversation_trace.jsonl")) {
    fmt::print(
        stderr, "eviction_bench: skipped: {}\n",
        !recording ? recording.error().message : (folder / "golden.json").string() + " is missing");
    return 0;
  }
  Prompts prompts;
  for (const RecordedRequest& request : *recording) prompts.push_back(request.block_ids);
  bool right = true;
  for (const uint32_t num_blocks : kSizes) {
    const uint64_t most = BeladyHits(prompts, num_blocks);
    const EvictionChoice* winner = nullptr;
    uint64_t best = 0;
    for (const EvictionChoice& choice : EvictionChoices()) {
      const auto hits =
          Measure(prompts, num_blocks, most, choice, golden["conversation_trace.jsonl"]);
      right &= hits.has_value();
      if (!hits || (winner != nullptr && *hits <= best)) continue;
      winner = &choice;
      best = *hits;
    }
    if (num_blocks == kDeciding && winner != &DefaultEvictionChoice()) {
      fmt::print(stderr, "eviction_bench: the default is {}, the winner another\n",
                 DefaultEvictionChoice().name);
      right = false;
    }
  }
  return right ? 0 : 1;
}

}  // namespace
}  // namespace kvasir

int main(int argc, char** argv) {
  return kvasir::Run(argc > 1 ? argv[1] : KVASIR_SHARED_DIR "/data/mooncake-conversation");
}
