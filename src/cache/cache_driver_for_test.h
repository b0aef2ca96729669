// For tests of KvCache: stands in for a model. The KV of a token is a pure function of the
// namespace and all tokens up to it, so that any wrong block served shows in its bytes.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "base/bytes.h"
#include "base/random.h"
#include "cache/kv_cache.h"

namespace kvasir {

using Tokens = std::vector<TokenId>;
inline constexpr uint32_t kHidden = 4;

inline BlockLayout TinyLayout() {
  return BlockLayout(BlockShape{.block_tokens = 16,
                                .num_layers = 1,
                                .kv_heads = 1,
                                .head_dim = 16,
                                .k_format = {KvFormat::kF16},
                                .v_format = {KvFormat::kF16}});
}

inline constexpr uint32_t kCrossLayer = ~uint32_t{0};

// Makes layers of one head each, in blocks of one layer. windows: [layer], 0: full, kCrossLayer:
// cross.
inline KvLayout LayoutOf(const std::vector<uint32_t>& windows, uint32_t block_tokens = 16) {
  BlockShape shape = TinyLayout().shape();
  shape.block_tokens = block_tokens;
  shape.num_layers = static_cast<uint32_t>(windows.size());
  shape.k_format.assign(windows.size(), KvFormat::kF16);
  shape.v_format.assign(windows.size(), KvFormat::kF16);
  std::vector<KvReach> reaches;
  for (const uint32_t window : windows) {
    reaches.push_back(window == 0             ? KvReach{}
                      : window == kCrossLayer ? KvReach{KvReach::Kind::kCross}
                                              : KvReach{KvReach::Kind::kWindow, window});
  }
  return KvLayout(shape, reaches, /*slots=*/1, /*max_positions=*/4096);
}

inline KvCacheOptions OptionsFor(uint32_t num_blocks, uint32_t num_cursors = 16,
                                 const EvictionChoice* eviction = &DefaultEvictionChoice(),
                                 const KvLayout& layout = TinyLayout()) {
  KvCacheOptions options{.layout = layout,
                         .budget_bytes = 0,
                         .hidden_size = kHidden,
                         .num_cursors = num_cursors,
                         .secret = {1, 2, 3},
                         .step_tokens = 24,
                         .eviction = eviction};
  const uint64_t step = num_blocks > 1000 ? 65536 : 64;
  while (KvCache::Plan(options).num_blocks < num_blocks) options.budget_bytes += step;
  return options;
}

inline Identity IdentityNamed(uint8_t name) {
  Identity identity{};
  identity.fill(name);
  return identity;
}

// `count` tokens, a function of `seed`.
inline Tokens TokensFrom(uint64_t seed, size_t count) {
  Tokens tokens(count);
  for (size_t i = 0; i < count; ++i) tokens[i] = static_cast<TokenId>(DrawBits(seed, 0, i) >> 40);
  return tokens;
}
inline Tokens Join(Tokens a, const Tokens& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}
inline Tokens First(const Tokens& tokens, size_t count) {
  return Tokens(tokens.begin(), tokens.begin() + static_cast<ptrdiff_t>(count));
}

// salt: differs between namespaces, so that their stamps differ.
inline uint64_t PrefixHash(uint64_t salt, std::span<const TokenId> tokens) {
  uint64_t hash = Mix64(salt);
  for (TokenId token : tokens) hash = Mix64(hash ^ static_cast<uint32_t>(token));
  return hash;
}

inline std::vector<float> HiddenOf(uint64_t salt, std::span<const TokenId> tokens) {
  std::vector<float> hidden(kHidden);
  for (uint32_t i = 0; i < kHidden; ++i) {
    hidden[i] = static_cast<float>(DrawUniform(PrefixHash(salt, tokens), 1, i));
  }
  return hidden;
}

struct CacheDriver {
  explicit CacheDriver(const KvCacheOptions& options) {
    auto made = KvCache::Create(options);
    EXPECT_TRUE(made) << made.error().message;
    cache = std::move(*made);
  }
  ~CacheDriver() {
    cache->CheckInvariants();
    EXPECT_EQ(cache->usage().pinned_blocks, 0u);
    EXPECT_EQ(cache->usage().live_tokens, 0u);
  }

  size_t slot_bytes() const {
    return cache->layout().block_bytes() / cache->layout().block_tokens();
  }

  // Writes (or, with `check`, compares) the KV of tokens [begin, end) in all own groups; checked
  // are those that the next token sees.
  void Stamp(const KvSequence& sequence, uint64_t salt, uint32_t begin, uint32_t end, bool check) {
    const KvLayout& layout = cache->layout();
    uint64_t hash = Mix64(salt);
    for (uint32_t p = 0; p < end; ++p) {
      hash = Mix64(hash ^ static_cast<uint32_t>(sequence.tokens()[p]));
      if (p < begin) continue;
      for (uint32_t group = 0; group < layout.num_own_groups(); ++group) {
        if (check && p < WindowBegin(end, layout.group(group).reach.window)) continue;
        const BlockTable* table = &sequence.tables()[group];
        uint32_t block = p / layout.block_tokens();
        if (group < layout.num_full_groups() && block < table->first()) {  // dropped, or kept apart
          const auto kept = sequence.kept_blocks();
          const auto at = std::ranges::lower_bound(kept, block);
          if (at == kept.end() || *at != block) continue;
          table = &sequence.kept()[group];
          block = static_cast<uint32_t>(at - kept.begin());
        }
        ASSERT_GE(block, table->first()) << "token " << p << " of " << end << ", group " << group;
        std::byte* slot = table->bases()[block] + (p % layout.block_tokens()) * slot_bytes();
        for (size_t i = 0; i < slot_bytes() / 8; ++i) {
          const uint64_t word = Mix64(hash + i + (uint64_t{group} << 40));
          if (!check) {
            std::memcpy(slot + 8 * i, &word, 8);
          } else if (std::memcmp(slot + 8 * i, &word, 8) != 0) {
            FAIL() << "wrong KV at token " << p << " of " << end << ", group " << group;
          }
        }
      }
    }
  }
  // Stamps as above, for the KV of the source. `salt` tells apart sources too: any two have another
  // KV in all their tokens, as an encoder's have.
  void StampSource(const KvSequence& sequence, uint64_t salt, bool check) {
    const KvLayout& layout = cache->layout();
    for (uint32_t group = layout.num_own_groups(); group < layout.num_groups(); ++group) {
      const BlockTable& table = sequence.tables()[group];
      ASSERT_EQ(table.num_held(), CeilDiv(sequence.source_tokens(), layout.block_tokens()));
      for (uint32_t p = 0; p < sequence.source_tokens(); ++p) {
        std::byte* slot =
            table.bases()[p / layout.block_tokens()] + (p % layout.block_tokens()) * slot_bytes();
        for (size_t i = 0; i < slot_bytes() / 8; ++i) {
          const uint64_t word = DrawBits(~salt, group, uint64_t{p} << 20 | i);
          if (!check) {
            std::memcpy(slot + 8 * i, &word, 8);
          } else if (std::memcmp(slot + 8 * i, &word, 8) != 0) {
            FAIL() << "wrong KV at token " << p << " of the source, group " << group;
          }
        }
      }
    }
  }
  // Computes the KV of the source if it is not there; false when the pool is exhausted.
  bool ComputeSource(KvSequence& sequence, uint64_t salt) {
    if (sequence.has_source()) return true;
    if (!cache->ExtendSource(sequence)) return false;
    StampSource(sequence, salt, /*check=*/false);
    cache->CommitSource(sequence);
    return true;
  }
  void Verify(const KvSequence& sequence, uint64_t salt) {
    Stamp(sequence, salt, 0, sequence.num_committed(), /*check=*/true);
    if (sequence.has_source()) StampSource(sequence, salt, /*check=*/true);
  }

  // Appends and computes `tokens`, in steps where there are windows; false when the pool is
  // exhausted, and then the last step did nothing.
  bool Append(KvSequence& sequence, uint64_t salt, std::span<const TokenId> tokens,
              KvCache::CommitKind kind = KvCache::CommitKind::kRunning) {
    do {
      const size_t step = cache->layout().has_windows() ? cache->step_tokens() : tokens.size();
      const auto now = tokens.first(std::min(step, tokens.size()));
      tokens = tokens.subspan(now.size());
      const uint32_t begin = sequence.num_tokens();
      if (!cache->Extend(sequence, now)) return false;
      Stamp(sequence, salt, begin, sequence.num_tokens(), /*check=*/false);
      cache->Commit(sequence, static_cast<uint32_t>(now.size()),
                    tokens.empty() ? kind : KvCache::CommitKind::kRunning);
    } while (!tokens.empty());
    return true;
  }

  // Does what an engine does with a prompt: match, verify, compute the rest, keep a Cursor.
  KvSequence Run(NamespaceId ns, uint64_t salt, const Tokens& prompt,
                 const MatchOptions& options = {}, std::optional<Miss>* miss = nullptr) {
    MatchResult match = cache->Match(ns, prompt, options);
    if (miss != nullptr) *miss = match.miss;
    reused = match.num_reused();
    if (match.has_cursor()) {
      const auto hidden = cache->CursorHidden(match);
      EXPECT_EQ(std::vector<float>(hidden.begin(), hidden.end()), HiddenOf(salt, prompt));
    }
    KvSequence sequence = cache->Fetch(std::move(match), static_cast<uint32_t>(prompt.size()) + 64);
    Verify(sequence, salt);
    EXPECT_TRUE(ComputeSource(sequence, salt));
    EXPECT_TRUE(
        Append(sequence, salt, std::span(prompt).subspan(reused), KvCache::CommitKind::kEnd));
    cache->KeepCursor(sequence, HiddenOf(salt, prompt));
    return sequence;
  }

  std::unique_ptr<KvCache> cache;
  uint32_t reused = 0;  // by the last Run
};

// One cache, and one namespace of tenant alice with salt 7.
class KvCacheTest : public testing::Test {
 protected:
  void Make(uint32_t num_blocks, const KvLayout& layout = TinyLayout()) {
    driver_ = std::make_unique<CacheDriver>(
        OptionsFor(num_blocks, /*num_cursors=*/16, &DefaultEvictionChoice(), layout));
  }
  void SetUp() override {
    Make(32);
    ns_ = cache().EnterNamespace("alice", IdentityNamed(1));
  }
  KvCache& cache() { return *driver_->cache; }
  KvSequence Run(const Tokens& prompt, const MatchOptions& options = {}) {
    return driver_->Run(ns_, 7, prompt, options, &miss_);
  }
  uint32_t reused() const { return driver_->reused; }
  void ExpectMiss(MissReason reason, uint32_t at_token) {
    ASSERT_TRUE(miss_);
    EXPECT_STREQ(ToString(miss_->reason), ToString(reason));
    EXPECT_EQ(miss_->at_token, at_token);
  }

  std::unique_ptr<CacheDriver> driver_;
  NamespaceId ns_{};
  std::optional<Miss> miss_;
};

}  // namespace kvasir
