#include "model/packed_weights.h"

#include <cstring>
#include <initializer_list>
#include <string>

#include "base/bytes.h"
#include "base/result.h"
#include "simd/half.h"

namespace kvasir {
namespace {

WeightFormat FormatOf(DType dtype) {
  static_assert(static_cast<int>(DType::kF32) == static_cast<int>(WeightFormat::kF32) &&
                static_cast<int>(DType::kF16) == static_cast<int>(WeightFormat::kF16) &&
                static_cast<int>(DType::kBf16) == static_cast<int>(WeightFormat::kBf16));
  return static_cast<WeightFormat>(dtype);
}

// Rows of one stored tensor as part of a packed matrix.
struct Part {
  const TensorView* view;
  bool interleaved;  // see MatrixSource
};

// The stored row that holds output `row` of ours.
uint64_t StoredRow(const Part& part, uint64_t row, uint32_t head_dim) {
  if (!part.interleaved) return row;
  const uint64_t head = row / head_dim, i = row % head_dim, half = head_dim / 2;
  return head * head_dim + (i < half ? 2 * i : 2 * (i - half) + 1);
}

float NumberAt(const TensorView& view, uint64_t index) {
  if (view.dtype == DType::kF32) {
    float x;
    std::memcpy(&x, view.data + index * 4, sizeof(x));
    return x;
  }
  uint16_t h;
  std::memcpy(&h, view.data + index * 2, sizeof(h));
  return view.dtype == DType::kF16 ? FromF16(h) : FromBf16(h);
}

// Builds the weights into an arena, or, with an arena that only counts, adds up their bytes.
class Packer {
 public:
  Packer(const ImportedModel& model, Arena& arena, bool fill,
         const std::function<void(double)>& progress)
      : model_(model), arena_(arena), fill_(fill), progress_(progress) {}

  Status Build(PackedWeights& out) {
    const ModelConfig& c = model_.config;
    out.embedding = {model_.embedding.data, FormatOf(model_.embedding.dtype), c.hidden_size,
                     c.vocab_size};
    // It is used in place; a tied one is looked at when the head is packed.
    if (fill_ && model_.lm_head && !AllFinite(model_.embedding)) {
      return NotFinite(model_.embedding);
    }
    for (const LayerSource& layer : model_.layers) {
      PackedLayer packed{};
      KV_ASSIGN(packed.attention_norm, Vector({Part{&layer.attention_norm, false}}));
      KV_ASSIGN(packed.qkv, Matrix({&layer.q, &layer.k, &layer.v},
                                   {&layer.q_bias, &layer.k_bias, &layer.v_bias}));
      KV_ASSIGN(packed.o, Matrix({&layer.o}, {&layer.o_bias}));
      KV_ASSIGN(packed.ffn_norm, Vector({Part{&layer.ffn_norm, false}}));
      KV_ASSIGN(packed.gate_up,
                Matrix({&layer.gate, &layer.up}, {&layer.gate_bias, &layer.up_bias}));
      KV_ASSIGN(packed.down, Matrix({&layer.down}, {&layer.down_bias}));
      out.layers.push_back(packed);
      if (fill_ && progress_) progress_(double(out.layers.size()) / (model_.layers.size() + 1));
    }
    KV_ASSIGN(out.final_norm, Vector({Part{&model_.final_norm, false}}));
    const MatrixSource tied{model_.embedding, false};
    KV_ASSIGN(out.head, Matrix({model_.lm_head ? &*model_.lm_head : &tied}, {}));
    return {};
  }

 private:
  // Numbers of the parts one after another, widened. [sum of sizes], padded to 16 with zeros.
  Result<const float*> Vector(std::initializer_list<Part> parts) {
    uint64_t count = 0;
    for (const Part& part : parts) count += part.view->num_elements();
    float* numbers = arena_.TakeArray<float>(RoundUp(count, 16));
    if (!fill_) return numbers;
    for (const Part& part : parts) {
      for (uint64_t i = 0; i < part.view->num_elements(); ++i) {
        const float x = NumberAt(*part.view, StoredRow(part, i, model_.config.head_dim));
        if ((BitsOf(x) & 0x7f800000u) == 0x7f800000u) return NotFinite(*part.view);
        *numbers++ = x;
      }
    }
    return numbers - count;
  }

  Result<PackedMatrix> Matrix(std::initializer_list<const MatrixSource*> sources,
                              std::initializer_list<const std::optional<MatrixSource>*> biases) {
    PackedMatrix matrix;
    const TensorView& first = (*sources.begin())->view;
    matrix.k = static_cast<uint32_t>(first.shape[1]);
    matrix.format = FormatOf(first.dtype);
    for (const MatrixSource* source : sources) {
      matrix.outputs += static_cast<uint32_t>(source->view.shape[0]);
      // Stored types that differ meet in f32, which holds each of them exactly.
      if (source->view.dtype != first.dtype) matrix.format = WeightFormat::kF32;
    }
    const uint64_t panels = CeilDiv(matrix.outputs, kPanelOutputs);
    std::byte* data = arena_.Take(panels * kPanelOutputs * matrix.k * BytesOf(matrix.format));
    matrix.panels = data;
    if (fill_) {
      uint64_t output = 0;
      for (const MatrixSource* source : sources) {
        KV_TRY(FillRows(*source, matrix, output, data));
        output += source->view.shape[0];
      }
    }
    KV_ASSIGN(matrix.bias, Bias(biases));
    return matrix;
  }

  // Absent biases of a stacked matrix beside present ones do not occur: a config has all or none.
  Result<const float*> Bias(std::initializer_list<const std::optional<MatrixSource>*> biases) {
    if (biases.size() == 0 || !(*biases.begin())->has_value()) return nullptr;
    auto part = [](const std::optional<MatrixSource>* bias) {
      return Part{&(*bias)->view, (*bias)->interleaved_rope_rows};
    };
    const auto* b = biases.begin();
    if (biases.size() == 1) return Vector({part(b[0])});
    if (biases.size() == 2) return Vector({part(b[0]), part(b[1])});
    return Vector({part(b[0]), part(b[1]), part(b[2])});
  }

  Status FillRows(const MatrixSource& source, const PackedMatrix& matrix, uint64_t first_output,
                  std::byte* data) {
    const Part part{&source.view, source.interleaved_rope_rows};
    const bool same = FormatOf(source.view.dtype) == matrix.format;
    for (uint64_t row = 0; row < source.view.shape[0]; ++row) {
      const uint64_t stored = StoredRow(part, row, model_.config.head_dim) * matrix.k;
      const uint64_t output = first_output + row;
      const uint64_t at =
          output / kPanelOutputs * kPanelOutputs * matrix.k + output % kPanelOutputs;
      bool finite;
      if (same && matrix.format != WeightFormat::kF32) {
        finite = CopyRow<uint16_t>(source.view.data + stored * 2, matrix.k,
                                   reinterpret_cast<uint16_t*>(data) + at,
                                   matrix.format == WeightFormat::kF16 ? 0x7c00 : 0x7f80);
      } else if (same) {
        finite = CopyRow<uint32_t>(source.view.data + stored * 4, matrix.k,
                                   reinterpret_cast<uint32_t*>(data) + at, 0x7f800000u);
      } else {
        finite = true;
        float* to = reinterpret_cast<float*>(data) + at;
        for (uint32_t k = 0; k < matrix.k; ++k, to += kPanelOutputs) {
          *to = NumberAt(source.view, stored + k);
          finite &= (BitsOf(*to) & 0x7f800000u) != 0x7f800000u;
        }
      }
      if (!finite) return NotFinite(source.view);
    }
    return {};
  }

  // Copies k numbers to a column of a panel; whether none has an exponent of all ones.
  template <typename Bits>
  static bool CopyRow(const std::byte* from, uint32_t k, Bits* to, Bits exponent) {
    bool finite = true;
    for (uint32_t i = 0; i < k; ++i, to += kPanelOutputs) {
      Bits bits;
      std::memcpy(&bits, from + size_t{i} * sizeof(Bits), sizeof(Bits));
      finite &= (bits & exponent) != exponent;
      *to = bits;
    }
    return finite;
  }

  static bool AllFinite(const TensorView& view) {
    const auto all = [&, count = view.num_elements()](auto exponent) {
      bool finite = true;
      for (uint64_t i = 0; i < count; ++i) {
        auto bits = exponent;
        std::memcpy(&bits, view.data + i * sizeof(bits), sizeof(bits));
        finite &= (bits & exponent) != exponent;
      }
      return finite;
    };
    if (view.dtype == DType::kF32) return all(uint32_t{0x7f800000u});
    return all(static_cast<uint16_t>(view.dtype == DType::kF16 ? 0x7c00 : 0x7f80));
  }

  static tl::unexpected<Error> NotFinite(const TensorView& view) {
    return Fail(Code::kCorruption,
                "weights: tensor {} holds NaN or infinity: the file is damaged or was exported "
                "wrongly; fetch or export it again",
                view.name);
  }

  const ImportedModel& model_;
  Arena& arena_;
  bool fill_;
  const std::function<void(double)>& progress_;
};

}  // namespace

uint64_t PackedBytes(const ImportedModel& model) {
  PackedWeights counted;
  (void)Packer(model, counted.arena, false, nullptr).Build(counted);
  return counted.arena.used();
}

Result<PackedWeights> Pack(const ImportedModel& model,
                           const std::function<void(double)>& progress) {
  PackedWeights weights;
  KV_ASSIGN(weights.arena, Arena::Create(PackedBytes(model)));
  KV_TRY(Packer(model, weights.arena, true, progress).Build(weights));
  return weights;
}

}  // namespace kvasir
