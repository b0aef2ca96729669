#include <algorithm>

#include "attention/kernels.h"
#include "base/check.h"
#include "base/fault.h"
#include "base/thread_pool.h"
#include "format/pack.h"
#include "model/backend.h"
#include "model/matrix_product.h"
#include "model/panel_filler.h"
#include "simd/math.h"
#include "tensor/kernels.h"

namespace kvasir {
namespace {

// Below this many multiply-adds a phase runs on the calling thread: handing it out costs more.
constexpr uint64_t kMinParallelWork = 1 << 20;
// Sequences with at most this many rows are split by spans of context, the others by rows.
constexpr uint32_t kMaxDecodeRows = 2;

// What the scratch arena holds, by the same sums whether it counts or allocates.
struct Scratch {
  Scratch(const BackendOptions& o, Arena& arena) {
    const uint32_t value_stride = static_cast<uint32_t>(RoundUp(o.head_dim, 16));
    partial_floats = PartialFloats(value_stride);
    max_units = std::max<uint32_t>(256, uint32_t(CeilDiv(o.max_positions, kAttentionSpan)));
    max_items = std::max(max_units, o.max_rows * o.kv_heads);
    angles = arena.TakeArray<float>(uint64_t{o.max_rows} * o.head_dim);
    sequence_of = arena.TakeArray<uint32_t>(o.max_rows);
    finite = arena.TakeArray<bool>(o.max_rows);
    items = arena.TakeArray<Item>(max_items);
    unit_partials = arena.TakeArray<float>(uint64_t{max_units} * o.heads * partial_floats);
    thread_partials = arena.TakeArray<float>(uint64_t{o.threads} * kMaxQueries * partial_floats);
  }

  // Attention of rows [row, row + rows) of a sequence: `unit` < max_units: one row, all heads, the
  // span `index`; else all spans of kv head `index`.
  struct Item {
    uint32_t sequence, row, rows, index, unit;
  };
  uint32_t partial_floats, max_units, max_items;
  float* angles;          // [row][cos: head_dim/2, sin: head_dim/2]
  uint32_t* sequence_of;  // [row]
  bool* finite;           // [row]
  Item* items;
  float* unit_partials;    // [unit][head][partial]
  float* thread_partials;  // [thread][query][partial]
};

MatrixProduct::Options ProductOptions(const BackendOptions& o) {
  return {o.target, std::max(o.max_rows, o.max_logit_rows), o.quant_columns};
}

class CpuBackend final : public Backend {
 public:
  CpuBackend(const BackendOptions& options, Arena& arena)
      : o_(options),
        s_(options, arena),
        tensor_(TensorKernelsFor(options.target)),
        attention_(AttentionKernelsFor(options.target)),
        pool_(options.threads, &EnterComputeThread, options.cpus),
        product_(ProductOptions(options), arena, pool_) {
    const float root = __builtin_sqrtf(static_cast<float>(o_.head_dim));
    query_scale_ = 1.0f / root;
  }

  void Begin(std::span<const StepSequence> sequences, uint32_t rows) override {
    sequences_ = sequences;
    rows_ = rows;
    for (uint32_t i = 0; i < sequences.size(); ++i) {
      for (uint32_t r = 0; r < sequences[i].num_rows; ++r) {
        s_.sequence_of[sequences[i].first_row + r] = i;
      }
    }
    std::fill_n(s_.finite, rows, true);
    const uint32_t half = o_.head_dim / 2;
    ForRows(rows, half * 64, [&](uint32_t row) {
      float* cos = s_.angles + size_t{row} * o_.head_dim;
      for (uint32_t i = 0; i < half; ++i) {
        double sin_i, cos_i;
        SinCos(Position(row) * o_.rope_frequencies[i], &sin_i, &cos_i);
        cos[i] = static_cast<float>(cos_i);
        cos[half + i] = static_cast<float>(sin_i);
      }
    });
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

  void Norm(const float* x, size_t stride, const float* w, uint32_t n, float eps, uint32_t rows,
            float* y) override {
    const bool fault = rows == 1 && FaultActive(Fault::kLaneOrder);
    ForRows(rows, n, [&](uint32_t row) {
      tensor_.rms_norm(x + row * stride, w, eps, n, y + row * stride, fault);
    });
  }

  void MatMul(const PackedMatrix& w, const float* x, size_t x_stride, uint32_t rows, float* y,
              size_t y_stride, Into into) override {
    product_.Run(w, {x, x_stride, rows, y, y_stride, into == Into::kAdd});
  }

  void RotateAndPack(const BlockLayout& layout, uint32_t layer, float* qkv,
                     size_t stride) override {
    const uint32_t width = (o_.heads + 2 * o_.kv_heads) * o_.head_dim;
    ForRows(rows_, width * 4, [&](uint32_t row) {
      float* q = qkv + row * stride;
      float* k = q + size_t{o_.heads} * o_.head_dim;
      if (!tensor_.all_finite(q, width)) s_.finite[row] = false;
      const float* cos = s_.angles + size_t{row} * o_.head_dim;
      const float* sin = cos + o_.head_dim / 2;
      tensor_.rope(q, o_.heads, o_.head_dim, cos, sin);
      tensor_.rope(k, o_.kv_heads, o_.head_dim, cos, sin);
      attention_.scale(q, query_scale_, o_.heads * o_.head_dim, q);
      PackRow(layout, layer, row, k, k + size_t{o_.kv_heads} * o_.head_dim);
    });
  }

  void Attend(const BlockLayout& layout, uint32_t layer, const float* qkv, size_t qkv_stride,
              float* out, size_t out_stride) override {
    uint32_t sequence = 0;
    while (sequence < sequences_.size()) {  // one round, unless the spans exceed the scratch
      uint32_t units = 0, items = 0;
      uint64_t work = 0;
      const uint32_t first = sequence;
      for (; sequence < sequences_.size(); ++sequence) {
        if (!AddItems(sequence, &items, &units, &work)) break;
      }
      KV_CHECK(sequence > first);
      const Call call{layout, layer, qkv, qkv_stride, out, out_stride};
      if (work < kMinParallelWork) {
        for (uint32_t i = 0; i < items; ++i) AttendItem(call, s_.items[i], 0);
      } else {
        pool_.Run(items,
                  [&](uint32_t i, uint32_t thread) { AttendItem(call, s_.items[i], thread); });
      }
      for (uint32_t i = 0; i < items; ++i) FinishUnits(call, i, items);
    }
  }

  void GateUp(const float* x, size_t x_stride, uint32_t n, uint32_t rows, float* y,
              size_t y_stride) override {
    ForRows(rows, n * 8, [&](uint32_t row) {
      tensor_.swiglu(x + row * x_stride, x + row * x_stride + n, n, y + row * y_stride);
    });
  }

  void CheckFinite(const float* x, size_t stride, uint32_t n) override {
    for (uint32_t row = 0; row < rows_; ++row) {
      if (!tensor_.all_finite(x + row * stride, n)) s_.finite[row] = false;
    }
  }

  bool finite(uint32_t row) const override { return s_.finite[row]; }

  uint32_t threads() const override { return pool_.num_threads(); }
  void ForEach(uint32_t items, const std::function<void(uint32_t item)>& fn) override {
    pool_.Run(items, [&](uint32_t item, uint32_t) { fn(item); });
  }

 private:
  using Item = Scratch::Item;
  struct Call {
    const BlockLayout& layout;
    uint32_t layer;
    const float* qkv;
    size_t qkv_stride;
    float* out;
    size_t out_stride;
  };

  uint32_t Position(uint32_t row) const {
    const StepSequence& sequence = sequences_[s_.sequence_of[row]];
    return sequence.position + (row - sequence.first_row);
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

  // fn(row) for each row, handed out in chunks of 16 when `work` a row adds up.
  template <typename Fn>
  void ForRows(uint32_t rows, uint64_t work, Fn&& fn) {
    constexpr uint32_t kChunk = 16;
    if (rows * work < kMinParallelWork / 4) {
      for (uint32_t row = 0; row < rows; ++row) fn(row);
      return;
    }
    pool_.Run(static_cast<uint32_t>(CeilDiv(rows, kChunk)), [&](uint32_t chunk, uint32_t) {
      const uint32_t end = std::min(rows, (chunk + 1) * kChunk);
      for (uint32_t row = chunk * kChunk; row < end; ++row) fn(row);
    });
  }

  void PackRow(const BlockLayout& layout, uint32_t layer, uint32_t row, const float* k,
               const float* v) {
    const StepSequence& sequence = sequences_[s_.sequence_of[row]];
    const BlockShape& shape = layout.shape();
    const uint32_t position = Position(row), bt = layout.block_tokens();
    std::byte* block = sequence.blocks[position / bt];
    const uint32_t token = position % bt, run = token / kTileTokens, runs = bt / kTileTokens;
    const KvFormat kf = shape.k_format[layer], vf = shape.v_format[layer];
    const uint64_t tile_bytes = KvBytes(kf, uint64_t{o_.head_dim} * kTileTokens);
    const uint64_t row_bytes = KvBytes(vf, layout.value_stride());
    for (uint32_t h = 0; h < o_.kv_heads; ++h) {
      std::byte* tile = block + layout.key_offset(layer) + (uint64_t{h} * runs + run) * tile_bytes;
      PackKey(k + size_t{h} * o_.head_dim, kf, o_.head_dim, token % kTileTokens, tile);
      std::byte* value =
          block + layout.value_offset(layer) + (uint64_t{h} * bt + token) * row_bytes;
      PackValue(v + size_t{h} * o_.head_dim, vf, o_.head_dim, layout.value_stride(), value);
    }
  }

  // Tokens that a row sees: all up to itself.
  uint32_t Limit(const StepSequence& sequence, uint32_t row) const {
    const uint32_t limit = sequence.position + row + 1;
    const bool later_chunk = sequence.position > 0 && sequence.num_rows > 1 && row == 0;
    return later_chunk && FaultActive(Fault::kChunkEdge) ? limit - 1 : limit;
  }

  // Adds a sequence's items; false, with nothing added, when its units do not fit any more.
  bool AddItems(uint32_t index, uint32_t* items, uint32_t* units, uint64_t* work) {
    const StepSequence& sequence = sequences_[index];
    const uint32_t context = sequence.position + sequence.num_rows;
    *work += uint64_t{sequence.num_rows} * context * o_.heads * o_.head_dim * 2;
    if (sequence.num_rows <= kMaxDecodeRows) {
      uint32_t need = 0;
      for (uint32_t row = 0; row < sequence.num_rows; ++row) need += Spans(Limit(sequence, row));
      // A sequence alone may need more than the scratch holds when it has two rows: by rows then.
      if (need <= s_.max_units) {
        if (*units + need > s_.max_units || *items + need > s_.max_items) return false;
        for (uint32_t row = 0; row < sequence.num_rows; ++row) {
          for (uint32_t span = 0; span < Spans(Limit(sequence, row)); ++span) {
            s_.items[(*items)++] = {index, row, 1, span, (*units)++};
          }
        }
        return true;
      }
    }
    const uint32_t group = o_.heads / o_.kv_heads;
    const uint32_t block = std::max(1u, kMaxQueries / group);
    const uint32_t need = static_cast<uint32_t>(CeilDiv(sequence.num_rows, block)) * o_.kv_heads;
    if (*items + need > s_.max_items) return false;
    // The last rows see most: they go first, so that no thread is left with a long item at the end.
    for (uint32_t end = sequence.num_rows; end > 0;) {
      const uint32_t rows = std::min(block, end);
      end -= rows;
      for (uint32_t head = 0; head < o_.kv_heads; ++head) {
        s_.items[(*items)++] = {index, end, rows, head, s_.max_units};
      }
    }
    return true;
  }

  static uint32_t Spans(uint32_t limit) {
    return static_cast<uint32_t>(CeilDiv(limit, kAttentionSpan));
  }

  PagedKv Kv(const Call& call, const StepSequence& sequence) const {
    const BlockShape& shape = call.layout.shape();
    return {sequence.blocks.data(),
            call.layout.key_offset(call.layer),
            call.layout.value_offset(call.layer),
            shape.k_format[call.layer],
            shape.v_format[call.layer],
            shape.block_tokens,
            shape.kv_heads,
            shape.head_dim,
            call.layout.value_stride()};
  }

  void ClearPartial(float* partial) const {
    std::fill_n(partial, s_.partial_floats, 0.0f);
    partial[s_.partial_floats - 2] = -__builtin_inff();
  }

  void AttendItem(const Call& call, const Item& item, uint32_t thread) {
    if (item.unit < s_.max_units) return AttendUnit(call, item);
    const StepSequence& sequence = sequences_[item.sequence];
    const uint32_t group = o_.heads / o_.kv_heads;
    const uint32_t queries = item.rows * group;
    float* scratch = s_.thread_partials + size_t{thread} * kMaxQueries * s_.partial_floats;
    for (uint32_t first = 0; first < queries; first += kMaxQueries) {
      AttendQueries(call, sequence, item, first, std::min(kMaxQueries, queries - first), scratch);
    }
  }

  // Queries [first, first + count) of an item's rows x heads: all spans, then the result.
  void AttendQueries(const Call& call, const StepSequence& sequence, const Item& item,
                     uint32_t first, uint32_t count, float* scratch) {
    const PagedKv kv = Kv(call, sequence);
    const uint32_t group = o_.heads / o_.kv_heads;
    const float* q[kMaxQueries];
    uint32_t limit[kMaxQueries];
    float* partial[kMaxQueries];
    for (uint32_t i = 0; i < count; ++i) {
      const uint32_t row = item.row + (first + i) / group;
      const uint32_t head = item.index * group + (first + i) % group;
      q[i] = call.qkv + (sequence.first_row + row) * call.qkv_stride + size_t{head} * o_.head_dim;
      limit[i] = Limit(sequence, row);
      partial[i] = scratch + size_t{i} * s_.partial_floats;
      ClearPartial(partial[i]);
    }
    attention_.attend({&kv, item.index, count, q, limit, partial, 0, Spans(limit[count - 1])});
    for (uint32_t i = 0; i < count; ++i) {
      const uint32_t row = item.row + (first + i) / group;
      const uint32_t head = item.index * group + (first + i) % group;
      attention_.finish(
          partial[i], o_.head_dim, kv.value_stride,
          call.out + (sequence.first_row + row) * call.out_stride + size_t{head} * o_.head_dim);
    }
  }

  // One row, one span, all heads.
  void AttendUnit(const Call& call, const Item& item) {
    const StepSequence& sequence = sequences_[item.sequence];
    const PagedKv kv = Kv(call, sequence);
    const uint32_t group = o_.heads / o_.kv_heads;
    const float* row_q = call.qkv + (sequence.first_row + item.row) * call.qkv_stride;
    float* partials = s_.unit_partials + size_t{item.unit} * o_.heads * s_.partial_floats;
    for (uint32_t head = 0; head < o_.heads;) {
      const uint32_t count = std::min(kMaxQueries, group - head % group);
      const float* q[kMaxQueries];
      uint32_t limit[kMaxQueries];
      float* partial[kMaxQueries];
      for (uint32_t i = 0; i < count; ++i) {
        q[i] = row_q + size_t{head + i} * o_.head_dim;
        limit[i] = Limit(sequence, item.row);
        partial[i] = partials + size_t{head + i} * s_.partial_floats;
        ClearPartial(partial[i]);
      }
      attention_.attend({&kv, head / group, count, q, limit, partial, item.index, item.index + 1});
      head += count;
    }
  }

  // At the first unit of a row: merges all its spans in order and writes the result.
  void FinishUnits(const Call& call, uint32_t i, uint32_t items) {
    const Item& item = s_.items[i];
    if (item.unit >= s_.max_units || item.index != 0) return;
    const StepSequence& sequence = sequences_[item.sequence];
    const uint32_t value_stride = call.layout.value_stride();
    float* out = call.out + (sequence.first_row + item.row) * call.out_stride;
    const uint32_t spans = Spans(Limit(sequence, item.row));
    KV_DCHECK(i + spans <= items);
    for (uint32_t head = 0; head < o_.heads; ++head) {
      float* merged = s_.unit_partials + (size_t{item.unit} * o_.heads + head) * s_.partial_floats;
      for (uint32_t span = 1; span < spans; ++span) {
        attention_.merge(merged, merged + size_t{span} * o_.heads * s_.partial_floats,
                         value_stride);
      }
      attention_.finish(merged, o_.head_dim, value_stride, out + size_t{head} * o_.head_dim);
    }
  }

  BackendOptions o_;
  Scratch s_;
  const TensorKernels& tensor_;
  const AttentionKernels& attention_;
  ThreadPool pool_;
  MatrixProduct product_;
  float query_scale_;
  std::span<const StepSequence> sequences_;
  uint32_t rows_ = 0;
};

}  // namespace

uint64_t CpuBackendScratchBytes(const BackendOptions& options) {
  Arena counter;
  Scratch scratch(options, counter);
  counter.Take(MatrixProduct::ScratchBytes(ProductOptions(options)));
  return counter.used();
}

std::unique_ptr<Backend> MakeCpuBackend(const BackendOptions& options, Arena& arena) {
  return std::make_unique<CpuBackend>(options, arena);
}

}  // namespace kvasir
