#include "model/runner.h"

#include <algorithm>
#include <utility>

#include "backend/backend.h"
#include "backend/packed_weights.h"
#include "base/check.h"
#include "base/result.h"
#include "import/architecture.h"
#include "model/activations.h"
#include "model/backend_options.h"
#include "model/encoder_kv.h"

namespace kvasir {
namespace {

class ComposedRunner final : public Runner {
 public:
  ComposedRunner(ImportedModel model, PackedWeights weights, Arena arena,
                 std::optional<EncoderKv> encoder_kv, const RunnerOptions& options,
                 uint32_t quant_columns)
      : model_(std::move(model)),
        weights_(std::move(weights)),
        options_(options),
        layout_(LayoutFor(model_.config, options)),
        encoder_kv_(std::move(encoder_kv)),
        arena_(std::move(arena)),
        a_(model_.config, options.max_rows, options.max_logit_rows, arena_),
        backend_(MakeCpuBackend(BackendOptionsFor(model_.config, options, quant_columns), arena_)) {
  }

  Status status() const { return backend_->status(); }

  Status Step(std::span<const StepSequence> sequences, std::span<const TokenId> tokens) override {
    const ModelConfig& c = model_.config;
    const uint32_t rows = static_cast<uint32_t>(tokens.size());
    KV_CHECK(rows > 0 && rows <= options_.max_rows);
    KV_TRY(CheckTokens(tokens, c.vocab_size));
    for (const StepSequence& s : sequences) {
      KV_CHECK(s.num_rows > 0 && s.first_row + s.num_rows <= rows);
      KV_CHECK(s.tables.size() == layout_.num_groups());
      KV_CHECK(s.position + s.num_rows <= s.tables[0].size() * layout_.block_tokens());
      KV_CHECK(s.position + s.num_rows <= options_.max_positions || s.is_bounded() ||
               layout_.num_full_groups() == 0);
      KV_CHECK(weights_.positions == nullptr || s.position + s.num_rows <= c.max_positions);
      KV_CHECK((s.source_tokens > 0) == (layout_.num_cross_groups() > 0));
      KV_CHECK(s.adapters.empty() || !c.encoder);
    }
    backend_->Begin(sequences, rows);
    Embed(weights_.embedding, weights_.positions, tokens);
    for (uint32_t layer = 0; layer < c.num_layers; ++layer) {
      Layer(weights_.layers[layer], layer, rows);
    }
    Norm(weights_.layers.back().spec.norm, weights_.final_norm, a_.x, rows);
    backend_->CheckFinite(a_.normed, a_.hidden_stride, c.hidden_size);
    return {};
  }

  Status Encode(std::span<const StepSource> sources, std::span<const TokenId> tokens) override {
    const ModelConfig& c = model_.config;
    const uint32_t rows = static_cast<uint32_t>(tokens.size());
    KV_CHECK(c.encoder && rows > 0 && rows <= options_.max_rows);
    KV_CHECK(!sources.empty() && sources.size() <= kMaxSources);
    KV_TRY(CheckTokens(tokens, weights_.source_embedding.vocab));
    for (const StepSource& s : sources) {
      KV_CHECK(s.num_rows > 0 && s.first_row + s.num_rows <= rows);
      KV_CHECK(s.num_rows <= c.max_positions && s.tables.size() == layout_.num_groups());
      KV_CHECK(s.num_rows <= s.tables.back().size() * layout_.block_tokens());
    }
    backend_->BeginEncoder(encoder_kv_->Begin(sources), rows);
    Embed(weights_.source_embedding, weights_.source_positions, tokens);
    for (const PackedLayer& layer : weights_.encoder_layers) Layer(layer, 0, rows);
    Norm(weights_.encoder_layers.back().spec.norm, weights_.encoder_norm, a_.x, rows);
    backend_->CheckFinite(a_.normed, a_.hidden_stride, c.hidden_size);
    source_finite_.assign(sources.size(), true);
    FindNotFinite(sources);
    PackSources(sources, rows);
    return {};
  }
  bool source_finite(uint32_t source) const override { return source_finite_[source]; }

  std::span<const float> hidden(uint32_t row) const override {
    return {a_.normed + row * a_.hidden_stride, model_.config.hidden_size};
  }
  bool finite(uint32_t row) const override { return backend_->finite(row); }

  void Logits(std::span<const float* const> hidden, float* logits) override {
    KV_CHECK(hidden.size() <= options_.max_logit_rows);
    const ModelConfig& c = model_.config;
    const auto rows = static_cast<uint32_t>(hidden.size());
    for (size_t i = 0; i < rows; ++i) {
      std::copy_n(hidden[i], c.hidden_size, a_.head + i * a_.hidden_stride);
    }
    backend_->MatMul(weights_.head, a_.head, a_.hidden_stride, rows, logits, c.vocab_size,
                     Backend::Into::kReplace);
    if (c.logits_softcap) {
      backend_->SoftCap(static_cast<float>(*c.logits_softcap), c.vocab_size, rows, logits,
                        c.vocab_size);
    }
    if (c.logits_scaling == 1) return;
    const auto scaling = static_cast<float>(c.logits_scaling);
    for (size_t i = 0; i < size_t{rows} * c.vocab_size; ++i) logits[i] /= scaling;
  }

  void ZeroScratch() override {
    arena_.Zero();
    backend_->OnScratchZeroed();
    if (encoder_kv_) encoder_kv_->Zero();
  }

  uint64_t kv_read_bytes() const override { return backend_->kv_read_bytes(); }
  uint64_t weight_read_bytes() const override { return backend_->weight_read_bytes(); }
  uint32_t threads() const override { return backend_->threads(); }
  void ForEach(uint32_t items, const std::function<void(uint32_t item)>& fn) override {
    backend_->ForEach(items, fn);
  }

  const ModelConfig& config() const override { return model_.config; }
  const ImportedModel& source() const override { return model_; }
  uint64_t weights_bytes() const override { return weights_.arena.used(); }
  std::shared_ptr<const MappedFile> image() const override { return weights_.image; }
  uint64_t scratch_bytes() const override {
    return arena_.used() + (encoder_kv_ ? encoder_kv_->arena_bytes() : 0);
  }

 private:
  static Status CheckTokens(std::span<const TokenId> tokens, uint32_t vocab_size) {
    for (TokenId token : tokens) {
      if (token >= 0 && static_cast<uint32_t>(token) < vocab_size) continue;
      return Fail(Code::kInvalidArgument, "token {} is outside the model's vocabulary of {}", token,
                  vocab_size);
    }
    return {};
  }

  // Packs K and V of all decoder layers' attention over sources, from the encoder's output in
  // `normed`.
  void PackSources(std::span<const StepSource> sources, uint32_t rows) {
    backend_->BeginSources(encoder_kv_->Into(sources), rows);
    const uint32_t num_layers = model_.config.num_layers;
    for (uint32_t layer = 0; layer < num_layers; ++layer) {
      backend_->MatMul(weights_.layers[layer].cross.kv, a_.normed, a_.hidden_stride, rows, a_.qkv,
                       a_.qkv_stride, Backend::Into::kReplace);
      backend_->PackKeyValues(num_layers + layer, a_.qkv, a_.qkv_stride);
    }
    FindNotFinite(sources);
  }

  void FindNotFinite(std::span<const StepSource> sources) {
    for (size_t i = 0; i < sources.size(); ++i) {
      for (uint32_t row = 0; row < sources[i].num_rows; ++row) {
        if (!backend_->finite(sources[i].first_row + row)) source_finite_[i] = false;
      }
    }
  }

  // positions: nullptr where RoPE has them.
  void Embed(const EmbeddingTable& table, const float* positions, std::span<const TokenId> tokens) {
    const ModelConfig& c = model_.config;
    backend_->Embed(table, tokens, a_.x, a_.hidden_stride);
    if (c.embedding_multiplier != 1) {
      backend_->Scale(static_cast<float>(c.embedding_multiplier), c.hidden_size, a_.x,
                      a_.hidden_stride);
    }
    if (positions != nullptr) {
      backend_->AddPositions(positions, c.hidden_size, a_.x, a_.hidden_stride);
    }
  }

  // x += attention(norm(x)); x += ffn(norm(x)), with norms on inputs, on outputs, or on both; with
  // a source, x += attention over it (norm(x)) between them. `layer`: of the KvLayout.
  void Layer(const PackedLayer& w, uint32_t layer, uint32_t rows) {
    Attention(w, layer, rows, BranchInput(w.spec, w.attention.norm, rows));
    AddBranch(w.spec, {w.attention.o, layer, AdapterInput::kO}, w.attention.post_norm, a_.attention,
              a_.attention_stride, rows);
    if (w.spec.cross) Cross(w, layer, rows);
    const float* input = BranchInput(w.spec, w.ffn.norm, rows);
    if (w.spec.ffn == FfnKind::kExperts) return Experts(w.spec, w.ffn, rows, input);
    Ffn(w.spec, w.ffn, layer, rows, input);
    AddBranch(w.spec, {w.ffn.down, layer, AdapterInput::kDown}, w.ffn.post_norm, a_.ffn,
              a_.ffn_stride, rows);
  }

  void Cross(const PackedLayer& w, uint32_t layer, uint32_t rows) {
    Backend& b = *backend_;
    const uint32_t cross = model_.config.num_layers + layer;
    const float* input = BranchInput(w.spec, w.cross.norm, rows);
    b.MatMul(w.cross.q, input, a_.hidden_stride, rows, a_.qkv, a_.qkv_stride,
             Backend::Into::kReplace);
    b.PrepareQueries(cross, a_.qkv, a_.qkv_stride);
    b.Attend(cross, a_.qkv, a_.qkv_stride, a_.attention, a_.attention_stride);
    AddBranch(w.spec, {w.cross.o, layer, std::nullopt}, {}, a_.attention, a_.attention_stride,
              rows);
  }

  // normed = norm(from).
  void Norm(NormKind kind, const PackedNorm& w, const float* from, uint32_t rows) {
    backend_->Norm(kind, w, from, a_.hidden_stride, model_.config.hidden_size,
                   static_cast<float>(model_.config.rms_norm_eps), rows, a_.normed);
  }

  const float* BranchInput(const LayerSpec& spec, const PackedNorm& norm, uint32_t rows) {
    if (!NormsInput(spec)) return a_.x;
    Norm(spec.norm, norm, a_.x, rows);
    return a_.normed;
  }

  // The last matrix of a branch, and what adapters call it.
  struct BranchEnd {
    const PackedMatrix& w;
    uint32_t layer;
    std::optional<AdapterInput> input;  // absent: adapters do not change it
  };

  // x += m * norm(w y), with a norm after the branch and a multiplier where the model has them.
  void AddBranch(const LayerSpec& spec, const BranchEnd& end, const PackedNorm& norm,
                 const float* y, size_t y_stride, uint32_t rows) {
    Backend& b = *backend_;
    const auto multiplier = static_cast<float>(model_.config.residual_multiplier);
    const bool is_direct = !NormsOutput(spec) && multiplier == 1;
    float* const to = is_direct ? a_.x : a_.normed;
    b.MatMul(end.w, y, y_stride, rows, to, a_.hidden_stride,
             is_direct ? Backend::Into::kAdd : Backend::Into::kReplace);
    if (end.input) {
      b.Adapt(end.layer, *end.input, y, y_stride, {{{to, a_.hidden_stride}, {}, {}}});
    }
    if (!is_direct) AddNormed(spec, norm, rows);
  }

  // x += m * norm(normed), as AddBranch.
  void AddNormed(const LayerSpec& spec, const PackedNorm& norm, uint32_t rows) {
    if (NormsOutput(spec)) Norm(spec.norm, norm, a_.normed, rows);
    backend_->AddScaled(static_cast<float>(model_.config.residual_multiplier), a_.normed,
                        a_.hidden_stride, model_.config.hidden_size, rows, a_.x);
  }

  void Experts(const LayerSpec& spec, const PackedFfn& w, uint32_t rows, const float* input) {
    backend_->Experts(w, model_.config.experts->routing, spec.activation, input, a_.hidden_stride,
                      rows, a_.normed);
    AddNormed(spec, w.post_norm, rows);
  }

  // attention = attention(qkv(input)).
  void Attention(const PackedLayer& packed, uint32_t layer, uint32_t rows, const float* input) {
    const PackedAttention& w = packed.attention;
    HeadSteps steps{packed.spec.head_norm, w.q_norm, w.k_norm,
                    static_cast<float>(model_.config.rms_norm_eps), std::nullopt};
    if (packed.spec.rotated) steps.rope = packed.spec.local_rope ? 1 : 0;
    Backend& b = *backend_;
    b.MatMul(w.qkv, input, a_.hidden_stride, rows, a_.qkv, a_.qkv_stride, Backend::Into::kReplace);
    float* const k = a_.qkv + size_t{model_.config.num_heads} * model_.config.head_dim;
    float* const v = k + size_t{model_.config.num_kv_heads} * model_.config.head_dim;
    b.Adapt(layer, AdapterInput::kQkv, input, a_.hidden_stride,
            {{{a_.qkv, a_.qkv_stride}, {k, a_.qkv_stride}, {v, a_.qkv_stride}}});
    b.RotateAndPack(layer, steps, a_.qkv, a_.qkv_stride, a_.attention, a_.attention_stride);
    b.Attend(layer, a_.qkv, a_.qkv_stride, a_.attention, a_.attention_stride);
  }

  // ffn = what `down` multiplies.
  void Ffn(const LayerSpec& spec, const PackedFfn& w, uint32_t layer, uint32_t rows,
           const float* input) {
    Backend& b = *backend_;
    if (b.Adapts(layer, AdapterInput::kGateUp)) {
      return b.MatMulAdapted(layer, w.gate, w.up, spec.activation, input, a_.hidden_stride, rows,
                             a_.ffn, a_.ffn_stride);
    }
    switch (spec.ffn) {
      case FfnKind::kGated:
        return b.MatMulGated(w.gate, w.up, spec.activation, input, a_.hidden_stride, rows, a_.ffn,
                             a_.ffn_stride);
      case FfnKind::kPlain:
        return b.MatMulActivated(w.up, spec.activation, input, a_.hidden_stride, rows, a_.ffn,
                                 a_.ffn_stride);
      case FfnKind::kExperts:
        break;
    }
  }

  ImportedModel model_;
  PackedWeights weights_;
  RunnerOptions options_;
  KvLayout layout_;
  std::optional<EncoderKv> encoder_kv_;
  std::vector<bool> source_finite_;
  Arena arena_;
  Activations a_;
  std::unique_ptr<Backend> backend_;
};

uint64_t ScratchBytes(const ModelConfig& config, const RunnerOptions& options,
                      uint32_t quant_columns) {
  Arena counter;
  Activations activations(config, options.max_rows, options.max_logit_rows, counter);
  return counter.used() + CpuBackendScratchBytes(BackendOptionsFor(config, options, quant_columns));
}

uint64_t EncoderKvBytes(const ModelConfig& config, const RunnerOptions& options) {
  return config.encoder ? EncoderKv::Bytes(*config.encoder, options.max_rows) : 0;
}

}  // namespace

Status Runner::Encode(std::span<const StepSource>, std::span<const TokenId>) {
  KV_CHECK(false);  // a runner of such a model overrides it
}
bool Runner::source_finite(uint32_t) const { KV_CHECK(false); }

Runner::Plan Runner::PlanFor(const ImportedModel& model, const RunnerOptions& options) {
  const PackedPlan packed = PlanPacked(model, options.weights);
  return {packed.arena_bytes, packed.token_bytes, packed.mapped_bytes, packed.load_bytes,
          ScratchBytes(model.config, options, packed.quant_columns) +
              EncoderKvBytes(model.config, options)};
}

KvLayout Runner::LayoutFor(const ModelConfig& config, const RunnerOptions& options) {
  BlockShape shape;
  shape.block_tokens = options.block_tokens;
  shape.num_layers = config.encoder ? 2 * config.num_layers : config.num_layers;
  shape.kv_heads = config.num_kv_heads;
  shape.head_dim = config.head_dim;
  shape.k_format.assign(shape.num_layers, options.kv_format.k);
  shape.v_format.assign(shape.num_layers, options.kv_format.v);
  for (const uint32_t layer : options.kv_skip_layers) {
    KV_CHECK(layer < config.num_layers);
    for (uint32_t i = layer; i < shape.num_layers; i += config.num_layers) {
      shape.k_format[i] = shape.v_format[i] = KvFormat::kF16;
    }
  }
  std::vector<KvReach> reaches(shape.num_layers);
  for (uint32_t i = config.num_layers; i < shape.num_layers; ++i) {
    reaches[i].kind = KvReach::Kind::kCross;
  }
  for (uint32_t layer = 0; layer < config.num_layers; ++layer) {
    const uint32_t window = LayerOf(config, layer).window;
    if (window > 0) reaches[layer] = {KvReach::Kind::kWindow, window};
  }
  const GroupingCost cost{
      .layer_token_bytes = BlockLayout(shape).token_bytes() / shape.num_layers,
      .block_tokens = options.block_tokens,
      .tokens = options.max_positions > 0 ? options.max_positions : config.max_positions};
  const uint32_t slots = ChooseSlots(reaches, config.max_positions, cost);
  return KvLayout(shape, reaches, slots, config.max_positions);
}

Result<std::unique_ptr<Runner>> Runner::Create(ImportedModel model, const RunnerOptions& options,
                                               const std::function<void(double)>& progress) {
  std::optional<EncoderKv> encoder_kv;
  if (model.config.encoder) {
    KV_ASSIGN(encoder_kv, EncoderKv::Create(*model.config.encoder, options.max_rows));
  }
  if (model.config.head_dim > ConfigLimits::kHeadDim || model.config.head_dim % 2 != 0) {
    return Fail(Code::kUnsupported, "model {}: head_dim {}: even sizes up to {} are supported",
                model.name, model.config.head_dim, ConfigLimits::kHeadDim);
  }
  KV_ASSIGN(PackedWeights weights,
            LoadWeights(model, options.weights, options.threads, options.images, progress));
  const uint32_t quant_columns = weights.quant_columns;
  KV_ASSIGN(Arena arena, Arena::Create(ScratchBytes(model.config, options, quant_columns)));
  auto runner =
      std::make_unique<ComposedRunner>(std::move(model), std::move(weights), std::move(arena),
                                       std::move(encoder_kv), options, quant_columns);
  KV_TRY(runner->status());
  return runner;
}

}  // namespace kvasir
