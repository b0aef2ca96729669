// The cache without a model: lookup, hash and commit, forget, waste. One JSON line per measurement,
// with its target; exit status 1 when an answer is wrong (a missed target is only shown, because
// machines differ). Times are the best and the median of several rounds after a warm-up.
#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/clock.h"
#include "base/random.h"
#include "cache/kv_cache.h"

namespace kvasir {
namespace {

using Tokens = std::vector<TokenId>;
using enum KvCache::CommitKind;

// Makes a cache whose tokens have 64 bytes of KV: the cache's own work is measured, not the model's
// writes.
std::unique_ptr<KvCache> MakeCache(uint64_t num_tokens, uint32_t num_cursors) {
  KvCacheOptions options{.layout = BlockLayout(BlockShape{.block_tokens = 16,
                                                          .num_layers = 1,
                                                          .kv_heads = 1,
                                                          .head_dim = 16,
                                                          .k_format = {KvFormat::kF16},
                                                          .v_format = {KvFormat::kF16}}),
                         .budget_bytes = num_tokens * 64,
                         .hidden_size = 64,
                         .num_cursors = num_cursors,
                         .secret = {1}};
  while (KvCache::Plan(options).num_blocks * 16 < num_tokens) options.budget_bytes += 1 << 16;
  auto cache = KvCache::Create(std::move(options));
  KV_CHECK(cache);
  return std::move(*cache);
}

Tokens RandomTokens(Random& random, size_t count) {
  Tokens tokens(count);
  for (TokenId& token : tokens) token = static_cast<TokenId>(random.Below(128'000));
  return tokens;
}

struct Spread {
  double best, median;
};
Spread SpreadOf(std::vector<double> values) {
  std::ranges::sort(values);
  return {values.front(), values[values.size() / 2]};
}

bool HasShaInstructions() {
  std::ifstream cpus("/proc/cpuinfo");
  for (std::string line; std::getline(cpus, line);) {
    if (line.starts_with("flags") || line.starts_with("Features")) {
      return line.find("sha_ni") != std::string::npos || line.find("sha2") != std::string::npos;
    }
  }
  return false;
}

// Finds a resident prompt of 128K tokens, among others so that the index is not all one chain; one
// match is the walk, its pins and their release.
bool LookUp() {
  constexpr size_t kTokens = 128 * 1024;
  Random random(1);
  auto cache = MakeCache(2 * kTokens + 4096, 16);
  const NamespaceId ns = cache->EnterNamespace("bench", {});
  const Tokens prompt = RandomTokens(random, kTokens);
  KvSequence long_one = cache->Fetch(cache->Match(ns, prompt, {}), kTokens);
  for (size_t done = 0; done < kTokens; done += 512) {
    KV_CHECK(cache->Extend(long_one, std::span(prompt).subspan(done, 512)));
    cache->Commit(long_one, 512, kRunning);
    // Another conversation takes blocks in between, and shares the first half of the prompt so far.
    Tokens other(prompt.begin(), prompt.begin() + static_cast<ptrdiff_t>(done / 2));
    other.resize(other.size() + 256, static_cast<TokenId>(done));
    MatchResult match = cache->Match(ns, other, {});
    const uint32_t reused = match.num_reused();
    KvSequence sequence = cache->Fetch(std::move(match), static_cast<uint32_t>(other.size()));
    KV_CHECK(cache->Extend(sequence, std::span(other).subspan(reused)));
    cache->Commit(sequence, static_cast<uint32_t>(other.size()) - reused, kEnd);
  }
  long_one = KvSequence();
  std::vector<double> ms;
  bool right = true;
  for (int round = 0; round < 60; ++round) {
    const uint64_t begin = MonotonicNs();
    {
      const MatchResult match = cache->Match(ns, prompt, {});
      right &= match.num_reused() == kTokens - 1;
    }
    if (round >= 10) ms.push_back(static_cast<double>(MonotonicNs() - begin) * 1e-6);
  }
  const Spread spread = SpreadOf(ms);
  fmt::print(
      "{{\"bench\": \"lookup\", \"prompt_tokens\": {}, \"best_ms\": {:.3f}, \"median_ms\": {:.3f}, "
      "\"target_ms\": 2, \"right\": {}}}\n",
      kTokens, spread.best, spread.median, right);
  return right;
}

// Measures the cache's whole work for a prefill of 1K tokens with nothing to reuse: Match, Extend
// in two chunks, Commit with its hashes and BlockKeys, and what has to be evicted.
bool HashAndCommit() {
  constexpr size_t kTokens = 1024, kChunk = 512;
  Random random(2);
  auto cache = MakeCache(64 * kTokens, 64);
  const NamespaceId ns = cache->EnterNamespace("bench", {});
  std::vector<double> commit_ns, all_ns;
  for (int round = 0; round < 2000; ++round) {
    const Tokens prompt = RandomTokens(random, kTokens);
    uint64_t committing = 0;
    const uint64_t begin = MonotonicNs();
    KvSequence sequence = cache->Fetch(cache->Match(ns, prompt, {}), kTokens + 64);
    for (size_t done = 0; done < kTokens; done += kChunk) {
      KV_CHECK(cache->Extend(sequence, std::span(prompt).subspan(done, kChunk)));
      const uint64_t before = MonotonicNs();
      cache->Commit(sequence, kChunk, kEnd);
      committing += MonotonicNs() - before;
    }
    const uint64_t end = MonotonicNs();
    if (round < 200) continue;  // warm-up; from round 64 on the pool is full and evicts
    commit_ns.push_back(static_cast<double>(committing) / kTokens);
    all_ns.push_back(static_cast<double>(end - begin) / kTokens);
  }
  const bool right = cache->counters().committed_blocks == 2000 * kTokens / 16;
  const Spread commit = SpreadOf(commit_ns), all = SpreadOf(all_ns);
  const bool sha = HasShaInstructions();
  fmt::print(
      "{{\"bench\": \"commit\", \"best_ns_per_token\": {:.2f}, \"median_ns_per_token\": {:.2f}, "
      "\"target_ns_per_token\": {}, \"sha_instructions\": {}, \"right\": {}}}\n",
      commit.best, commit.median, sha ? 15 : 35, sha, right);
  fmt::print(
      "{{\"bench\": \"prefill_overhead\", \"prompt_tokens\": {}, \"best_us\": {:.1f}, "
      "\"median_us\": {:.1f}, \"right\": {}}}\n",
      kTokens, all.best * kTokens * 1e-3, all.median * kTokens * 1e-3, right);
  return right;
}

// Forgets the second half of one conversation of 2,000 tokens after the other, in a pool of 10^5
// blocks with room for their Cursors. Forget is what holds up a step; zeroing the blocks is spread
// over the next ones.
bool ForgetHalf() {
  constexpr size_t kTokens = 2000, kBlocks = 100'000, kPrompts = 700;
  Random random(4);
  auto cache = MakeCache(kBlocks * 16, 256);
  const NamespaceId ns = cache->EnterNamespace("bench", {});
  std::vector<Tokens> prompts;
  const std::vector<float> hidden(64, 1.0f);
  for (size_t i = 0; i < kPrompts; ++i) {
    prompts.push_back(RandomTokens(random, kTokens));
    KvSequence sequence = cache->Fetch(cache->Match(ns, prompts.back(), {}), kTokens);
    KV_CHECK(cache->Extend(sequence, prompts.back()));
    cache->Commit(sequence, kTokens, kEnd);
    cache->KeepCursor(sequence, hidden);
  }
  std::vector<double> forget_ms, zero_ms;
  bool right = true;
  for (size_t i = 0; i < 200; ++i) {
    const Tokens& prompt = prompts[i * kPrompts / 200];
    const uint64_t begin = MonotonicNs();
    const KvCache::Forgotten forgotten = cache->Forget(ns, prompt, kTokens / 2, kTokens - 1);
    const uint64_t end = MonotonicNs();
    while (!cache->IsZeroed(forgotten.point)) cache->ZeroForgotten(1 << 20);
    zero_ms.push_back(static_cast<double>(MonotonicNs() - end) * 1e-6);
    forget_ms.push_back(static_cast<double>(end - begin) * 1e-6);
    right &= forgotten.erased_tokens == kTokens - kTokens / 2 / 16 * 16;
    right &= cache->Match(ns, prompt, {}).num_reused() == kTokens / 2 / 16 * 16;
  }
  const Spread forget = SpreadOf(forget_ms), zero = SpreadOf(zero_ms);
  fmt::print(
      "{{\"bench\": \"forget\", \"tokens\": {}, \"pool_blocks\": {}, \"best_ms\": {:.3f}, "
      "\"median_ms\": {:.3f}, \"worst_ms\": {:.3f}, \"zero_median_ms\": {:.3f}, \"target_ms\": 10, "
      "\"right\": {}}}\n",
      kTokens / 2, cache->plan().num_blocks, forget.best, forget.median,
      std::ranges::max(forget_ms), zero.median, right);
  return right;
}

// Forgets a text at the beginning of a path of 2,000 blocks; 1,000 other sessions of 30,000 tokens
// have the first 20,000 of them, and the pool has the blocks of 400 of these. What the engine's
// thread does holds up a token; the caller's thread and the tier's writer do the rest.
bool ForgetBesideKept() {
  constexpr size_t kPath = 32'000, kShared = 20'000, kTokens = 30'000, kSessions = 1000,
                   kHere = 400;
  constexpr uint32_t kLast = 100;
  constexpr double kMostEngineMs = 20;
  Random random(5);
  auto cache = MakeCache(kPath + kHere * (kTokens - kShared) + 4096, 64);
  const NamespaceId ns = cache->EnterNamespace("bench", {});
  const auto put = [&](const Tokens& prompt) {
    MatchResult match = cache->Match(ns, prompt, {});
    const size_t reused = match.num_reused();
    KvSequence sequence = cache->Fetch(std::move(match), static_cast<uint32_t>(prompt.size()));
    KV_CHECK(cache->Extend(sequence, std::span(prompt).subspan(reused)));
    cache->Commit(sequence, static_cast<uint32_t>(prompt.size() - reused), kEnd);
  };
  const Tokens path = RandomTokens(random, kPath);
  std::vector<Tokens> sessions;
  for (size_t i = 0; i < kSessions; ++i) {
    sessions.push_back(RandomTokens(random, kTokens));
    std::copy_n(path.begin(), kShared, sessions.back().begin());
    if (i < kHere) put(sessions.back());
  }
  std::vector<double> caller_ms, engine_ms, writer_ms;
  bool right = true;
  for (int round = 0; round < 5; ++round) {
    put(path);
    auto since = [begin = MonotonicNs()]() mutable {
      const uint64_t before = std::exchange(begin, MonotonicNs());
      return static_cast<double>(begin - before) * 1e-6;
    };
    std::vector<Tokens> copies = sessions;
    since();
    const auto kept = std::make_shared<const KeptPrompts>(std::move(copies), path);
    caller_ms.push_back(since());
    const ForgetFacts facts = cache->FactsToForget("bench", {}, {}, path, 0, kLast, kept);
    const KvCache::Forgotten forgotten = cache->Forget(ns, path, 0, kLast, *kept);
    engine_ms.push_back(since());
    const size_t keys = facts.kept().size();
    writer_ms.push_back(since());
    right &= forgotten.erased_tokens == kPath - kShared;
    right &= forgotten.kept_shared == kShared / 16 + kHere * (kTokens - kShared) / 16;
    right &= keys == kShared / 16 + kSessions * (kTokens - kShared) / 16;
  }
  const double worst_ms = std::ranges::max(engine_ms);
  fmt::print(
      "{{\"bench\": \"forget_beside_kept\", \"sessions\": {}, \"pool_blocks\": {}, "
      "\"caller_median_ms\": {:.3f}, \"engine_median_ms\": {:.3f}, \"engine_worst_ms\": {:.3f}, "
      "\"writer_median_ms\": {:.3f}, \"target_engine_ms\": {}, \"right\": {}}}\n",
      kSessions, cache->plan().num_blocks, SpreadOf(caller_ms).median, SpreadOf(engine_ms).median,
      worst_ms, SpreadOf(writer_ms).median, kMostEngineMs, right);
  return right && worst_ms <= kMostEngineMs;
}

// 200 conversations of 1,500 tokens on average: four system prompts, several turns each, eight at
// once, prompts computed in chunks and answers token by token, in a pool that holds two thirds of
// them. Sampled after every step whose pool is at least 90% full.
class WasteReplay {
 public:
  bool Run() {
    for (int i = 0; i < 4; ++i) systems_.push_back(RandomTokens(random_, 100 + random_.Below(300)));
    while (finished_ < kConversations) {
      while (open_.size() < kParallel && started_ < kConversations) Open();
      for (size_t i = 0; i < open_.size();) {
        Step(open_[i]);
        Sample();
        if (open_[i].turns_left == 0) {
          total_tokens_ += open_[i].text.size();
          open_.erase(open_.begin() + static_cast<ptrdiff_t>(i));
          ++finished_;
          Sample();
        } else {
          ++i;
        }
      }
    }
    cache_->CheckInvariants();
    const CacheCounters& counters = cache_->counters();
    fmt::print(
        "{{\"bench\": \"waste\", \"conversations\": {}, \"mean_tokens\": {:.0f}, \"samples\": {}, "
        "\"worst\": {:.5f}, \"mean\": {:.5f}, \"target\": 0.01, \"reused_share\": {:.3f}, "
        "\"evicted_blocks\": {}, \"copied_blocks\": {}}}\n",
        finished_, static_cast<double>(total_tokens_) / finished_, samples_, worst_,
        sum_ / static_cast<double>(samples_),
        static_cast<double>(counters.reused_pool + counters.reused_partial) /
            static_cast<double>(counters.prompt_tokens),
        counters.evicted_blocks, counters.copied_blocks);
    return samples_ > 1000 && cache_->usage().pinned_blocks == 0;
  }

 private:
  static constexpr int kConversations = 200;
  static constexpr size_t kParallel = 8;

  struct Conversation {
    Tokens text;  // all so far, the current prompt included
    KvSequence sequence;
    bool is_running = false;
    size_t answer_left = 0;
    size_t turns_left = 0;
  };

  void Open() {
    Conversation conversation;
    conversation.text = systems_[random_.Below(systems_.size())];
    conversation.turns_left = 1 + random_.Below(9);
    open_.push_back(std::move(conversation));
    ++started_;
  }

  void Begin(Conversation& conversation) {
    const Tokens question = RandomTokens(random_, 30 + random_.Below(140));
    conversation.text.insert(conversation.text.end(), question.begin(), question.end());
    conversation.answer_left = 40 + random_.Below(230);
    conversation.sequence =
        cache_->Fetch(cache_->Match(ns_, conversation.text, {}),
                      static_cast<uint32_t>(conversation.text.size() + conversation.answer_left));
    conversation.is_running = true;
  }

  void Step(Conversation& conversation) {
    if (!conversation.is_running) Begin(conversation);
    KvSequence& sequence = conversation.sequence;
    if (sequence.num_tokens() < conversation.text.size()) {
      const size_t chunk = std::min<size_t>(512, conversation.text.size() - sequence.num_tokens());
      KV_CHECK(cache_->Extend(sequence,
                              std::span(conversation.text).subspan(sequence.num_tokens(), chunk)));
      const bool end = sequence.num_tokens() == conversation.text.size();
      cache_->Commit(sequence, static_cast<uint32_t>(chunk), end ? kEnd : kRunning);
      return;
    }
    const auto token = static_cast<TokenId>(random_.Below(128'000));
    conversation.text.push_back(token);
    KV_CHECK(cache_->Extend(sequence, std::span(&token, 1)));
    cache_->Commit(sequence, 1, kRunning);
    if (--conversation.answer_left > 0) return;
    cache_->Commit(sequence, 0, kEnd);
    sequence = KvSequence();
    conversation.is_running = false;
    --conversation.turns_left;
  }

  void Sample() {
    const CacheUsage usage = cache_->usage();
    if (usage.free_blocks * 10 > usage.num_blocks) return;
    worst_ = std::max(worst_, usage.waste());
    sum_ += usage.waste();
    ++samples_;
  }

  Random random_{3};
  std::unique_ptr<KvCache> cache_ = MakeCache(200'000, 64);
  NamespaceId ns_ = cache_->EnterNamespace("bench", {});
  std::vector<Tokens> systems_;
  std::vector<Conversation> open_;
  int started_ = 0, finished_ = 0;
  size_t total_tokens_ = 0;
  uint64_t samples_ = 0;
  double worst_ = 0, sum_ = 0;
};

}  // namespace
}  // namespace kvasir

int main() {
  const bool lookup = kvasir::LookUp();
  const bool commit = kvasir::HashAndCommit();
  const bool forget = kvasir::ForgetHalf();
  const bool kept = kvasir::ForgetBesideKept();
  const bool waste = kvasir::WasteReplay().Run();
  return lookup && commit && forget && kept && waste ? 0 : 1;
}
