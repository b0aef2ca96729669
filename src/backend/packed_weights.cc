#include "backend/packed_weights.h"

#include <algorithm>
#include <initializer_list>
#include <string>

#include "backend/matrix_packer.h"
#include "base/check.h"
#include "base/result.h"
#include "import/architecture.h"
#include "simd/math.h"

namespace kvasir {
namespace {

// Computes [sin | cos] of position * 10000^(-i / (half - 1)), i < half = width / 2 (transformers'
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

// Lays out the weights of a model in an arena, layer by layer, and packs them if there is a
// Filling.
class Packer {
 public:
  Packer(const ImportedModel& model, const std::optional<WeightChoice>& choice, Arena& arena,
         Filling* filling)
      : model_(model),
        choice_(choice),
        arena_(arena),
        filling_(filling),
        numbers_(model, arena, filling) {}

  Status Build(PackedWeights& out) {
    KV_TRY(Layers(model_.layers, model_.config, out.layers));
    KV_ASSIGN(out.final_norm.weight, numbers_.Vector({{model_.final_norm}}));
    if (model_.final_norm_bias) {
      KV_ASSIGN(out.final_norm.bias, numbers_.Vector({{*model_.final_norm_bias}}));
    }
    const MatrixSource table{model_.embedding, false};
    const MatrixSource* head = model_.lm_head ? &*model_.lm_head : &table;
    KV_ASSIGN(out.head, Matrix({{head}}, Role::kTable));
    if (model_.head_bias) {
      KV_ASSIGN(out.head.bias, numbers_.Vector({{*model_.head_bias}}));
    }
    plan_.token_bytes = arena_.used() - idle_bytes_;
    if (model_.positions) {
      KV_ASSIGN(out.positions, numbers_.Vector({{*model_.positions}}));
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
    plan_.load_bytes = numbers_.totals().load_bytes;
    plan_.quant_columns = out.quant_columns = numbers_.totals().quant_columns;
    return {};
  }

  const PackedPlan& plan() const { return plan_; }
  uint64_t source_bytes() const { return numbers_.totals().source_bytes; }

 private:
  using Slots = std::initializer_list<Slot>;

  // Makes a table that is not the output head: in place where its format allows it, else packed.
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
    KV_TRY(numbers_.CheckInPlace(table));
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
    KV_ASSIGN(out.encoder_norm.weight, numbers_.Vector({{encoder.final_norm}}));
    if (encoder.final_norm_bias) {
      KV_ASSIGN(out.encoder_norm.bias, numbers_.Vector({{*encoder.final_norm_bias}}));
    }
    if (encoder.positions) {
      KV_ASSIGN(out.source_positions, numbers_.Vector({{*encoder.positions}}));
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
      KV_ASSIGN(packed.post_norm.weight, numbers_.Vector({{layer[Slot::kAttentionPostNorm]}}));
    }
    KV_ASSIGN(packed.qkv, LayerMatrix(layer, {Slot::kQ, Slot::kK, Slot::kV},
                                      {Slot::kQBias, Slot::kKBias, Slot::kVBias}));
    if (spec.head_norm != HeadNorm::kNone) {
      const bool each = spec.head_norm == HeadNorm::kEach;
      KV_ASSIGN(packed.q_norm, numbers_.Vector({{layer[each ? Slot::kQNorm : Slot::kAllQNorm]}}));
      KV_ASSIGN(packed.k_norm, numbers_.Vector({{layer[each ? Slot::kKNorm : Slot::kAllKNorm]}}));
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
      KV_ASSIGN(packed.post_norm.weight, numbers_.Vector({{layer[Slot::kFfnPostNorm]}}));
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
    KV_ASSIGN(norm.weight, numbers_.Vector({{layer[weight]}}));
    if (const MatrixSource* source = layer.Find(bias)) {
      KV_ASSIGN(norm.bias, numbers_.Vector({{*source}}));
    }
    return norm;
  }

  // Stacks matrices of a layer into one, and their biases.
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
      KV_ASSIGN(matrix.bias, numbers_.Vector(parts));
    }
    return matrix;
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
      KV_TRY(numbers_.PackRun({begin, first}, matrix.k, run));
      matrix.outputs += run.outputs;
    }
    return matrix;
  }

  const ImportedModel& model_;
  const std::optional<WeightChoice>& choice_;
  Arena& arena_;
  Filling* filling_;
  MatrixPacker numbers_;
  PackedPlan plan_;
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
