// FakeRunner: a Runner without weights. The KV of a token is a hash of the token and of the KV
// before it, and its logits are hashes of all KV that its block table holds up to there: a block
// that does not belong to the sequence shows in what it generates. For tests of what stands above a
// model, and for simulations of schedules.
#pragma once

#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/check.h"
#include "base/random.h"
#include "model/runner.h"

namespace kvasir {

class FakeRunner final : public Runner {
 public:
  struct Options {
    uint32_t vocab_size = 64;
    uint32_t max_positions = 256;
    uint32_t block_tokens = 16;
    uint32_t max_rows = 32;
    TokenId not_finite = -1;                // the activations of this token are not finite
    std::function<void()> on_step = [] {};  // called in each Step: its time may pass there
  };

  explicit FakeRunner(const Options& options) : options_(options), layout_(LayoutFor(options)) {
    source_.config.architecture = "fake";
    source_.config.vocab_size = options.vocab_size;
    source_.config.hidden_size = kHidden;
    source_.config.max_positions = options.max_positions;
    rows_.resize(options.max_rows);
  }

  const BlockLayout& layout() const { return layout_; }
  static constexpr uint32_t kHidden = 4;

  // What greedy decoding says after `tokens`, by the tokens alone.
  static TokenId NextToken(std::span<const TokenId> tokens, uint32_t vocab_size) {
    uint64_t kv = kSeed, all = kSeed;
    for (const TokenId token : tokens) {
      kv = KvOf(kv, token);
      all = Mix64(all ^ kv);
    }
    TokenId best = 0;
    for (uint32_t v = 1; v < vocab_size; ++v) {
      if (Logit(all, v) > Logit(all, static_cast<uint32_t>(best))) best = static_cast<TokenId>(v);
    }
    return best;
  }

  Status Step(std::span<const StepSequence> sequences, std::span<const TokenId> tokens) override {
    KV_CHECK(!tokens.empty() && tokens.size() <= options_.max_rows);
    options_.on_step();
    for (const StepSequence& sequence : sequences) {
      KV_CHECK(sequence.position + sequence.num_rows <=
               sequence.blocks.size() * options_.block_tokens);
      uint64_t all = kSeed, kv = kSeed;
      for (uint32_t p = 0; p < sequence.position; ++p) {
        kv = *SlotOf(sequence, p);
        all = Mix64(all ^ kv);
      }
      for (uint32_t i = 0; i < sequence.num_rows; ++i) {
        const TokenId token = tokens[sequence.first_row + i];
        kv = KvOf(kv, token);
        *SlotOf(sequence, sequence.position + i) = kv;
        all = Mix64(all ^ kv);
        Row& row = rows_[sequence.first_row + i];
        std::memcpy(row.hidden, &all, sizeof(all));
        row.finite = token != options_.not_finite;
      }
    }
    return {};
  }
  std::span<const float> hidden(uint32_t row) const override { return rows_[row].hidden; }
  bool finite(uint32_t row) const override { return rows_[row].finite; }
  void Logits(std::span<const float* const> hidden, std::span<float* const> logits) override {
    for (size_t i = 0; i < hidden.size(); ++i) {
      uint64_t all = 0;
      std::memcpy(&all, hidden[i], sizeof(all));
      for (uint32_t v = 0; v < options_.vocab_size; ++v) logits[i][v] = Logit(all, v);
    }
  }

  uint64_t kv_read_bytes() const override { return 0; }
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
    float hidden[kHidden] = {};  // the hash, as bytes
    bool finite = true;
  };

  // One layer whose tokens have 64 bytes each.
  static BlockLayout LayoutFor(const Options& options) {
    return BlockLayout(BlockShape{.block_tokens = options.block_tokens,
                                  .num_layers = 1,
                                  .kv_heads = 1,
                                  .head_dim = 16,
                                  .k_format = {KvFormat::kF16},
                                  .v_format = {KvFormat::kF16}});
  }
  static uint64_t KvOf(uint64_t before, TokenId token) {
    return Mix64(before ^ static_cast<uint32_t>(token));
  }
  static float Logit(uint64_t all, uint32_t v) {
    return static_cast<float>(Mix64(all + v) >> 40) * 0x1p-20f;
  }
  uint64_t* SlotOf(const StepSequence& sequence, uint32_t position) const {
    const uint32_t slot = position % options_.block_tokens;
    std::byte* block = sequence.blocks[position / options_.block_tokens];
    return reinterpret_cast<uint64_t*>(block +
                                       slot * (layout_.block_bytes() / options_.block_tokens));
  }

  const Options options_;
  const BlockLayout layout_;
  ImportedModel source_;
  std::vector<Row> rows_;
};

}  // namespace kvasir
