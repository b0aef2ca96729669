#include "model/encoder_kv.h"

#include "base/bytes.h"
#include "base/result.h"
#include "model/runner.h"

namespace kvasir {
namespace {

constexpr uint32_t kEncoderBlockTokens = 16;

// Counts the blocks of all sources: no source shares its last block with another one.
uint32_t EncoderBlocks(uint32_t max_rows) {
  return static_cast<uint32_t>(CeilDiv(max_rows, kEncoderBlockTokens)) + Runner::kMaxSources;
}

}  // namespace

KvLayout EncoderKv::Layout(const EncoderConfig& encoder) {
  const BlockShape shape{.block_tokens = kEncoderBlockTokens,
                         .num_layers = 1,
                         .kv_heads = encoder.num_heads,
                         .head_dim = encoder.head_dim,
                         .k_format = {KvFormat::kF32},
                         .v_format = {KvFormat::kF32}};
  const KvReach reach{.kind = KvReach::Kind::kCross};
  return KvLayout(shape, {&reach, 1}, 1, 0);
}

uint64_t EncoderKv::Bytes(const EncoderConfig& encoder, uint32_t max_rows) {
  return Layout(encoder).block_bytes() * EncoderBlocks(max_rows);
}

Result<EncoderKv> EncoderKv::Create(const EncoderConfig& encoder, uint32_t max_rows) {
  const uint32_t blocks = EncoderBlocks(max_rows);
  EncoderKv kv;
  KV_ASSIGN(kv.pool_, BlockPool::Create(Layout(encoder).block_bytes(), blocks));
  kv.tables_.resize(Runner::kMaxSources);
  for (BlockTable& table : kv.tables_) table.Reserve(blocks);
  kv.sources_.reserve(Runner::kMaxSources);
  return kv;
}

std::span<const StepSequence> EncoderKv::Begin(std::span<const StepSource> step) {
  sources_.clear();
  for (BlockTable& table : tables_) table.Clear();
  for (size_t i = 0; i < step.size(); ++i) {
    const StepSource& source = step[i];
    while (tables_[i].size() * kEncoderBlockTokens < source.num_rows) {
      tables_[i].Append(pool_->Allocate());
    }
    sources_.push_back({.tables = {&tables_[i], 1},
                        .position = 0,
                        .first_row = source.first_row,
                        .num_rows = source.num_rows,
                        .source_tokens = source.num_rows});
  }
  return sources_;
}

std::span<const StepSequence> EncoderKv::Into(std::span<const StepSource> step) {
  for (size_t i = 0; i < step.size(); ++i) sources_[i].tables = step[i].tables;
  return sources_;
}

void EncoderKv::Zero() {
  for (BlockTable& table : tables_) table.Clear();
  pool_->ZeroAll();
}

}  // namespace kvasir
