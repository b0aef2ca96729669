#include "model/backend_options.h"

#include <optional>
#include <utility>
#include <vector>

#include "model/encoder_kv.h"
#include "model/rope_table.h"

namespace kvasir {
namespace {

BackendOptions::Rope RopeFor(const RopeConfig& rope, uint32_t head_dim) {
  BackendOptions::Rope table{RopeFrequencies(rope, head_dim), rope.attention_factor};
  if (rope.type == RopeType::kLongRope) {
    RopeConfig long_rope = rope;
    long_rope.freq_factors = rope.long_freq_factors;
    table.long_frequencies = RopeFrequencies(long_rope, head_dim);
  }
  return table;
}

float QueryScale(uint32_t head_dim) { return 1.0f / __builtin_sqrtf(static_cast<float>(head_dim)); }

}  // namespace

BackendOptions BackendOptionsFor(const ModelConfig& c, const RunnerOptions& o,
                                 uint32_t quant_columns) {
  std::vector<BackendOptions::Rope> ropes = {RopeFor(c.rope, c.head_dim)};
  if (c.local_rope) ropes.push_back(RopeFor(*c.local_rope, c.head_dim));
  const auto softcap = static_cast<float>(c.attention_softcap.value_or(0));
  const float scale =
      c.attention_multiplier ? static_cast<float>(*c.attention_multiplier) : QueryScale(c.head_dim);
  std::optional<BackendOptions::Encoder> encoder;
  if (c.encoder) {
    encoder.emplace(BackendOptions::Encoder{c.encoder->num_heads, c.encoder->head_dim,
                                            QueryScale(c.encoder->head_dim),
                                            EncoderKv::Layout(*c.encoder)});
  }
  return {.threads = o.threads,
          .max_rows = o.max_rows,
          .max_logit_rows = o.max_logit_rows,
          .quant_columns = quant_columns,
          .max_positions = o.max_positions,
          .heads = c.num_heads,
          .kv_heads = c.num_kv_heads,
          .head_dim = c.head_dim,
          .experts = c.experts ? c.experts->count : 0,
          .chosen_experts = c.experts ? c.experts->chosen : 0,
          .hidden_size = c.hidden_size,
          .expert_ffn_size = c.experts ? c.experts->ffn_size : 0,
          .layout = Runner::LayoutFor(c, o),
          .ropes = std::move(ropes),
          .query_scale = softcap == 0 ? scale : scale / softcap,
          .attention_softcap = softcap,
          .encoder = std::move(encoder),
          .target = o.target,
          .cpus = o.cpus,
          .workers = o.workers,
          .adapters = o.adapters,
          .ffn_size = c.ffn_size};
}

}  // namespace kvasir
