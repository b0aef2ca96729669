// Random conversations against a naive twin: a list of all token strings that were published. With
// room for everything a match finds exactly what the twin finds; in a tiny pool never more. In
// both, every byte of KV that is served is compared.
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <map>
#include <set>

#include "base/own_clock.h"
#include "base/rounds_for_test.h"
#include "cache/cache_driver_for_test.h"

namespace kvasir {
namespace {

struct Params {
  uint64_t seed;
  uint32_t num_blocks;
  std::string eviction;
  std::vector<uint32_t> windows = {0};  // [layer]
  bool sources = false;
  uint64_t source_hash_mask = ~uint64_t{0};
  uint32_t block_tokens = 16;
};

class KvCacheModel : public testing::TestWithParam<Params> {
 protected:
  // Prompts of one source in one namespace.
  struct Space {
    std::string tenant;
    uint8_t identity = 0;
    NamespaceId id{};
    uint64_t salt = 0;
    size_t sibling = 0;  // the same tenant's space of another Identity (or itself)
    Tokens source;
    uint32_t epoch = 0;
    bool has_source = false;  // in the index
    std::set<Tokens> published;
    std::set<Tokens> resumes;  // prompts that have their windows too
    std::map<Tokens, uint32_t> cursors;
  };
  struct Running {
    size_t space;
    uint32_t epoch;
    bool shares;
    KvSequence kv;
    std::optional<uint32_t> beginning = {};  // blocks that Retain leaves in the index
  };

  KvCacheModel() {
    const auto enter = [&](const char* tenant, uint8_t identity, size_t sibling,
                           const Tokens& source) {
      spaces_.push_back({.tenant = tenant,
                         .identity = identity,
                         .id = cache().EnterNamespace(tenant, IdentityNamed(identity)),
                         .salt = spaces_.size() + 100,
                         .sibling = sibling,
                         .source = source});
    };
    std::vector<Tokens> sources = {{}};
    if (GetParam().sources) {
      // Such that begin alike, equal to a prompt's beginning, and such that only their end differs.
      const Tokens text = TokensFrom(9, 40);
      sources = {{}, {1}, {1, 1}, First(text, 16), First(text, 32), text};
      sources.push_back(text);
      sources.back().back() ^= 1;
    }
    for (const Tokens& source : sources) {
      const size_t first = spaces_.size();
      enter("alice", 1, first + 1, source);
      enter("alice", 2, first, source);
      enter("bob", 1, first + 2, source);
    }
  }

  KvCache& cache() { return *driver_.cache; }
  bool roomy() const { return GetParam().num_blocks > 1000; }
  uint32_t block() const { return GetParam().block_tokens; }  // tokens
  bool has_windows() { return cache().layout().has_windows(); }
  bool has_cross() { return cache().layout().num_cross_groups() > 0; }
  static KvCacheOptions Options() {
    KvCacheOptions options = OptionsFor(GetParam().num_blocks, /*num_cursors=*/4096,
                                        FindEvictionChoice(GetParam().eviction),
                                        LayoutOf(GetParam().windows, GetParam().block_tokens));
    options.source_hash_mask = GetParam().source_hash_mask;
    options.keep_share = GetParam().seed % 2 == 0 ? 0.25 : 1;
    return options;
  }

  static uint32_t Common(std::span<const TokenId> a, std::span<const TokenId> b) {
    return static_cast<uint32_t>(std::ranges::mismatch(a, b).in1 - a.begin());
  }
  static uint32_t LongestIn(const Space& space, std::span<const TokenId> tokens) {
    uint32_t longest = 0;
    for (const Tokens& theirs : space.published) {
      longest = std::max(longest, Common(tokens, theirs));
    }
    return longest;
  }

  // Draws a prompt that mostly begins like something of this (or another) namespace.
  Tokens RandomPrompt() {
    Tokens prompt;
    const Space& from = spaces_[random_.Below(spaces_.size())];
    if (!from.published.empty() && random_.Below(8) != 0) {
      auto it = from.published.begin();
      std::advance(it, random_.Below(from.published.size()));
      prompt = random_.Below(3) == 0 ? *it : First(*it, random_.Below(it->size() + 1));
    }
    const size_t more = random_.Below(3) == 0 ? 0 : random_.Below(24);
    for (size_t i = 0; i < more; ++i) prompt.push_back(static_cast<TokenId>(random_.Below(3)));
    if (prompt.empty()) prompt.push_back(1);
    return First(prompt, std::min<size_t>(prompt.size(), 90));
  }

  void Publish(Running& running, bool end) {
    Space& space = spaces_[running.space];
    if (!running.shares || running.epoch != space.epoch) return;
    const uint32_t committed = running.kv.num_committed();
    const uint32_t full = committed / block() * block();
    space.has_source |= full > 0 || (end && committed > 0);
    const auto tokens = running.kv.tokens();
    if (end && committed > 0 && (committed == full || committed == running.kv.num_tokens())) {
      // A tail is not kept if it is the beginning of a resident block, even if that lacks its
      // window.
      const auto text = tokens.first(committed);
      const bool inside = std::ranges::any_of(space.published, [&](const Tokens& theirs) {
        return theirs.size() > committed && Common(text, theirs) == committed;
      });
      if (committed == full || !inside) space.resumes.insert(Tokens(text.begin(), text.end()));
    }
    if (full > 0) space.published.insert(Tokens(tokens.begin(), tokens.begin() + full));
    if (end && committed > full && committed == running.kv.num_tokens()) {
      space.published.insert(Tokens(tokens.begin(), tokens.begin() + committed));
    }
  }

  void CheckReason(const Space& space, const Tokens& prompt, const MatchResult& match,
                   uint32_t covered) {
    // Whether some published text has exactly `equal` tokens in common with the prompt, and more
    // tokens after them.
    const auto longer = [&](const Space& in, uint32_t equal) {
      return std::ranges::any_of(in.published, [&](const Tokens& theirs) {
        return Common(prompt, theirs) == equal && theirs.size() > equal;
      });
    };
    const Space& sibling = spaces_[space.sibling];
    const auto begin = std::span(prompt).first(std::min<size_t>(block(), prompt.size()));
    const uint32_t theirs = &sibling == &space ? 0 : LongestIn(sibling, begin);
    const bool whole = theirs == begin.size() || !longer(sibling, theirs);
    std::optional<MissReason> expected;
    if (covered == prompt.size() || (covered > 0 && covered + 1 == prompt.size())) {
      expected = std::nullopt;
    } else if (!space.source.empty() && !space.has_source) {
      expected = sibling.has_source ? MissReason::kIdentityChanged : MissReason::kCold;
    } else if (covered < block() && theirs > covered && whole) {
      expected = MissReason::kIdentityChanged;
    } else if (covered == 0) {
      expected = MissReason::kCold;
    } else if (longer(space, covered)) {
      expected = MissReason::kDiverged;
    }
    ASSERT_EQ(match.miss.has_value(), expected.has_value());
    if (!expected) return;
    EXPECT_STREQ(ToString(match.miss->reason), ToString(*expected));
    EXPECT_EQ(match.miss->at_token, covered);
  }

  void Start() {
    const size_t s = random_.Below(spaces_.size());
    Space& space = spaces_[s];
    const Tokens prompt = RandomPrompt();
    const MatchOptions options{.reuse = random_.Below(10) != 0,
                               .use_cursor = random_.Below(2) == 0,
                               .source = {space.source, has_cross() ? SourceTokens(space) : 0}};
    const uint32_t probed = cache().Probe(space.tenant, IdentityNamed(space.identity), {}, prompt);
    EXPECT_EQ(cache().Probe(space.tenant, IdentityNamed(space.identity), "salted", prompt), 0u);
    MatchResult match = cache().Match(space.id, prompt, options);
    if (space.source.empty()) {
      EXPECT_LE(match.num_pool() / block() * block(), probed);
      EXPECT_LE(probed, LongestIn(space, prompt));
      if (options.reuse && !has_windows() &&
          (!match.miss || match.miss->reason != MissReason::kPoolFull)) {
        EXPECT_GE(match.num_reused() + 1, probed);  // the last token is computed
      }
    }
    if (options.source.tokens == 0) {
      EXPECT_FALSE(match.source_miss);
    } else if (!match.source_miss) {
      EXPECT_TRUE(options.reuse && space.has_source);
      ++num_sources_found_;
    }
    if (options.source.tokens > 0 && roomy()) {
      EXPECT_EQ(!match.source_miss, options.reuse && space.has_source);
      if (match.source_miss && options.reuse) {
        EXPECT_STREQ(ToString(*match.source_miss),
                     spaces_[space.sibling].has_source ? "identity_changed" : "cold");
      }
    }
    const uint32_t covered = options.reuse ? LongestIn(space, prompt) : 0;
    EXPECT_LE(match.num_reused(), covered);
    if (match.has_cursor()) {
      EXPECT_TRUE(options.use_cursor && space.cursors.contains(prompt));
      const auto hidden = cache().CursorHidden(match);
      EXPECT_EQ(std::vector<float>(hidden.begin(), hidden.end()), HiddenOf(space.salt, prompt));
    }
    if (roomy() && has_windows()) {
      uint32_t least = 0;
      for (const Tokens& theirs : space.resumes) {
        if (Common(prompt, theirs) < theirs.size()) continue;
        // Within a block: another one that shares more with the prompt may lack its window.
        const size_t begin = theirs.size() / block() * block();
        const auto enters = std::ranges::count_if(
            space.published, [&](const Tokens& text) { return Common(prompt, text) > begin; });
        if (theirs.size() == begin || enters == 1) least = std::max<size_t>(least, theirs.size());
      }
      if (least == prompt.size() && !match.has_cursor()) --least;
      EXPECT_GE(match.num_reused(), options.reuse ? least : 0);
    } else if (roomy()) {
      const bool cursor = covered == prompt.size() && options.use_cursor && options.reuse &&
                          space.cursors.contains(prompt);
      EXPECT_EQ(match.has_cursor(), cursor);
      EXPECT_EQ(match.num_reused(), covered == prompt.size() && !cursor ? covered - 1 : covered);
      if (options.reuse) CheckReason(space, prompt, match, covered);
    }
    const uint32_t reused = match.num_reused();
    Running running{s, space.epoch, options.reuse, cache().Fetch(std::move(match), 128)};
    EXPECT_EQ(running.kv.num_committed(), reused);
    std::vector<uint32_t> points;
    if (random_.Below(2) == 0)
      points.push_back(static_cast<uint32_t>(random_.Below(prompt.size())));
    running.kv.KeepResumePoints(points);
    driver_.Verify(running.kv, space.salt);
    if (!running.kv.has_source()) {
      if (!driver_.ComputeSource(running.kv, space.salt)) return;
      space.has_source |= running.shares;
    }
    if (!Append(running, std::span(prompt).subspan(reused), true)) return;
    for (const uint32_t point : points) {
      const bool full = CeilDiv(point, block()) * block() <= prompt.size();
      if (running.shares && point > reused && full) space.resumes.insert(First(prompt, point));
    }
    if (running.shares) {
      cache().KeepCursor(running.kv, HiddenOf(space.salt, prompt));
      ++space.cursors[prompt];
    }
    running_.push_back(std::move(running));
  }

  bool Append(Running& running, std::span<const TokenId> tokens, bool end) {
    const uint32_t before = running.kv.num_tokens();
    const auto kind = end ? KvCache::CommitKind::kEnd : KvCache::CommitKind::kRunning;
    if (!driver_.Append(running.kv, spaces_[running.space].salt, tokens, kind)) {
      EXPECT_TRUE(has_windows() || running.kv.num_tokens() == before);
      Publish(running, false);  // its first steps may have succeeded
      return false;
    }
    Publish(running, end);
    return true;
  }

  void Step() {
    const uint64_t draw = random_.Below(100);
    if (running_.empty() || (draw < 25 && running_.size() < 6)) return Start();
    const size_t i = random_.Below(running_.size());
    Running& running = running_[i];
    if (kept_.Below(4) == 0) Keep(running);
    const uint32_t size = running.kv.num_tokens();
    const bool drops = cache().layout().num_full_groups() > 0 && retained_.Below(24) == 0;
    if (drops) return Retain(running);
    if (draw < 60) {
      Tokens tokens(1 + random_.Below(random_.Below(2) == 0 ? 1 : 20));
      for (TokenId& token : tokens) token = static_cast<TokenId>(random_.Below(3));
      if (size + tokens.size() <= 128) Append(running, tokens, random_.Below(4) == 0);
    } else if (draw < 68) {  // speculation: extends, then accepts a part
      const Tokens tokens(1 + random_.Below(6), 2);
      if (size + tokens.size() > 128 || !cache().Extend(running.kv, tokens)) return;
      driver_.Stamp(running.kv, spaces_[running.space].salt, size, running.kv.num_tokens(), false);
      const bool end = random_.Below(2) == 0;
      cache().Commit(running.kv, static_cast<uint32_t>(random_.Below(tokens.size() + 1)),
                     end ? KvCache::CommitKind::kEnd : KvCache::CommitKind::kRunning);
      Publish(running, end);
      if (random_.Below(2) == 0 && running_.size() < 6) AddFork(running);
      Running& same = running_[i];
      EXPECT_TRUE(cache().Truncate(same.kv, same.kv.num_committed()));
    } else if (draw < 76) {
      if (running_.size() < 6) AddFork(running);
    } else if (draw < 78) {
      ForgetSome();
    } else if (draw < 84) {
      const auto to = static_cast<uint32_t>(random_.Below(size + 1));
      const Status truncated = cache().Truncate(running.kv, to);
      EXPECT_EQ(running.kv.num_tokens(), truncated ? to : size);
      if (!truncated) {
        EXPECT_TRUE(has_windows() || running.kv.retains());
        EXPECT_EQ(truncated.error().code, Code::kNotFound);
      }
    } else if (draw < 99) {
      if (random_.Below(2) == 0) {
        cache().Commit(running.kv, 0, KvCache::CommitKind::kEnd);
        Publish(running, true);
      }
      driver_.Verify(running.kv, spaces_[running.space].salt);
      running_.erase(running_.begin() + static_cast<ptrdiff_t>(i));
    } else if (random_.Below(3) == 0) {
      const NamespaceId id = spaces_[random_.Below(spaces_.size())].id;
      if (random_.Below(2) == 0) {
        cache().Erase(id);
      } else {
        cache().Forget(id);
      }
      for (Space& space : spaces_) {
        if (space.id != id) continue;
        ++space.epoch;
        space.has_source = false;
        space.published.clear();
        space.resumes.clear();
        space.cursors.clear();
      }
    }
  }

  // Marks a beginning of a sequence, for a time that may end before the next step.
  void Keep(const Running& running) {
    const KvSequence& kv = running.kv;
    const auto tokens = static_cast<uint32_t>(kept_.Below(kv.num_tokens() + 2 * block()));
    constexpr uint32_t kTimes[] = {1, 60, 3600};  // s
    const uint32_t whole = std::min(tokens, kv.num_committed()) / block() * block();
    const uint32_t kept = cache().Keep(kv, tokens, kTimes[kept_.Below(3)]);
    EXPECT_TRUE(kept == 0 || (kept == whole && kv.publishes()));
    // The index has what was published where all have room; of windows only what a prompt can
    // resume after.
    if (roomy() && !has_windows() && kv.publishes()) {
      EXPECT_EQ(kept, whole);
    }
    num_marked_ += kept > 0;
    clock_.Advance(std::chrono::seconds(kept_.Below(40)));
  }

  // Drops some of what a sequence still has.
  void Retain(Running& running) {
    KvSequence& kv = running.kv;
    if (!kv.has_source()) return;
    const auto begin = static_cast<uint32_t>(kv.table().first());
    auto first =
        static_cast<uint32_t>(begin + retained_.Below(kv.num_tokens() / block() - begin + 1));
    if (running.beginning.value_or(0) > kv.num_tokens() / block()) return;  // it was truncated
    if (!running.beginning) running.beginning = std::min<uint32_t>(first, retained_.Below(3));
    first = std::max(first, *running.beginning);
    std::vector<uint32_t> has(kv.kept_blocks().begin(), kv.kept_blocks().end());
    for (uint32_t b = begin; b < first; ++b) has.push_back(b);
    std::ranges::sort(has);
    has.erase(std::ranges::unique(has).begin(), has.end());
    std::erase_if(has,
                  [&](uint32_t b) { return b >= *running.beginning && retained_.Below(2) == 0; });
    const auto most = static_cast<uint32_t>(kv.num_tokens() + retained_.Below(64));
    const Status dropped = cache().Retain(kv, {has, *running.beginning, first, most, 0});
    running.shares = false;
    EXPECT_FALSE(kv.publishes());
    if (!dropped) {
      EXPECT_EQ(dropped.error().code, Code::kExhausted);
      return;
    }
    EXPECT_TRUE(kv.retains());
    EXPECT_TRUE(std::ranges::equal(kv.kept_blocks(), has));
    EXPECT_EQ(kv.table().first(), first);
    ++num_dropped_;
  }

  // Forgets a part of something that was published, or of a running sequence, sometimes with
  // another prompt that keeps its blocks.
  void ForgetSome() {
    const size_t s = random_.Below(spaces_.size());
    Space& space = spaces_[s];
    if (!space.source.empty() || space.published.empty()) return;
    const auto any = [&] {
      auto it = space.published.begin();
      std::advance(it, random_.Below(space.published.size()));
      return *it;
    };
    const Tokens ids = any();
    const auto first = static_cast<uint32_t>(random_.Below(ids.size()));
    const auto last = static_cast<uint32_t>(first + random_.Below(ids.size() - first));
    const Tokens text = First(ids, last + 1);
    const auto begins = [&](std::span<const TokenId> tokens) {
      return Common(tokens, text) == text.size();
    };
    const Tokens other = any();
    const bool keeps = random_.Below(3) == 0;
    const auto is_kept = [&](const Tokens& node) {
      return keeps && Common(node, other) == node.size();
    };
    // As the scheduler does.
    std::vector<bool> published;
    for (Running& running : running_) {
      published.push_back(running.kv.publishes());
      if (running.space != s || !begins(running.kv.tokens())) continue;
      running.kv.LeaveIndex();
      EXPECT_FALSE(running.kv.publishes());
      running.shares = published.back() = false;
    }
    const KeptPrompts kept(std::vector<Tokens>(keeps ? 1 : 0, other), ids);
    const uint64_t tokens_before = cache().usage().cached_tokens;
    const KvCache::Forgotten found = cache().Forget(space.id, ids, first, last, kept);
    EXPECT_EQ(found.erased_tokens, tokens_before - cache().usage().cached_tokens);
    cache().CheckInvariants();
    for (size_t i = 0; i < running_.size(); ++i) {
      Running& running = running_[i];
      const size_t full = running.kv.num_committed() / block() * block();
      const auto place = running.kv.tokens().first(full);
      const bool goes =
          running.space == s && begins(place) && !is_kept(Tokens(place.begin(), place.end()));
      EXPECT_EQ(running.kv.publishes(), published[i] && !goes) << full;
      running.shares &= running.space != s || !goes;
    }
    ForgetInTwin(s, ids, first, last, is_kept, found.kept_shared);
  }

  // Forgets node by node. Where nothing is evicted or pruned, a text that another one continues has
  // no separate tail: it goes with the longer one. Else the twin may have more than the cache.
  void ForgetInTwin(size_t s, const Tokens& ids, uint32_t first, uint32_t last,
                    const std::function<bool(const Tokens&)>& is_kept, uint64_t kept_shared) {
    Space& space = spaces_[s];
    const Tokens text = First(ids, last + 1);
    const bool is_exact = roomy() && cache().layout().num_full_groups() > 0;
    const auto goes_on_in = [](const std::set<Tokens>& in, const Tokens& node) {
      return std::ranges::any_of(in, [&](const Tokens& longer) {
        return longer.size() > node.size() && Common(node, longer) == node.size();
      });
    };
    std::set<Tokens> nodes;
    for (const Tokens& one : space.published) {
      for (size_t size = block(); size <= one.size(); size += block())
        nodes.insert(First(one, size));
      if (one.size() % block() == 0) continue;
      if (!is_exact || !goes_on_in(space.published, one)) nodes.insert(one);
    }
    uint64_t kept = 0;
    std::erase_if(nodes, [&](const Tokens& node) {
      if (Common(node, text) < text.size()) return false;
      kept += is_kept(node);
      return !is_kept(node);
    });
    const auto is_held = [&](const Tokens& node) {
      return std::ranges::any_of(running_, [&](const Running& running) {
        const size_t full = running.kv.num_committed() / block() * block();
        const size_t common = Common(running.kv.tokens(), node);
        if (running.space != s || common < node.size()) return false;
        return is_exact ? running.kv.publishes() && full == node.size() : true;
      });
    };
    for (size_t size = last; size > first; --size) {
      const Tokens node = First(ids, size);
      if (!nodes.contains(node)) continue;
      if (size % block() == 0 && size > last / block() * block()) continue;
      kept += is_kept(node);
      const bool is_whole = size % block() == 0;
      const bool stays = is_kept(node) || (is_whole && (goes_on_in(nodes, node) || is_held(node)));
      if (!stays) nodes.erase(node);
    }
    if (is_exact && cache().layout().num_groups() == 1) {
      EXPECT_EQ(kept_shared, kept);
    }
    space.published = std::move(nodes);
    // What ends in the text, or begins with it.
    const auto is_on = [&](const Tokens& one, size_t begin) {
      return one.size() > begin && Common(one, text) == std::min(one.size(), text.size());
    };
    std::erase_if(space.resumes,
                  [&](const Tokens& one) { return is_on(one, first / block() * block()); });
    std::erase_if(space.cursors, [&](const auto& one) { return is_on(one.first, first); });
  }

  // Returns how many tokens a source has: not always as many as ids (patches of an image).
  static uint32_t SourceTokens(const Space& space) {
    const auto num_ids = static_cast<uint32_t>(space.source.size());
    return num_ids == 2 ? 40 : num_ids;
  }

  void AddFork(Running& running) {
    running_.push_back({running.space, running.epoch, running.shares, cache().Fork(running.kv, 128),
                        running.beginning});
  }

  OwnClock clock_;
  Random random_{GetParam().seed}, retained_{GetParam().seed ^ 0x4e7a},
      kept_{GetParam().seed ^ 0x3a9f};
  CacheDriver driver_{Options()};
  std::vector<Space> spaces_;
  std::vector<Running> running_;
  uint64_t num_sources_found_ = 0;  // of prompts whose source has KV
  uint64_t num_dropped_ = 0;
  uint64_t num_marked_ = 0;  // calls of Keep that kept something
};

TEST_P(KvCacheModel, ServesRightBytesAndFindsWhatItsTwinFinds) {
  SCOPED_TRACE(testing::Message() << "seed " << GetParam().seed);
  uint64_t verified = 0;
  for (int step = 0; step < 1500 && !HasFailure(); ++step) {
    Step();
    if (step % 8 == 0) cache().ZeroForgotten(1);                // a block
    if (!roomy() || step % 16 == 0) cache().CheckInvariants();  // O(blocks)
    for (const Running& running : running_) {
      driver_.Verify(running.kv, spaces_[running.space].salt);
      verified += running.kv.num_committed();
    }
  }
  EXPECT_GT(verified, 10'000u);
  EXPECT_GT(cache().counters().reused_partial, 0u);
  EXPECT_EQ(cache().counters().evicted_blocks > 0, !roomy());
  EXPECT_EQ(num_sources_found_ > 5, has_cross());
  EXPECT_EQ(num_dropped_ > 5, cache().layout().num_full_groups() > 0);
  EXPECT_GT(num_marked_, 10u);
}

std::vector<Params> AllParams() {
  std::vector<Params> all;
  for (const EvictionChoice& choice : EvictionChoices()) {
    for (uint32_t seed = 1; seed <= Rounds(20u, 2u); ++seed) {
      all.push_back({seed, 6 + 2 * (seed % 5), choice.name});
    }
  }
  for (uint32_t seed = 101; seed <= Rounds(104u, 101u); ++seed) all.push_back({seed, 4000, "lru"});
  // Full and window layers; window layers alone, of two widths; kinds of several groups.
  for (const std::vector<uint32_t>& windows :
       {std::vector<uint32_t>{0, 20}, {17, 40, 17}, {1}, {0, 0, 0, 33, 33}, {0, 16, 48, 31}}) {
    const auto groups = static_cast<uint32_t>(windows.size());
    for (uint32_t seed = 201; seed <= Rounds(210u, 203u); ++seed) {
      all.push_back(
          {seed, (9 + 2 * (seed % 5)) * groups, seed % 3 == 0 ? "s3fifo" : "lru", windows});
    }
    for (uint32_t seed = 301; seed <= Rounds(303u, 301u); ++seed)
      all.push_back({seed, 6000, "lru", windows});
  }
  // Windows around the edges of blocks of 16 and of 32 tokens.
  for (const uint32_t block_tokens : {16u, 32u}) {
    for (const uint32_t window : {17u, 48u, 64u}) {
      for (uint32_t seed = Rounds(601u, 604u); seed <= 606; ++seed) {
        const uint32_t num_blocks = seed == 606 ? 6000 : 2 * (7 + 2 * (seed % 5));
        all.push_back({.seed = seed,
                       .num_blocks = num_blocks,
                       .eviction = seed % 2 == 0 ? "s3fifo" : "lru",
                       .windows = {0, window},
                       .block_tokens = block_tokens});
      }
    }
  }
  // Sources that have KV, and sources that are only compared.
  constexpr uint32_t kCross = kCrossLayer;
  for (const std::vector<uint32_t>& windows :
       {std::vector<uint32_t>{0, kCross}, {0, 20, kCross}, {17, kCross, kCross}, {0}, {0, 33}}) {
    const auto groups = static_cast<uint32_t>(windows.size());
    for (uint32_t seed = 401; seed <= Rounds(412u, 404u); ++seed) {
      const uint64_t mask = seed % 4 == 0 ? 0 : ~uint64_t{0};
      all.push_back({seed, (9 + 3 * (seed % 5)) * groups, seed % 3 == 0 ? "s3fifo" : "lru", windows,
                     true, mask});
    }
    for (uint32_t seed = 501; seed <= Rounds(503u, 501u); ++seed) {
      all.push_back({seed, 6000, "lru", windows, true});
    }
  }
  return all;
}
INSTANTIATE_TEST_SUITE_P(Seeds, KvCacheModel, testing::ValuesIn(AllParams()), [](const auto& info) {
  return "Seed" + std::to_string(info.param.seed) + "Blocks" +
         std::to_string(info.param.num_blocks) + info.param.eviction + "Windows" +
         fmt::format("{}", fmt::join(info.param.windows, "_")) +
         (info.param.sources ? "Sources" : "") +
         (info.param.block_tokens == 16 ? "" : "BlocksOf32");
});

}  // namespace
}  // namespace kvasir
