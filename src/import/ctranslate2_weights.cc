// Names the variables of a CTranslate2 model as transformers names those of an M2M-100.
#include <cmath>
#include <cstring>
#include <limits>
#include <set>

#include "base/result.h"
#include "import/ctranslate2.h"
#include "import/float_numbers.h"

namespace kvasir {
namespace {

constexpr uint32_t kNewestRevision = 7;  // of TransformerSpec
constexpr uint32_t kMaxSize = 1u << 24;  // of a dimension
constexpr const char* kKinds =
    "TransformerSpec, TransformerBase or TransformerBig, with an encoder";

// Fields of other kinds of models, and what runs on a machine: only its absence, or 0, is
// understood.
constexpr std::string_view kMustBeZero[] = {"alibi", "alibi_use_positive_positions", "scale_alibi",
                                            "multi_query_attention", "start_from_zero_embedding"};
constexpr std::string_view kIgnored[] = {"alignment_heads", "alignment_layer", "embeddings_merge"};

class Ct2Describer {
 public:
  Ct2Describer(const Ct2File& model, const std::string& file) : model_(model), file_(file) {}

  Result<Ct2Weights> Run() {
    KV_TRY(CheckSpec());
    for (const bool encoder : {true, false}) KV_TRY(DescribeStack(encoder));
    KV_TRY(TakeMatrix("decoder/projection", {{"lm_head", out_.shape.decoder.vocab_size}},
                      out_.shape.hidden_size));
    for (const auto& [name, variable] : model_.variables) {
      // The whole model's attributes are texts and flags of ReadCt2Folder.
      if (taken_.contains(name) || name.find('/') == name.npos) continue;
      return Fail(Code::kUnsupported,
                  "{}: the model has '{}', which models of this kind ({}, M2M-100's layers) do not "
                  "have",
                  file_, name.substr(0, 100), model_.spec);
    }
    return std::move(out_);
  }

 private:
  struct Part {
    std::string name;
    uint64_t rows;
  };

  Status CheckSpec() const {
    const bool old = model_.spec == "TransformerBase" || model_.spec == "TransformerBig";
    if (!old && model_.spec != "TransformerSpec") {
      return Fail(Code::kUnsupported, "{}: a model of the kind {} is not read; {} is", file_,
                  model_.spec.substr(0, 60), kKinds);
    }
    if (model_.revision <= kNewestRevision) return {};
    return Fail(Code::kUnsupported,
                "{}: revision {} of {} is newer than {}, the last that is known", file_,
                model_.revision, model_.spec, kNewestRevision);
  }

  tl::unexpected<Error> Wrong(const std::string& name, const std::string& what) const {
    const auto found = model_.variables.find(name);
    const std::string place =
        found == model_.variables.end() ? "" : fmt::format(" at byte {}", found->second.offset);
    return Fail(Code::kCorruption, "{}: {}{}: {}; convert the model again", file_, name, place,
                what);
  }

  const Ct2Variable* Take(const std::string& name) {
    const auto found = model_.variables.find(name);
    if (found == model_.variables.end()) return nullptr;
    taken_.insert(name);
    return &found->second;
  }

  // Reads one whole number; fallback where it is absent.
  Result<int64_t> Whole(const std::string& name, int64_t fallback) {
    const Ct2Variable* variable = Take(name);
    if (variable == nullptr) return fallback;
    const bool is_float = variable->type == Ct2Type::kF32 || variable->type == Ct2Type::kF16 ||
                          variable->type == Ct2Type::kBf16;
    if (variable->count() != 1 || is_float) return Wrong(name, "not one whole number");
    return static_cast<int64_t>(Value(*variable));
  }

  // REQUIRES: it has one number.
  static float Value(const Ct2Variable& variable) {
    const auto integer = [&]<typename Integer>(Integer value) {
      std::memcpy(&value, variable.bytes.data(), sizeof(value));
      return static_cast<float>(value);
    };
    switch (variable.type) {
      case Ct2Type::kI8:
        return integer(int8_t{});
      case Ct2Type::kI16:
        return integer(int16_t{});
      case Ct2Type::kI32:
        return integer(int32_t{});
      default:
        break;
    }
    float value = 0;
    Widen(DTypeOf(variable.type), variable.bytes.data(), 1, &value);
    return value;
  }

  // Takes the scales of `name`, if it has them: finite and not 0, so that every quotient is finite.
  Result<std::optional<Ct2Variable>> TakeScale(const std::string& name, const Ct2Variable& weights,
                                               uint64_t rows) {
    const std::string scale_name = name + "_scale";
    const Ct2Variable* scale = Take(scale_name);
    const bool integers = weights.type == Ct2Type::kI8 || weights.type == Ct2Type::kI16;
    if (weights.type == Ct2Type::kI32) return Wrong(name, "weights are never 32-bit integers");
    if (integers != (scale != nullptr)) {
      return Wrong(name, integers ? "integers without a scale" : "a scale, but no integers");
    }
    if (scale == nullptr) return std::nullopt;
    if (scale->type != Ct2Type::kF32 || (scale->count() != 1 && scale->count() != rows)) {
      return Wrong(scale_name, fmt::format("not one f32 or {} of them", rows));
    }
    for (uint64_t i = 0; i < scale->count(); ++i) {
      float value;
      std::memcpy(&value, scale->bytes.data() + 4 * i, 4);
      if (!std::isfinite(value) || value < std::numeric_limits<float>::min()) {
        return Wrong(scale_name, fmt::format("scale {} is not a positive number", i));
      }
    }
    return *scale;
  }

  // Takes base/weight, [rows of all parts][columns], and base/bias, which may be missing, as the
  // parts NAME.weight and NAME.bias.
  Status TakeMatrix(const std::string& base, const std::vector<Part>& parts, uint64_t columns) {
    uint64_t rows = 0;
    for (const Part& part : parts) rows += part.rows;
    KV_TRY(TakeParts(base + "/weight", ".weight", parts, {rows, columns}));
    if (!model_.variables.contains(base + "/bias")) return {};
    return TakeParts(base + "/bias", ".bias", parts, {rows});
  }

  Status TakeNorm(const std::string& base, const std::string& name) {
    const std::vector<Part> parts = {{name, out_.shape.hidden_size}};
    KV_TRY(TakeParts(base + "/gamma", ".weight", parts, {out_.shape.hidden_size}));
    return TakeParts(base + "/beta", ".bias", parts, {out_.shape.hidden_size});
  }

  Status TakeParts(const std::string& name, const char* suffix, const std::vector<Part>& parts,
                   const std::vector<uint64_t>& shape) {
    const Ct2Variable* weights = Take(name);
    if (weights == nullptr) return Wrong(name, "missing");
    if (weights->shape != shape) {
      return Wrong(name, fmt::format("its shape is [{}], not [{}]", fmt::join(weights->shape, ", "),
                                     fmt::join(shape, ", ")));
    }
    KV_ASSIGN(const auto scale, TakeScale(name, *weights, shape[0]));
    uint64_t row = 0;
    for (const Part& part : parts) {
      std::vector<uint64_t> own = shape;
      own[0] = part.rows;
      out_.tensors.push_back({part.name + suffix, std::move(own), *weights, scale, row});
      row += part.rows;
    }
    return {};
  }

  // Returns the rows of a matrix whose size nothing else says.
  Result<uint32_t> RowsOf(const std::string& name) const {
    const auto found = model_.variables.find(name);
    if (found == model_.variables.end()) return Wrong(name, "missing");
    const auto& shape = found->second.shape;
    if (shape.size() != 2 || shape[0] == 0 || shape[0] > kMaxSize || shape[1] == 0 ||
        shape[1] > kMaxSize) {
      return Wrong(name,
                   fmt::format("its shape is [{}], not that of a matrix", fmt::join(shape, ", ")));
    }
    return static_cast<uint32_t>(shape[0]);
  }

  // Reads the factor of the embedding: a flag or the factor itself; sqrt(hidden_size) if it is
  // absent.
  Result<float> EmbeddingScale(const std::string& name) {
    const float root = std::sqrt(static_cast<float>(out_.shape.hidden_size));
    const Ct2Variable* variable = Take(name);
    if (variable == nullptr) return root;
    if (variable->count() != 1) return Wrong(name, "not one number");
    const float value = Value(*variable);
    if (variable->type == Ct2Type::kI8) return value != 0 ? root : 1.0f;
    if (!std::isfinite(value)) return Wrong(name, "not a finite number");
    return value;
  }

  Status DescribeStack(bool encoder) {
    const std::string stack = encoder ? "encoder" : "decoder", name = "model." + stack;
    Ct2Stack& shape = encoder ? out_.shape.encoder : out_.shape.decoder;
    const bool listed = model_.variables.contains(stack + "/embeddings_0/weight");
    const std::string embeddings = stack + (listed ? "/embeddings_0" : "/embeddings");
    KV_ASSIGN(shape.vocab_size, RowsOf(embeddings + "/weight"));
    if (encoder) {
      out_.shape.hidden_size =
          static_cast<uint32_t>(model_.variables.find(embeddings + "/weight")->second.shape[1]);
    }
    KV_TRY(TakeMatrix(embeddings, {{name + ".embed_tokens", shape.vocab_size}},
                      out_.shape.hidden_size));
    KV_TRY(TakeOptions(stack, &shape));
    KV_TRY(TakePositions(stack, encoder));
    const std::string norm = stack + "/layer_norm";
    shape.has_final_norm = model_.variables.contains(norm + "/gamma");
    if (shape.has_final_norm) KV_TRY(TakeNorm(norm, name + ".layer_norm"));
    while (model_.variables.contains(
        fmt::format("{}/layer_{}/ffn/linear_0/weight", stack, shape.layers))) {
      KV_TRY(DescribeLayer(fmt::format("{}/layer_{}/", stack, shape.layers),
                           fmt::format("{}.layers.{}.", name, shape.layers), encoder, &shape));
      ++shape.layers;
    }
    if (shape.layers == 0) return Wrong(stack + "/layer_0/ffn/linear_0/weight", "missing");
    return {};
  }

  Status TakeOptions(const std::string& stack, Ct2Stack* shape) {
    KV_ASSIGN(const int64_t heads,
              Whole(stack + "/num_heads", model_.spec == "TransformerBig" ? 16 : 8));
    if (heads <= 0 || out_.shape.hidden_size % heads != 0) {
      return Wrong(stack + "/num_heads",
                   fmt::format("{} heads of a size of {}", heads, out_.shape.hidden_size));
    }
    shape->heads = static_cast<uint32_t>(heads);
    KV_ASSIGN(const int64_t pre_norm, Whole(stack + "/pre_norm", 1));
    shape->norm_first = pre_norm != 0;
    KV_ASSIGN(const int64_t activation, Whole(stack + "/activation", 0));
    if (activation < 0 || activation > static_cast<int64_t>(Ct2Activation::kGelu)) {
      return Fail(Code::kUnsupported,
                  "{}: {}/activation {} is not supported (known: 0 relu, 1 gelu_tanh, 2 silu, 3 "
                  "gelu)",
                  file_, stack, activation);
    }
    shape->activation = static_cast<Ct2Activation>(activation);
    KV_ASSIGN(shape->embedding_scale, EmbeddingScale(stack + "/scale_embeddings"));
    for (const std::string_view option : kMustBeZero) {
      const std::string name = stack + "/" + std::string(option);
      KV_ASSIGN(const int64_t value, Whole(name, 0));
      if (value != 0) return Fail(Code::kUnsupported, "{}: {} is not supported", file_, name);
    }
    for (const std::string_view option : kIgnored) Take(stack + "/" + std::string(option));
    return {};
  }

  Status TakePositions(const std::string& stack, bool encoder) {
    const std::string name = stack + "/position_encodings/encodings";
    const bool has = model_.variables.contains(name);
    if (!encoder && has != out_.shape.max_positions.has_value()) {
      return Wrong(name, "encoder and decoder do not both have it");
    }
    if (!has) return {};
    KV_ASSIGN(const uint32_t rows, RowsOf(name));
    if (!encoder && rows != out_.shape.max_positions) {
      return Wrong(name, fmt::format("{} positions, but {} of the encoder", rows,
                                     *out_.shape.max_positions));
    }
    out_.shape.max_positions = rows;
    return TakeParts(name, "s", {{fmt::format("model.{}.embed_positions.weight", stack), rows}},
                     {rows, out_.shape.hidden_size});
  }

  Status DescribeLayer(const std::string& from, const std::string& to, bool encoder,
                       Ct2Stack* shape) {
    const uint64_t hidden = out_.shape.hidden_size;
    const auto proj = [&](const char* attention, const char* part) {
      return Part{to + attention + "." + part + "_proj", hidden};
    };
    const std::string self = from + "self_attention/";
    KV_TRY(TakeNorm(self + "layer_norm", to + "self_attn_layer_norm"));
    KV_TRY(TakeMatrix(self + "linear_0",
                      {proj("self_attn", "q"), proj("self_attn", "k"), proj("self_attn", "v")},
                      hidden));
    KV_TRY(TakeMatrix(self + "linear_1", {proj("self_attn", "out")}, hidden));
    if (!encoder) {
      const std::string cross = from + "attention/";
      KV_TRY(TakeNorm(cross + "layer_norm", to + "encoder_attn_layer_norm"));
      KV_TRY(TakeMatrix(cross + "linear_0", {proj("encoder_attn", "q")}, hidden));
      KV_TRY(TakeMatrix(cross + "linear_1", {proj("encoder_attn", "k"), proj("encoder_attn", "v")},
                        hidden));
      KV_TRY(TakeMatrix(cross + "linear_2", {proj("encoder_attn", "out")}, hidden));
    }
    const std::string ffn = from + "ffn/";
    KV_TRY(TakeNorm(ffn + "layer_norm", to + "final_layer_norm"));
    KV_ASSIGN(const uint32_t size, RowsOf(ffn + "linear_0/weight"));
    if (shape->layers == 0) shape->ffn_size = size;
    KV_TRY(TakeMatrix(ffn + "linear_0", {{to + "fc1", shape->ffn_size}}, hidden));
    return TakeMatrix(ffn + "linear_1", {{to + "fc2", hidden}}, shape->ffn_size);
  }

  const Ct2File& model_;
  const std::string& file_;
  Ct2Weights out_;
  std::set<std::string, std::less<>> taken_;
};

}  // namespace

Result<Ct2Weights> DescribeCt2(const Ct2File& model, const std::string& file) {
  return Ct2Describer(model, file).Run();
}

}  // namespace kvasir
