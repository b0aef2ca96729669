// FakeRunner: a Runner without weights. The KV of a token is a hash of the token, the layer group
// and the KV before it. The token's logits are hashes of all KV in the block tables that its query
// sees. So a wrong block changes what a sequence generates. For tests of the code above a model,
// and for simulations of schedules.
#pragma once

#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "base/check.h"
#include "base/random.h"
#include "model/runner.h"
#include "policy/retention_policy.h"
#include "policy/span_plan.h"

namespace kvasir {

class FakeRunner : public Runner {
 public:
  struct Options {
    uint32_t vocab_size = 64;
    uint32_t max_positions = 256;
    uint32_t block_tokens = 16;
    uint32_t max_rows = 32;
    std::vector<uint32_t> windows = {0};    // [layer]: tokens that it sees, at least 2; 0: all
    uint32_t long_after = UINT32_MAX;       // sequences of more tokens have other KV
    TokenId not_finite = -1;                // the activations of this token are not finite
    std::function<void()> on_step = [] {};  // called in each Step, to move a test's clock
  };

  explicit FakeRunner(const Options& options) : options_(options), layout_(LayoutOf(options)) {
    source_.config.architecture = "fake";
    source_.config.vocab_size = options.vocab_size;
    source_.config.hidden_size = kHidden;
    source_.config.max_positions = options.max_positions;
    rows_.resize(options.max_rows);
  }

  const KvLayout& layout() const { return layout_; }
  static constexpr uint32_t kHidden = 4;

  // Returns the next token of greedy decoding after `tokens`, computed from the tokens alone.
  TokenId NextToken(std::span<const TokenId> tokens) const {
    return BestOf(HashAt(tokens, static_cast<uint32_t>(tokens.size()) - 1));
  }
  // Returns what the embedding of a prompt has at kNumberAt, computed from its tokens alone.
  static constexpr uint32_t kNumberAt = 2;
  float NumberOf(std::span<const TokenId> prompt, Pooling pooling) const {
    const auto last = static_cast<uint32_t>(prompt.size()) - 1;
    if (pooling == Pooling::kLast) return NumberOf(HashAt(prompt, last));
    double sum = 0;
    for (uint32_t p = 0; p <= last; ++p) sum += double{NumberOf(HashAt(prompt, p))};
    return static_cast<float>(sum / (last + 1));
  }

  // The tokens of a sequence that drops some of them, and what follows: computed from the tokens
  // alone, which are all kept.
  class BoundedText {
   public:
    BoundedText(const FakeRunner& runner, const RetentionPolicy& policy)
        : runner_(runner), policy_(policy), kv_(runner.layout_.num_groups()) {}

    void Append(TokenId token) {
      const auto p = static_cast<uint32_t>(kv_[0].size());
      all_ = kSeed;
      if (policy_.is_heavy() && policy_.IsDecision(p)) Decide(p);
      for (uint32_t group = 0; group < kv_.size(); ++group) {
        std::vector<uint64_t>& kv = kv_[group];
        const bool drops = group < runner_.layout_.num_full_groups() && policy_.IsInexact(p);
        uint64_t next = KvOf(p == 0 ? FirstOf(group, false) : kv[p - 1], token);
        if (!drops) {
          kv.push_back(next);
          for (uint64_t i = runner_.BeginOf(group, p); i <= p; ++i) all_ = Mix64(all_ ^ kv[i]);
          continue;
        }
        kv.push_back(Mix64(next ^ (policy_.is_heavy() ? SeenOfHeavy(kv, p) : SeenOf(kv, p))));
        all_ = Mix64(all_ ^ kv[p]);
      }
      if (policy_.IsScored(p)) Weigh(p);
    }
    TokenId Next() const { return runner_.BestOf(all_); }

   private:
    uint64_t SeenOf(std::span<const uint64_t> kv, uint32_t p) const {
      uint64_t seen = kSeed;
      for (uint32_t i = 0; i < policy_.sinks(); ++i) seen = Mix64(seen ^ kv[i]);
      if (policy_.sinks() > 0) seen = Mix64(seen ^ policy_.sink_query_position());
      for (uint32_t i = policy_.FirstSeen(p); i < p; ++i) seen = Mix64(seen ^ kv[i]);
      return seen;
    }
    uint64_t SeenOfHeavy(std::span<const uint64_t> kv, uint32_t p) const {
      const uint32_t sinks = policy_.SinkPosition(p) ? policy_.sink_blocks() : 0;
      uint64_t seen = kSeed;
      for (size_t i = 0; i < kept_.size(); ++i) {
        for (uint32_t t = kept_[i] * kHeavyBlock; t < (kept_[i] + 1) * kHeavyBlock; ++t) {
          seen = Mix64(seen ^ kv[t]);
        }
        if (i + 1 == sinks) seen = Mix64(seen ^ *policy_.SinkPosition(p));
      }
      if (kept_.size() > sinks) seen = Mix64(seen ^ p);
      for (uint32_t i = first_ * kHeavyBlock; i < p; ++i) seen = Mix64(seen ^ kv[i]);
      return seen;
    }
    void Weigh(uint32_t p) {
      const uint32_t sinks = policy_.SinkPosition(p) ? policy_.sink_blocks() : 0;
      for (uint32_t group = 0; group < runner_.layout_.num_full_groups(); ++group) {
        const auto add = [&](uint32_t block) {
          sums_[block] += WeightOf(kv_[group][p], kv_[group][block * kHeavyBlock]);
        };
        for (size_t i = sinks; i < kept_.size(); ++i) add(kept_[i]);
        for (uint32_t block = first_; block * kHeavyBlock <= p; ++block) add(block);
      }
    }
    void Decide(uint32_t p) {
      std::vector<RetentionPolicy::HeldBlock> held;
      const auto hold = [&](uint32_t block) { held.push_back({block, sums_[block]}); };
      for (const uint32_t block : kept_) hold(block);
      for (uint32_t block = first_; block * kHeavyBlock < p; ++block) hold(block);
      sums_.clear();
      if (!policy_.Decide(p, held)) return;
      kept_.clear();
      first_ = policy_.FirstRecentBlock(p);
      for (const RetentionPolicy::HeldBlock& one : held) {
        if (one.stays && one.block < first_) kept_.push_back(one.block);
      }
    }

    const FakeRunner& runner_;
    const RetentionPolicy policy_;
    std::vector<std::vector<uint64_t>> kv_;  // [group][token]
    uint64_t all_ = kSeed;
    std::vector<uint32_t> kept_;  // of heavy: blocks before the first of those that all stay
    uint32_t first_ = 0;
    std::map<uint32_t, float> sums_;
  };

  // The tokens of a sequence that reads spans of its prompt where they lie, and what follows:
  // computed from the tokens alone.
  class SpannedText {
   public:
    SpannedText(const FakeRunner& runner, const SpanPlan& plan, std::span<const TokenId> prompt)
        : runner_(runner), plan_(plan), kv_(runner.layout_.num_full_groups()) {
      for (const SpanPlan::Part& part : plan.parts()) {
        auto& of_part = parts_.emplace_back(kv_.size());
        for (uint32_t group = 0; group < kv_.size(); ++group) {
          uint64_t kv = FirstOf(group, false);
          for (const TokenId token : plan.TextOf(part, prompt)) {
            of_part[group].push_back(kv = KvOf(kv, token));
          }
        }
      }
    }

    void Append(TokenId token) {
      const auto p = static_cast<uint32_t>(kv_[0].size());
      const uint32_t before = plan_.NumBefore(p);
      const bool is_read = before < parts_.size() && p >= plan_.parts()[before].read_begin;
      const uint32_t begin = before == 0 ? 0 : plan_.parts()[before - 1].read_end;
      if (!is_read) all_ = kSeed;
      for (uint32_t group = 0; group < kv_.size(); ++group) {
        std::vector<uint64_t>& kv = kv_[group];
        kv.push_back(KvOf(p == begin ? FirstOf(group, false) : kv.back(), token));
        if (is_read) continue;
        if (before > 0) {
          kv[p] = Mix64(kv[p] ^ SeenOf(group, p, before));
          all_ = Mix64(all_ ^ kv[p]);
          continue;
        }
        for (uint32_t i = 0; i <= p; ++i) all_ = Mix64(all_ ^ kv[i]);
      }
    }
    TokenId Next() const { return runner_.BestOf(all_); }

   private:
    uint64_t SeenOf(uint32_t group, uint32_t p, uint32_t before) const {
      uint64_t seen = kSeed;
      uint32_t begin = 0;
      const auto see = [&](std::span<const uint64_t> kv, uint32_t first, uint32_t last) {
        for (uint32_t i = first; i < last; ++i) seen = Mix64(seen ^ kv[i]);
      };
      for (uint32_t i = 0; i < before; ++i) {
        const SpanPlan::Part& part = plan_.parts()[i];
        see(kv_[group], begin, part.read_begin);
        if (begin < part.read_begin) seen = Mix64(seen ^ p);
        see(parts_[i][group], part.read_begin - part.shift, part.read_end - part.shift);
        seen = Mix64(seen ^ (p - part.shift));
        begin = part.read_end;
      }
      see(kv_[group], begin, p);
      return seen;
    }

    const FakeRunner& runner_;
    const SpanPlan plan_;
    std::vector<std::vector<uint64_t>> kv_;                  // [group][token]
    std::vector<std::vector<std::vector<uint64_t>>> parts_;  // [part][group][token]
    uint64_t all_ = kSeed;
  };

  Status Step(std::span<const StepSequence> sequences, std::span<const TokenId> tokens) override {
    KV_CHECK(!tokens.empty() && tokens.size() <= options_.max_rows);
    options_.on_step();
    for (const StepSequence& sequence : sequences) {
      KV_CHECK(sequence.tables.size() == layout_.num_groups());
      KV_CHECK(sequence.num_rows > 0);
      KV_CHECK(sequence.position + sequence.num_rows <=
               sequence.tables[0].size() * options_.block_tokens);
      for (uint32_t i = 0; i < sequence.num_rows; ++i) {
        const TokenId token = tokens[sequence.first_row + i];
        const uint32_t position = sequence.position + i;
        uint64_t all = kSeed;
        for (uint32_t group = 0; group < layout_.num_groups(); ++group) {
          // (The token before it may be one that a run has.)
          const bool is_first =
              position == 0 || (position == sequence.begin && !sequence.runs.empty());
          const uint64_t before = is_first ? FirstOf(group, sequence.long_rope)
                                           : *SlotOf(sequence, group, position - 1);
          uint64_t& own = *SlotOf(sequence, group, position);
          own = KvOf(before, token);
          if (group < layout_.num_full_groups() && Misses(sequence, position)) {
            own = Mix64(own ^ SeenBefore(sequence, group, position));
            all = Mix64(all ^ own);
            continue;
          }
          for (uint64_t p = BeginOf(group, position); p <= position; ++p) {
            all = Mix64(all ^ *SlotOf(sequence, group, static_cast<uint32_t>(p)));
          }
        }
        if (sequence.block_sums != nullptr && i >= sequence.scored_from) Weigh(sequence, position);
        Row& row = rows_[sequence.first_row + i];
        std::memcpy(row.hidden, &all, sizeof(all));
        row.hidden[kNumberAt] = NumberOf(all);
        row.finite = token != options_.not_finite;
      }
    }
    return {};
  }
  std::span<const float> hidden(uint32_t row) const override { return rows_[row].hidden; }
  bool finite(uint32_t row) const override { return rows_[row].finite; }
  void Logits(std::span<const float* const> hidden, float* logits) override {
    for (size_t i = 0; i < hidden.size(); ++i) {
      uint64_t all = 0;
      std::memcpy(&all, hidden[i], sizeof(all));
      for (uint32_t v = 0; v < options_.vocab_size; ++v) *logits++ = Logit(all, v);
    }
  }

  void ZeroScratch() override { std::ranges::fill(rows_, Row{}); }

  uint64_t kv_read_bytes() const override { return 0; }
  uint64_t weight_read_bytes() const override { return 0; }
  uint32_t threads() const override { return 1; }
  void ForEach(uint32_t items, const std::function<void(uint32_t item)>& fn) override {
    for (uint32_t i = 0; i < items; ++i) fn(i);
  }
  const ModelConfig& config() const override { return source_.config; }
  const ImportedModel& source() const override { return source_; }
  uint64_t weights_bytes() const override { return 0; }
  std::shared_ptr<const MappedFile> image() const override { return nullptr; }
  uint64_t scratch_bytes() const override { return 0; }

 private:
  static constexpr uint64_t kSeed = 20261122;
  struct Row {
    float hidden[kHidden] = {};  // the hash, as bytes, and a number of it
    bool finite = true;
  };

  static float NumberOf(uint64_t all) { return static_cast<float>(all >> 40); }
  // Returns the hash of row `at` of a sequence of these tokens.
  uint64_t HashAt(std::span<const TokenId> tokens, uint32_t at) const {
    uint64_t all = kSeed;
    for (uint32_t group = 0; group < layout_.num_groups(); ++group) {
      const uint64_t begin = BeginOf(group, at);
      uint64_t kv = FirstOf(group, tokens.size() > options_.long_after);
      for (uint32_t p = 0; p <= at; ++p) {
        kv = KvOf(kv, tokens[p]);
        if (p >= begin) all = Mix64(all ^ kv);
      }
    }
    return all;
  }

  // Makes a layout of layers whose tokens have 64 bytes each, in blocks of one layer.
  static KvLayout LayoutOf(const Options& options) {
    const size_t num_layers = options.windows.size();
    BlockShape shape{.block_tokens = options.block_tokens,
                     .num_layers = static_cast<uint32_t>(num_layers),
                     .kv_heads = 1,
                     .head_dim = 16};
    shape.k_format.assign(num_layers, KvFormat::kF16);
    shape.v_format.assign(num_layers, KvFormat::kF16);
    std::vector<KvReach> reaches(num_layers);
    for (size_t i = 0; i < num_layers; ++i) {
      KV_CHECK(options.windows[i] != 1);  // a token's KV needs the KV before it
      if (options.windows[i] > 0) reaches[i] = {KvReach::Kind::kWindow, options.windows[i]};
    }
    return KvLayout(shape, reaches, /*slots=*/1, options.max_positions);
  }
  uint64_t BeginOf(uint32_t group, uint32_t position) const {
    return WindowBegin(position, layout_.group(group).reach.window);
  }
  static uint64_t FirstOf(uint32_t group, bool long_rope) {
    return group + (long_rope ? uint64_t{1} << 32 : 0);
  }
  static uint64_t KvOf(uint64_t before, TokenId token) {
    return Mix64(before ^ static_cast<uint32_t>(token));
  }
  static float Logit(uint64_t all, uint32_t v) {
    return static_cast<float>(Mix64(all + v) >> 40) * 0x1p-20f;
  }
  TokenId BestOf(uint64_t all) const {
    TokenId best = 0;
    for (uint32_t v = 1; v < options_.vocab_size; ++v) {
      if (Logit(all, v) > Logit(all, static_cast<uint32_t>(best))) best = static_cast<TokenId>(v);
    }
    return best;
  }
  // Returns the weight of a block for a row, by the KV of the row and of the block's first token.
  // Sums of them are exact, whatever their order.
  static float WeightOf(uint64_t row, uint64_t block) {
    return static_cast<float>(Mix64(row ^ block) >> 56) * 0x1p-8f;
  }
  void Weigh(const StepSequence& sequence, uint32_t position) const {
    for (uint32_t group = 0; group < layout_.num_full_groups(); ++group) {
      const uint64_t own = *SlotOf(sequence, group, position);
      float* const sums = sequence.block_sums + group * sequence.block_sums_stride;
      for (const StepRun& run : sequence.runs) {
        for (uint32_t i = run.first; !run.query_position && i < run.last; i += kHeavyBlock) {
          sums[i / kHeavyBlock] += WeightOf(own, *SlotIn(run.tables[group], i));
        }
      }
      float* at = sums + sequence.run_blocks();
      for (uint32_t i = sequence.begin; i <= position; i += kHeavyBlock) {
        *at++ += WeightOf(own, *SlotOf(sequence, group, i));
      }
    }
  }
  // Returns whether a row does not see all tokens before it.
  static bool Misses(const StepSequence& sequence, uint32_t position) {
    return !sequence.runs.empty() || sequence.begin > 0 ||
           (sequence.window > 0 && position >= sequence.window);
  }
  // Returns a hash of what a row of a bounded sequence sees before its own token.
  uint64_t SeenBefore(const StepSequence& sequence, uint32_t group, uint32_t position) const {
    uint64_t seen = kSeed;
    for (const StepRun& run : sequence.runs) {
      for (uint32_t i = run.first; i < run.last; ++i) {
        seen = Mix64(seen ^ *SlotIn((run.tables.empty() ? sequence.tables : run.tables)[group], i));
      }
      seen = Mix64(seen ^ run.QueryPosition(position));
    }
    const uint64_t begin =
        std::max<uint64_t>(sequence.begin, WindowBegin(position, sequence.window));
    for (uint64_t i = begin; i < position; ++i) {
      seen = Mix64(seen ^ *SlotOf(sequence, group, static_cast<uint32_t>(i)));
    }
    return seen;
  }
  uint64_t* SlotOf(const StepSequence& sequence, uint32_t group, uint32_t position) const {
    return SlotIn(sequence.tables[group], position);
  }
  uint64_t* SlotIn(const BlockTable& table, uint32_t token) const {
    const uint32_t block = token / options_.block_tokens, slot = token % options_.block_tokens;
    KV_CHECK(block >= table.first() && block < table.size());
    return reinterpret_cast<uint64_t*>(table.bases()[block] +
                                       slot * (layout_.block_bytes() / options_.block_tokens));
  }

  const Options options_;
  const KvLayout layout_;
  ImportedModel source_;
  std::vector<Row> rows_;
};

}  // namespace kvasir
