#include "backend/packed_weights.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <initializer_list>
#include <string>

#include "backend/panel_filler.h"
#include "base/bytes.h"
#include "base/check.h"
#include "base/result.h"
#include "import/architecture.h"
#include "import/float_numbers.h"
#include "simd/math.h"
#include "tensor/quantise.h"

namespace kvasir {
namespace {

// Source bytes packed between two rounds of dropping pages.
constexpr uint64_t kBatchBytes = uint64_t{32} << 20;

// The stored row that holds output `row` of ours.
uint64_t StoredRow(const MatrixSource& source, uint64_t row, uint32_t head_dim) {
  if (!source.interleaved_rope_rows) return row;
  const uint64_t head = row / head_dim, i = row % head_dim, half = head_dim / 2;
  return head * head_dim + (i < half ? 2 * i : 2 * (i - half) + 1);
}

bool AllFinite(const MatrixSource& source) {
  const TensorView& view = source.view;
  if (view.integers) return true;  // as their scales say, which the importer checks
  if (source.column_stride == 1) return AllFinite(view.dtype, view.data, view.num_elements());
  for (uint64_t column = 0; column < view.shape[1]; ++column) {
    const std::byte* data = view.data + StoredBytes(view.dtype, column * source.column_stride);
    if (!AllFinite(view.dtype, data, view.shape[0])) return false;
  }
  return true;
}

// A row of a source that is stored as [in, out], number by number.
void GatherRow(const MatrixSource& source, uint64_t row, std::byte* to) {
  const TensorView& view = source.view;
  const uint32_t bytes = BytesOf(view.dtype);
  const std::byte* from = view.data + row * bytes;
  for (uint64_t i = 0; i < view.shape[1]; ++i, from += source.column_stride * bytes) {
    std::memcpy(to + i * bytes, from, bytes);
  }
}

// [sin | cos] of position * 10000^(-i / (half - 1)), i < half = width / 2 (transformers'
// M2M100SinusoidalPositionalEmbedding). In double, rounded once.
void FillSinusoids(uint32_t position, uint32_t width, float* out) {
  const uint32_t half = width / 2;
  const double step = Log(10000) / (half - 1);
  for (uint32_t i = 0; i < half; ++i) {
    double sin_i, cos_i;
    SinCos(position * Exp(-(i * step)), &sin_i, &cos_i);
    out[i] = static_cast<float>(sin_i);
    out[half + i] = static_cast<float>(cos_i);
  }
}

tl::unexpected<Error> NotFinite(const TensorView& view) {
  return Fail(Code::kCorruption,
              "weights: tensor {} holds NaN or infinity: the file is damaged or was exported "
              "wrongly; fetch or export it again",
              view.name);
}

// Returns the error of a tensor from which no panel of `format` can be filled.
tl::unexpected<Error> Refused(const MatrixSource& source, WeightFormat format) {
  const TensorView& view = source.view;
  if (format == view.dtype || !AllFinite(source)) return NotFinite(view);
  return FailField(Code::kInvalidArgument, "weights",
                   "tensor {} holds numbers beyond {}, too large for {}: leave --weights out",
                   view.name, kMaxQuantised, LayoutOf(format).name);
}

// Data for filling panels; absent when the arena only counts.
struct Filling {
  ThreadPool& pool;
  const std::function<void(double)>& progress;
  uint64_t done_bytes = 0, total_bytes = 0;
};

// Lays out the weights in an arena, and packs them if there is a Filling.
class Packer {
 public:
  Packer(const ImportedModel& model, const std::optional<WeightChoice>& choice, Arena& arena,
         Filling* filling)
      : model_(model), choice_(choice), arena_(arena), filling_(filling) {}

  Status Build(PackedWeights& out) {
    KV_TRY(Layers(model_.layers, model_.config, out.layers));
    KV_ASSIGN(out.final_norm.weight, Vector({{model_.final_norm}}));
    if (model_.final_norm_bias) {
      KV_ASSIGN(out.final_norm.bias, Vector({{*model_.final_norm_bias}}));
    }
    const MatrixSource table{model_.embedding, false};
    const MatrixSource* head = model_.lm_head ? &*model_.lm_head : &table;
    KV_ASSIGN(out.head, Matrix({{head}}, Role::kTable));
    if (model_.head_bias) {
      KV_ASSIGN(out.head.bias, Vector({{*model_.head_bias}}));
    }
    plan_.token_bytes = arena_.used() - idle_bytes_;
    if (model_.positions) {
      KV_ASSIGN(out.positions, Vector({{*model_.positions}}));
    }
    if (model_.encoder) KV_TRY(Encoder(*model_.encoder, out));
    if (model_.lm_head) {
      KV_ASSIGN(out.embedding, Embedding(table));
    } else {
      out.embedding = {nullptr, table.view.dtype, model_.config.hidden_size,
                       model_.config.vocab_size, out.head};
    }
    out.source_embedding = out.embedding;
    if (model_.encoder && model_.encoder->embedding) {
      KV_ASSIGN(out.source_embedding, Embedding({*model_.encoder->embedding}));
    }
    plan_.arena_bytes = arena_.used();
    out.quant_columns = plan_.quant_columns;
    return {};
  }

  const PackedPlan& plan() const { return plan_; }
  uint64_t source_bytes() const { return source_bytes_; }

 private:
  using Slots = std::initializer_list<Slot>;

  // A table that is not the output head: in place where its format allows it, else packed.
  Result<EmbeddingTable> Embedding(const MatrixSource& table) {
    const TensorView& view = table.view;
    EmbeddingTable out{nullptr,
                       view.dtype,
                       static_cast<uint32_t>(view.shape[1]),
                       static_cast<uint32_t>(view.shape[0]),
                       {}};
    if (view.integers || IsQuantised(FormatOf(table, Role::kTable))) {
      KV_ASSIGN(out.packed, Matrix({{&table}}, Role::kTable));
      return out;
    }
    out.rows = view.data;
    plan_.mapped_bytes += view.num_bytes();
    if (filling_ != nullptr && !AllFinite(table)) return NotFinite(view);
    return out;
  }

  Status Layers(std::span<const SlotTensors> layers, const ModelConfig& config,
                std::vector<PackedLayer>& out) {
    for (uint32_t layer = 0; layer < layers.size(); ++layer) {
      PackedLayer packed{.spec = LayerOf(config, layer)};
      KV_ASSIGN(packed.attention, Attention(layers[layer], packed.spec));
      if (packed.spec.cross) {
        KV_ASSIGN(packed.cross, Cross(layers[layer]));
      }
      KV_ASSIGN(packed.ffn, Ffn(layers[layer], packed.spec));
      out.push_back(std::move(packed));
    }
    return {};
  }

  Status Encoder(const EncoderTensors& encoder, PackedWeights& out) {
    KV_TRY(Layers(encoder.layers, EncoderOf(model_.config), out.encoder_layers));
    KV_ASSIGN(out.encoder_norm.weight, Vector({{encoder.final_norm}}));
    if (encoder.final_norm_bias) {
      KV_ASSIGN(out.encoder_norm.bias, Vector({{*encoder.final_norm_bias}}));
    }
    if (encoder.positions) {
      KV_ASSIGN(out.source_positions, Vector({{*encoder.positions}}));
      return {};
    }
    const uint64_t hidden = model_.config.hidden_size;
    float* table = arena_.TakeArray<float>(model_.config.max_positions * hidden);
    out.positions = out.source_positions = table;
    if (filling_ == nullptr) return {};
    filling_->pool.Run(model_.config.max_positions, [&](uint32_t position, uint32_t) {
      FillSinusoids(model_.config.encoder->first_position + position, static_cast<uint32_t>(hidden),
                    table + position * hidden);
    });
    return {};
  }

  Result<PackedCross> Cross(const SlotTensors& layer) {
    PackedCross packed;
    KV_ASSIGN(packed.norm, Norm(layer, Slot::kCrossNorm, Slot::kCrossNormBias));
    KV_ASSIGN(packed.q, LayerMatrix(layer, {Slot::kCrossQ}, {Slot::kCrossQBias}));
    const uint64_t before = arena_.used();
    KV_ASSIGN(packed.kv, LayerMatrix(layer, {Slot::kCrossK, Slot::kCrossV},
                                     {Slot::kCrossKBias, Slot::kCrossVBias}));
    idle_bytes_ += arena_.used() - before;
    KV_ASSIGN(packed.o, LayerMatrix(layer, {Slot::kCrossO}, {Slot::kCrossOBias}));
    return packed;
  }

  Result<PackedAttention> Attention(const SlotTensors& layer, const LayerSpec& spec) {
    PackedAttention packed;
    if (NormsInput(spec)) {
      KV_ASSIGN(packed.norm, Norm(layer, Slot::kAttentionNorm, Slot::kAttentionNormBias));
    }
    if (NormsOutput(spec)) {
      KV_ASSIGN(packed.post_norm.weight, Vector({{layer[Slot::kAttentionPostNorm]}}));
    }
    KV_ASSIGN(packed.qkv, LayerMatrix(layer, {Slot::kQ, Slot::kK, Slot::kV},
                                      {Slot::kQBias, Slot::kKBias, Slot::kVBias}));
    if (spec.head_norm != HeadNorm::kNone) {
      const bool each = spec.head_norm == HeadNorm::kEach;
      KV_ASSIGN(packed.q_norm, Vector({{layer[each ? Slot::kQNorm : Slot::kAllQNorm]}}));
      KV_ASSIGN(packed.k_norm, Vector({{layer[each ? Slot::kKNorm : Slot::kAllKNorm]}}));
    }
    KV_ASSIGN(packed.o, LayerMatrix(layer, {Slot::kO}, {Slot::kOBias}));
    return packed;
  }

  Result<PackedFfn> Ffn(const SlotTensors& layer, const LayerSpec& spec) {
    PackedFfn packed;
    if (NormsInput(spec)) {
      KV_ASSIGN(packed.norm, Norm(layer, Slot::kFfnNorm, Slot::kFfnNormBias));
    }
    if (NormsOutput(spec)) {
      KV_ASSIGN(packed.post_norm.weight, Vector({{layer[Slot::kFfnPostNorm]}}));
    }
    if (spec.ffn == FfnKind::kExperts) {
      KV_TRY(Experts(layer, packed));
      return packed;
    }
    if (spec.ffn == FfnKind::kGated) {
      KV_ASSIGN(packed.gate, LayerMatrix(layer, {Slot::kGate}, {Slot::kGateBias}));
    }
    KV_ASSIGN(packed.up, LayerMatrix(layer, {Slot::kUp}, {Slot::kUpBias}));
    KV_ASSIGN(packed.down, LayerMatrix(layer, {Slot::kDown}, {Slot::kDownBias}));
    return packed;
  }

  Status Experts(const SlotTensors& layer, PackedFfn& packed) {
    const MatrixSource* router = &layer[Slot::kRouter];
    KV_ASSIGN(packed.router, Matrix({{router}}, Role::kRouter));
    const auto gates = layer.All(Slot::kExpertGate), ups = layer.All(Slot::kExpertUp);
    const auto downs = layer.All(Slot::kExpertDown);
    std::vector<uint64_t> sizes;
    for (size_t i = 0; i < gates.size(); ++i) {
      const uint64_t before = arena_.used();
      PackedExpert expert;
      KV_ASSIGN(expert.gate, Matrix({{&gates[i]}}, Role::kLayer));
      KV_ASSIGN(expert.up, Matrix({{&ups[i]}}, Role::kLayer));
      KV_ASSIGN(expert.down, Matrix({{&downs[i]}}, Role::kLayer));
      packed.experts.push_back(expert);
      sizes.push_back(arena_.used() - before);
    }
    std::ranges::sort(sizes);
    const size_t idle = sizes.size() - model_.config.experts->chosen;
    for (size_t i = 0; i < idle; ++i) idle_bytes_ += sizes[i];
    return {};
  }

  Result<PackedNorm> Norm(const SlotTensors& layer, Slot weight, Slot bias) {
    PackedNorm norm;
    KV_ASSIGN(norm.weight, Vector({{layer[weight]}}));
    if (const MatrixSource* source = layer.Find(bias)) {
      KV_ASSIGN(norm.bias, Vector({{*source}}));
    }
    return norm;
  }

  // Matrices of a layer stacked into one, and their biases.
  Result<PackedMatrix> LayerMatrix(const SlotTensors& layer, Slots weights, Slots biases) {
    std::vector<const MatrixSource*> sources;
    for (const Slot slot : weights) sources.push_back(&layer[slot]);
    KV_ASSIGN(PackedMatrix matrix, Matrix(sources, Role::kLayer));
    std::vector<MatrixSource> parts;
    for (const Slot slot : biases) {
      if (const MatrixSource* bias = layer.Find(slot)) parts.push_back(*bias);
    }
    // A config has either all biases of a stacked matrix or none.
    KV_CHECK(parts.empty() || parts.size() == biases.size());
    if (!parts.empty()) {
      KV_ASSIGN(matrix.bias, Vector(parts));
    }
    return matrix;
  }

  // Numbers of the parts one after another, widened. [sum of sizes], padded to 16 with zeros.
  Result<const float*> Vector(const std::vector<MatrixSource>& parts) {
    uint64_t count = 0;
    for (const MatrixSource& part : parts) count += part.view.num_elements();
    float* numbers = arena_.TakeArray<float>(RoundUp(count, 16));
    if (filling_ == nullptr) return numbers;
    for (const MatrixSource& part : parts) {
      const TensorView& view = part.view;
      if (!AllFinite(part)) return NotFinite(view);
      for (uint64_t i = 0; i < view.num_elements(); ++i) {
        const uint64_t stored = StoredRow(part, i, model_.config.head_dim);
        Widen(view.dtype, view.data + StoredBytes(view.dtype, stored), 1, numbers);
        if (view.less_one) *numbers = 1.0f + *numbers;
        ++numbers;
      }
    }
    return numbers - count;
  }

  enum class Role { kLayer, kTable, kRouter };

  WeightFormat FormatOf(const MatrixSource& source, Role role) const {
    if (!choice_ || role == Role::kRouter) return source.view.dtype;
    return role == Role::kTable ? choice_->tables : choice_->layers;
  }

  Result<PackedMatrix> Matrix(std::span<const MatrixSource* const> sources, Role role) {
    PackedMatrix matrix;
    matrix.k = static_cast<uint32_t>(sources.front()->view.shape[1]);
    for (auto first = sources.begin(); first != sources.end();) {
      const WeightFormat format = FormatOf(**first, role);
      PackedRun& run = matrix.run[matrix.num_runs++];
      run = {nullptr, format, matrix.outputs, 0};
      const auto begin = first;
      for (; first != sources.end() && FormatOf(**first, role) == format; ++first) {
        run.outputs += static_cast<uint32_t>((*first)->view.shape[0]);
      }
      KV_TRY(PackRun({begin, first}, matrix.k, run));
      matrix.outputs += run.outputs;
    }
    return matrix;
  }

  // Takes memory for a run and fills it from its sources, in batches of about kBatchBytes.
  Status PackRun(std::span<const MatrixSource* const> sources, uint32_t k, PackedRun& run) {
    const uint32_t panels = static_cast<uint32_t>(CeilDiv(run.outputs, kPanelOutputs));
    const uint64_t panel_bytes = PanelBytes(run.format, k);
    std::byte* data = arena_.Take(panels * panel_bytes);
    run.panels = data;
    uint64_t source_panel_bytes = 0, whole_bytes = 0;
    for (const MatrixSource* source : sources) {
      source_panel_bytes = std::max(source_panel_bytes, source->view.row_bytes() * kPanelOutputs);
      whole_bytes += source->column_stride == 1 ? 0 : source->view.num_bytes();
    }
    const uint32_t batch =
        static_cast<uint32_t>(std::clamp<uint64_t>(kBatchBytes / source_panel_bytes, 1, panels));
    source_bytes_ += panels * source_panel_bytes;
    plan_.load_bytes = std::max({plan_.load_bytes, batch * source_panel_bytes, whole_bytes});
    if (IsQuantised(run.format)) plan_.quant_columns = std::max(plan_.quant_columns, k);
    if (filling_ == nullptr) return {};
    for (uint32_t begin = 0; begin < panels; begin += batch) {
      const uint32_t end = std::min(begin + batch, panels);
      std::atomic<uint32_t> bad = UINT32_MAX;  // the first output with a number that is not finite
      filling_->pool.Run(end - begin, [&](uint32_t i, uint32_t) {
        Fill(sources, k, run, begin + i, data + (begin + i) * panel_bytes, bad);
      });
      if (bad != UINT32_MAX) return Refused(*RowOf(sources, bad).first, run.format);
      Drop(sources, begin * kPanelOutputs, end * kPanelOutputs);
      filling_->done_bytes += (end - begin) * source_panel_bytes;
      if (filling_->progress) {
        filling_->progress(double(filling_->done_bytes) / double(filling_->total_bytes));
      }
    }
    for (const MatrixSource* source : sources) DropTransposed(*source);
    return {};
  }

  // The source of an output of a run, and its row there.
  static std::pair<const MatrixSource*, uint32_t> RowOf(
      std::span<const MatrixSource* const> sources, uint32_t output) {
    size_t i = 0;
    for (; output >= sources[i]->view.shape[0]; ++i) {
      output -= static_cast<uint32_t>(sources[i]->view.shape[0]);
    }
    return {sources[i], output};
  }

  void Fill(std::span<const MatrixSource* const> sources, uint32_t k, const PackedRun& run,
            uint32_t panel, std::byte* to, std::atomic<uint32_t>& bad) const {
    const uint32_t first = panel * kPanelOutputs;
    std::array<PanelRow, kPanelOutputs> rows;
    const uint32_t lanes = std::min(kPanelOutputs, run.outputs - first);
    std::vector<std::byte> gathered;
    for (uint32_t lane = 0; lane < lanes; ++lane) {
      const auto [source, row] = RowOf(sources, first + lane);
      const TensorView& view = source->view;
      if (source->column_stride == 1 && !view.integers) {
        const uint64_t stored = StoredRow(*source, row, model_.config.head_dim);
        rows[lane] = {view.data + stored * view.row_bytes(), view.dtype};
        continue;
      }
      gathered.resize(size_t{kPanelOutputs} * k * sizeof(float));
      std::byte* to = gathered.data() + size_t{lane} * k * sizeof(float);
      if (view.integers) {
        WidenRow(*view.integers, row, k, reinterpret_cast<float*>(to));
      } else {
        GatherRow(*source, row, to);
      }
      rows[lane] = {to, view.dtype};
    }
    const uint32_t bad_lanes = FillPanel(run.format, {rows.data(), lanes}, k, to);
    if (bad_lanes == 0) return;
    const uint32_t output = first + static_cast<uint32_t>(__builtin_ctz(bad_lanes));
    uint32_t seen = bad;
    while (output < seen && !bad.compare_exchange_weak(seen, output)) {
    }
  }

  // Every row of a source that is stored as [in, out] needs all its pages.
  void DropTransposed(const MatrixSource& source) const {
    if (source.column_stride == 1) return;
    const TensorView& view = source.view;
    const uint64_t numbers = (view.shape[1] - 1) * source.column_stride + view.shape[0];
    for (const auto& file : model_.mapped_files) {
      file->Drop({view.data, StoredBytes(view.dtype, numbers)});
    }
  }

  // Outputs [begin, end) of a run are packed. The rows of a head that is not done are kept.
  void Drop(std::span<const MatrixSource* const> sources, uint64_t begin, uint64_t end) const {
    for (const MatrixSource* source : sources) {
      const uint64_t rows = source->view.shape[0];
      if (source->column_stride != 1) {  // DropTransposed has them
        begin -= std::min(begin, rows);
        end -= std::min(end, rows);
        continue;
      }
      const uint64_t head = source->interleaved_rope_rows ? model_.config.head_dim : 1;
      const uint64_t from = std::min(begin, rows) / head * head;
      const uint64_t to = std::min(end, rows) / head * head;
      const auto& integers = source->view.integers;
      const std::byte* data = integers ? integers->data : source->view.data;
      const uint64_t row_bytes =
          integers ? source->view.shape[1] * integers->bytes : source->view.row_bytes();
      for (const auto& file : model_.mapped_files) {
        file->Drop({data + from * row_bytes, data + to * row_bytes});
      }
      begin -= std::min(begin, rows);
      end -= std::min(end, rows);
    }
  }

  const ImportedModel& model_;
  const std::optional<WeightChoice>& choice_;
  Arena& arena_;
  Filling* filling_;
  PackedPlan plan_;
  uint64_t source_bytes_ = 0;
  // What no step of one token reads: the smallest experts beyond those that it goes to, and what
  // makes K and V of sources.
  uint64_t idle_bytes_ = 0;
};

}  // namespace

PackedPlan PlanPacked(const ImportedModel& model, const std::optional<WeightChoice>& choice) {
  PackedWeights counted;
  Packer packer(model, choice, counted.arena, nullptr);
  KV_CHECK(packer.Build(counted).has_value());
  return packer.plan();
}

PackedWeights Adopt(const ImportedModel& model, const std::optional<WeightChoice>& choice,
                    Arena arena) {
  PackedWeights weights;
  weights.arena = std::move(arena);
  KV_CHECK(Packer(model, choice, weights.arena, nullptr).Build(weights).has_value());
  KV_CHECK(weights.arena.used() == weights.arena.size());
  return weights;
}

Result<PackedWeights> Pack(const ImportedModel& model, const std::optional<WeightChoice>& choice,
                           ThreadPool& pool, const std::function<void(double)>& progress) {
  PackedWeights counted;
  Packer counter(model, choice, counted.arena, nullptr);
  KV_CHECK(counter.Build(counted).has_value());
  Filling filling{pool, progress, 0, counter.source_bytes()};
  PackedWeights weights;
  KV_ASSIGN(weights.arena, Arena::Create(counter.plan().arena_bytes));
  KV_TRY(Packer(model, choice, weights.arena, &filling).Build(weights));
  return weights;
}

}  // namespace kvasir
