#include <algorithm>

#include "attention/kernels.h"
#include "backend/adapter_product.h"
#include "backend/backend.h"
#include "backend/cpu_attention.h"
#include "backend/expert_product.h"
#include "backend/matrix_product.h"
#include "backend/panel_filler.h"
#include "backend/run_queries.h"
#include "base/check.h"
#include "base/fault.h"
#include "base/thread_pool.h"
#include "format/pack.h"
#include "import/model_config.h"
#include "simd/math.h"
#include "tensor/kernels.h"

namespace kvasir {
namespace {

// What the scratch arena holds, by the same sums whether it counts or allocates.
struct Scratch {
  Scratch(const BackendOptions& o, Arena& arena) {
    angles = arena.TakeArray<float>(o.ropes.size() * o.max_rows * o.head_dim);
    sequence_of = arena.TakeArray<uint32_t>(o.max_rows);
    finite = arena.TakeArray<bool>(o.max_rows);
    const bool has_adapters = o.adapters != AdapterLimits{};
    ffn_stride = RoundUp(o.ffn_size, kPanelOutputs) + kPanelOutputs;
    ffn = arena.TakeArray<float>(has_adapters ? o.max_rows * ffn_stride : 0);
  }

  float* angles;          // [rope][row: max_rows][cos: head_dim/2, sin: head_dim/2]
  uint32_t* sequence_of;  // [row]
  bool* finite;           // [row]
  size_t ffn_stride;
  float* ffn;  // [row: max_rows]: products of `up` that wait for adapters
};

MatrixProduct::Options ProductOptions(const BackendOptions& o) {
  return {o.target, std::max(o.max_rows, o.max_logit_rows), o.quant_columns, o.threads};
}

AdapterProduct::Options AdapterOptions(const BackendOptions& o) {
  return {o.target, o.max_rows, o.adapters};
}

ExpertProduct::Options ExpertOptions(const BackendOptions& o) {
  return {o.target,      o.max_rows,        o.experts, o.chosen_experts,
          o.hidden_size, o.expert_ffn_size, o.threads, o.quant_columns > 0};
}

// Returns the options of an encoder's attention.
BackendOptions EncoderOptions(const BackendOptions& o) {
  BackendOptions encoder = o;
  encoder.heads = encoder.kv_heads = o.encoder->heads;
  encoder.head_dim = o.encoder->head_dim;
  encoder.query_scale = o.encoder->query_scale;
  encoder.layout = o.encoder->layout;
  return encoder;
}

// The heads of decoder or encoder, and their attention.
struct AttentionSide {
  AttentionSide(const BackendOptions& options, Arena& arena)
      : o(options), attention(options, arena) {}
  const BackendOptions o;
  CpuAttention attention;
  std::optional<uint32_t> rope;  // HeadSteps::rope of the layer whose queries were prepared last
};

class CpuBackend final : public Backend {
 public:
  CpuBackend(const BackendOptions& options, Arena& arena)
      : o_(options),
        s_(options, arena),
        tensor_(TensorKernelsFor(options.target)),
        kernels_(AttentionKernelsFor(options.target)),
        decoder_(options, arena),
        workers_(options.workers ? options.workers
                                 : std::make_shared<ThreadPool>(options.threads,
                                                                &EnterComputeThread, options.cpus)),
        pool_(*workers_),
        product_(ProductOptions(options), arena, pool_),
        adapters_(AdapterOptions(options), arena, pool_),
        experts_(ExpertOptions(options), arena, pool_) {
    if (o_.encoder) encoder_.emplace(EncoderOptions(o_), arena);
    for (const BackendOptions::Rope& rope : o_.ropes) {
      KV_CHECK(rope.frequencies.size() <= o_.head_dim / 2);
      KV_CHECK(rope.long_frequencies.empty() ||
               rope.long_frequencies.size() == rope.frequencies.size());
    }
  }

  void Begin(std::span<const StepSequence> sequences, uint32_t rows) override {
    SetRows(decoder_, sequences, rows);
    side_->attention.Begin(sequences);
    adapters_.Begin(sequences);
    for (uint32_t rope = 0; rope < o_.ropes.size(); ++rope) FillAngles(rope);
  }

  void OnScratchZeroed() override {
    decoder_.attention.OnZeroed();
    if (encoder_) encoder_->attention.OnZeroed();
  }

  void BeginEncoder(std::span<const StepSequence> sources, uint32_t rows) override {
    SetRows(*encoder_, sources, rows);
    side_->attention.Begin(sources);
    adapters_.Begin({});
  }

  void BeginSources(std::span<const StepSequence> sources, uint32_t rows) override {
    SetRows(decoder_, sources, rows);
  }

  void Embed(const EmbeddingTable& table, std::span<const TokenId> tokens, float* y,
             size_t stride) override {
    if (table.rows == nullptr) return EmbedPacked(table.packed, tokens, y, stride);
    const uint64_t row_bytes = uint64_t{table.hidden} * BytesOf(table.format);
    for (uint32_t row = 0; row < tokens.size(); ++row) {
      tensor_.widen(table.rows + static_cast<uint64_t>(tokens[row]) * row_bytes, table.format,
                    table.hidden, y + row * stride);
    }
  }

  void Scale(float factor, uint32_t n, float* x, size_t stride) override {
    ForRows(rows_, n,
            [&](uint32_t row) { kernels_.scale(x + row * stride, factor, n, x + row * stride); });
  }

  void AddPositions(const float* table, uint32_t n, float* x, size_t stride) override {
    ForRows(rows_, n, [&](uint32_t row) {
      tensor_.add_scaled(1.0f, table + size_t{Position(row)} * n, n, x + row * stride);
    });
  }

  void Norm(NormKind kind, const PackedNorm& w, const float* x, size_t stride, uint32_t n,
            float eps, uint32_t rows, float* y) override {
    const bool fault = rows == 1 && FaultActive(Fault::kLaneOrder);
    ForRows(rows, n, [&](uint32_t row) {
      const float* from = x + row * stride;
      float* to = y + row * stride;
      if (kind == NormKind::kRms) return tensor_.rms_norm(from, w.weight, eps, n, to, fault);
      tensor_.layer_norm(from, w.weight, w.bias, eps, n, to, fault);
    });
  }

  void AddScaled(float factor, const float* x, size_t stride, uint32_t n, uint32_t rows,
                 float* y) override {
    ForRows(rows, n, [&](uint32_t row) {
      tensor_.add_scaled(factor, x + row * stride, n, y + row * stride);
    });
  }

  void SoftCap(float cap, uint32_t n, uint32_t rows, float* x, size_t stride) override {
    constexpr uint32_t kPiece = 1 << 14;
    const auto pieces = static_cast<uint32_t>(CeilDiv(n, kPiece));
    pool_.Run(rows * pieces, [&](uint32_t item, uint32_t) {
      const uint32_t begin = item % pieces * kPiece;
      tensor_.soft_cap(cap, std::min(kPiece, n - begin), x + item / pieces * stride + begin);
    });
  }

  void MatMul(const PackedMatrix& w, const float* x, size_t x_stride, uint32_t rows, float* y,
              size_t y_stride, Into into) override {
    product_.Run(w, {x, x_stride, rows, y, y_stride, into});
  }

  void MatMulActivated(const PackedMatrix& w, Activation act, const float* x, size_t x_stride,
                       uint32_t rows, float* y, size_t y_stride) override {
    product_.RunActivated(w, act, {x, x_stride, rows, y, y_stride, Into::kReplace});
  }

  void MatMulGated(const PackedMatrix& gate, const PackedMatrix& up, Activation act, const float* x,
                   size_t x_stride, uint32_t rows, float* y, size_t y_stride) override {
    product_.RunGated(gate, up, act, {x, x_stride, rows, y, y_stride, Into::kReplace});
  }

  void MatMulAdapted(uint32_t layer, const PackedMatrix& gate, const PackedMatrix& up,
                     Activation act, const float* x, size_t x_stride, uint32_t rows, float* y,
                     size_t y_stride) override {
    const bool is_gated = gate.num_runs > 0;
    float* const of_up = is_gated ? s_.ffn : y;
    const size_t up_stride = is_gated ? s_.ffn_stride : y_stride;
    if (is_gated) product_.Run(gate, {x, x_stride, rows, y, y_stride, Into::kReplace});
    product_.Run(up, {x, x_stride, rows, of_up, up_stride, Into::kReplace});
    adapters_.Add(layer, AdapterInput::kGateUp, x, x_stride,
                  {{{y, y_stride}, {of_up, up_stride}, {}}});
    ForRows(rows, up.outputs * 16, [&](uint32_t row) {
      float* to = y + row * y_stride;
      if (!is_gated) return tensor_.activate(act, up.outputs, to);
      tensor_.gated(act, to, of_up + row * up_stride, up.outputs, to);
    });
  }

  bool Adapts(uint32_t layer, AdapterInput input) const override {
    return adapters_.Changes(layer, input);
  }

  void Adapt(uint32_t layer, AdapterInput input, const float* x, size_t x_stride,
             const AdapterOutputs& out) override {
    adapters_.Add(layer, input, x, x_stride, out);
  }

  void Experts(const PackedFfn& w, Routing routing, Activation act, const float* x, size_t stride,
               uint32_t rows, float* y) override {
    product_.Run(w.router,
                 {x, stride, rows, experts_.logits(), experts_.logits_stride(), Into::kReplace});
    experts_.Run(w.experts, routing, act, {x, stride, rows, y, s_.finite});
  }

  void RotateAndPack(uint32_t layer, const HeadSteps& steps, float* qkv, size_t stride, float* out,
                     size_t out_stride) override {
    const BackendOptions& o = side_->o;
    const KvLayout::Place place = o.layout.place(layer);
    side_->rope = steps.rope;
    const uint32_t width = (o.heads + 2 * o.kv_heads) * o.head_dim;
    const auto prepare = [&](uint32_t row) {
      float* q = qkv + row * stride;
      float* k = q + size_t{o.heads} * o.head_dim;
      if (steps.norm != HeadNorm::kNone) {
        NormHeads(steps, o.heads, steps.q_norm, q);
        NormHeads(steps, o.kv_heads, steps.k_norm, k);
      }
      if (!tensor_.all_finite(q, width)) s_.finite[row] = false;
      if (place.group < o.layout.num_full_groups()) {
        KeepRunQuery(row, q, out + row * out_stride);
      }
      if (steps.rope) {
        const auto rotated = static_cast<uint32_t>(2 * o_.ropes[*steps.rope].frequencies.size());
        const float* cos = AnglesOf(*steps.rope, row);
        const float* sin = cos + rotated / 2;
        tensor_.rope(q, o.heads, o.head_dim, rotated, cos, sin);
        tensor_.rope(k, o.kv_heads, o.head_dim, rotated, cos, sin);
      }
      PrepareHeads(o, place, o.heads, q);
    };
    ForChunks(rows_, width * 4, [&](uint32_t begin, uint32_t end) {
      for (uint32_t row = begin; row < end; ++row) prepare(row);
      PackRows(place, begin, end, qkv + size_t{o.heads} * o.head_dim, stride);
    });
  }

  void PackKeyValues(uint32_t layer, float* kv, size_t stride) override {
    const BackendOptions& o = side_->o;
    const KvLayout::Place place = o.layout.place(layer);
    const uint32_t width = o.kv_heads * o.head_dim;
    ForChunks(rows_, width * 8, [&](uint32_t begin, uint32_t end) {
      for (uint32_t row = begin; row < end; ++row) {
        if (!tensor_.all_finite(kv + row * stride, 2 * width)) s_.finite[row] = false;
      }
      PackRows(place, begin, end, kv, stride);
    });
  }

  void PrepareQueries(uint32_t layer, float* q, size_t stride) override {
    const BackendOptions& o = side_->o;
    const KvLayout::Place place = o.layout.place(layer);
    const uint32_t width = o.heads * o.head_dim;
    ForRows(rows_, width * 4, [&](uint32_t row) {
      if (!tensor_.all_finite(q + row * stride, width)) s_.finite[row] = false;
      PrepareHeads(o, place, o.heads, q + row * stride);
    });
  }

  void Attend(uint32_t layer, const float* qkv, size_t qkv_stride, float* out,
              size_t out_stride) override {
    side_->attention.Attend({layer, qkv, qkv_stride, out, out_stride, side_->rope}, pool_);
  }

  void CheckFinite(const float* x, size_t stride, uint32_t n) override {
    for (uint32_t row = 0; row < rows_; ++row) {
      if (!tensor_.all_finite(x + row * stride, n)) s_.finite[row] = false;
    }
  }

  bool finite(uint32_t row) const override { return s_.finite[row]; }
  uint64_t kv_read_bytes() const override {
    return decoder_.attention.read_bytes() + (encoder_ ? encoder_->attention.read_bytes() : 0);
  }
  uint64_t weight_read_bytes() const override {
    return product_.read_bytes() + adapters_.read_bytes() + experts_.read_bytes();
  }

  Status status() const override { return pool_.status(); }
  uint32_t threads() const override { return pool_.num_threads(); }
  void ForEach(uint32_t items, const std::function<void(uint32_t item)>& fn) override {
    pool_.Run(items, [&](uint32_t item, uint32_t) { fn(item); });
  }

 private:
  uint32_t Position(uint32_t row) const {
    const StepSequence& sequence = sequences_[s_.sequence_of[row]];
    return sequence.position + (row - sequence.first_row);
  }

  void SetRows(AttentionSide& side, std::span<const StepSequence> sequences, uint32_t rows) {
    side_ = &side;
    sequences_ = sequences;
    rows_ = rows;
    for (uint32_t i = 0; i < sequences.size(); ++i) {
      for (uint32_t r = 0; r < sequences[i].num_rows; ++r) {
        s_.sequence_of[sequences[i].first_row + r] = i;
      }
    }
    std::fill_n(s_.finite, rows, true);
  }

  // Keeps a row's query where one of its runs is asked from another place. q: not rotated yet.
  void KeepRunQuery(uint32_t row, const float* q, float* to) const {
    const BackendOptions& o = side_->o;
    const StepSequence& sequence = sequences_[s_.sequence_of[row]];
    if (!std::ranges::any_of(sequence.runs, &StepRun::is_elsewhere)) return;
    std::copy_n(q, size_t{o.heads} * o.head_dim, to);
  }

  float* AnglesOf(uint32_t rope, uint32_t row) const {
    return s_.angles + (size_t{rope} * o_.max_rows + row) * o_.head_dim;
  }

  void FillAngles(uint32_t index) {
    const BackendOptions::Rope& rope = o_.ropes[index];
    const auto half = static_cast<uint32_t>(rope.frequencies.size());
    ForRows(rows_, half * 64, [&](uint32_t row) {
      const bool is_long = sequences_[s_.sequence_of[row]].long_rope;
      FillRopeAngles(rope, is_long, Position(row), AnglesOf(index, row));
    });
  }

  // Applies RMSNorm to each head, or to all together, in place.
  void NormHeads(const HeadSteps& steps, uint32_t heads, const float* weights, float* x) const {
    const uint32_t head_dim = side_->o.head_dim;
    const uint32_t n = steps.norm == HeadNorm::kEach ? head_dim : heads * head_dim;
    for (uint32_t at = 0; at < heads * head_dim; at += n) {
      tensor_.rms_norm(x + at, weights, steps.eps, n, x + at, false);
    }
  }

  void EmbedPacked(const PackedMatrix& table, std::span<const TokenId> tokens, float* y,
                   size_t stride) {
    const PackedRun& run = table.run[0];
    ForRows(static_cast<uint32_t>(tokens.size()), table.k * 16, [&](uint32_t row) {
      const auto token = static_cast<uint32_t>(tokens[row]);
      const std::byte* panel = run.panels + token / kPanelOutputs * PanelBytes(run.format, table.k);
      WidenLane(run.format, panel, token % kPanelOutputs, table.k, y + row * stride);
    });
  }

  // Calls fn(begin, end) for chunks of 16 rows, handed out when `work` a row adds up.
  template <typename Fn>
  void ForChunks(uint32_t rows, uint64_t work, Fn&& fn) {
    constexpr uint32_t kChunk = 16;
    if (rows * work < kMinParallelWork / 4) {
      for (uint32_t row = 0; row < rows; row += kChunk) fn(row, std::min(rows, row + kChunk));
      return;
    }
    pool_.Run(static_cast<uint32_t>(CeilDiv(rows, kChunk)), [&](uint32_t chunk, uint32_t) {
      fn(chunk * kChunk, std::min(rows, (chunk + 1) * kChunk));
    });
  }

  // Calls fn(row) for each row, in such chunks.
  template <typename Fn>
  void ForRows(uint32_t rows, uint64_t work, Fn&& fn) {
    ForChunks(rows, work, [&](uint32_t begin, uint32_t end) {
      for (uint32_t row = begin; row < end; ++row) fn(row);
    });
  }

  // Packs k and v of rows [begin, end), head by head: a run of a head stays in L1 meanwhile. k: of
  // row 0, `stride` floats a row, rotated before where the format says so; v follows each row's k.
  void PackRows(KvLayout::Place place, uint32_t begin, uint32_t end, float* k, size_t stride) {
    const BackendOptions& o = side_->o;
    const BlockLayout& layout = o.layout.layout(place.group);
    const BlockPart &key = layout.key(place.slot), &value = layout.value(place.slot);
    const uint32_t bt = layout.block_tokens(), runs = bt / kRunTokens;
    if (TraitsOf(key.format).rotated) {
      for (uint32_t row = begin; row < end; ++row) {
        tensor_.hadamard(k + row * stride, o.kv_heads, o.head_dim);
      }
    }
    for (uint32_t h = 0; h < o.kv_heads; ++h) {
      for (uint32_t row = begin; row < end; ++row) {
        const uint32_t position = Position(row), token = position % bt, lane = token % kRunTokens;
        const uint64_t index = uint64_t{h} * runs + token / kRunTokens;
        const StepSequence& sequence = sequences_[s_.sequence_of[row]];
        std::byte* block = sequence.tables[place.group].bases()[position / bt];
        auto* key_scales = reinterpret_cast<uint16_t*>(block + key.scale_offset);
        auto* value_scales = reinterpret_cast<uint16_t*>(block + value.scale_offset);
        const float* of_head = k + row * stride + size_t{h} * o.head_dim;
        PackKey(of_head, key.format, o.head_dim, lane, block + key.offset + index * key.run_bytes,
                key_scales + index * kRunTokens);
        PackValue(of_head + size_t{o.kv_heads} * o.head_dim, value.format, o.head_dim, lane,
                  block + value.offset + index * value.run_bytes,
                  value_scales + index * kRunTokens);
      }
    }
  }

  const BackendOptions o_;
  Scratch s_;
  const TensorKernels& tensor_;
  const AttentionKernels& kernels_;
  AttentionSide decoder_;
  std::optional<AttentionSide> encoder_;
  AttentionSide* side_ = &decoder_;  // of the rows at hand
  const std::shared_ptr<ThreadPool> workers_;
  ThreadPool& pool_;
  MatrixProduct product_;
  AdapterProduct adapters_;
  ExpertProduct experts_;
  std::span<const StepSequence> sequences_;
  uint32_t rows_ = 0;
};

}  // namespace

uint64_t CpuBackendScratchBytes(const BackendOptions& options) {
  Arena counter;
  const Scratch scratch(options, counter);
  const CpuAttention attention(options, counter);
  const MatrixProduct::Scratch product(ProductOptions(options), counter);
  const AdapterProduct::Scratch adapters(AdapterOptions(options), counter);
  const ExpertProduct::Scratch experts(ExpertOptions(options), counter);
  std::optional<CpuAttention> encoder;
  if (options.encoder) encoder.emplace(EncoderOptions(options), counter);
  return counter.used();
}

std::unique_ptr<Backend> MakeCpuBackend(const BackendOptions& options, Arena& arena) {
  return std::make_unique<CpuBackend>(options, arena);
}

}  // namespace kvasir
