// Writes CTranslate2 files for tests, variable by variable.
#pragma once

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/random.h"
#include "import/ctranslate2.h"

namespace kvasir::ct2_file {

template <typename T>
std::string Bytes(const std::vector<T>& numbers) {
  std::string bytes(numbers.size() * sizeof(T), '\0');
  std::memcpy(bytes.data(), numbers.data(), bytes.size());
  return bytes;
}
inline std::string U32(uint32_t x) { return Bytes(std::vector{x}); }
inline std::string Text(const std::string& text) {
  return Bytes(std::vector{static_cast<uint16_t>(text.size() + 1)}) + text + '\0';
}
inline std::string Variable(const std::string& name, const std::vector<uint32_t>& shape, int type,
                            const std::string& bytes) {
  return Text(name) + static_cast<char>(shape.size()) + Bytes(shape) + static_cast<char>(type) +
         U32(static_cast<uint32_t>(bytes.size())) + bytes;
}
inline std::string Head(const std::string& spec, uint32_t revision, uint32_t num_variables) {
  return U32(6) + Text(spec) + U32(revision) + U32(num_variables);
}

// How matrices of a model are stored: as integers, or as the quotients that these stand for.
enum class Stored { kI8, kI16, kQuotientsOfI8, kQuotientsOfI16 };

// A pre-norm Transformer of one layer in each half, with sinusoids, two vocabularies and a bias of
// the output head; the numbers are random, and the same ones for all ways of storing them.
class SmallModel {
 public:
  static constexpr uint32_t kHidden = 8, kFfn = 12, kSourceVocab = 11, kTargetVocab = 9;

  explicit SmallModel(Stored stored) : stored_(stored) {
    Matrix("encoder/embeddings/weight", kSourceVocab, kHidden);
    Matrix("decoder/embeddings/weight", kTargetVocab, kHidden);
    for (const std::string stack : {"encoder", "decoder"}) {
      const std::string layer = stack + "/layer_0/";
      Attention(layer + "self_attention/", {3, 1});
      if (stack == "decoder") Attention(layer + "attention/", {1, 2, 1});
      Norm(layer + "ffn/layer_norm");
      Linear(layer + "ffn/linear_0", kFfn, kHidden);
      Linear(layer + "ffn/linear_1", kHidden, kFfn);
      Norm(stack + "/layer_norm");
      Add(stack + "/num_heads", {}, 2, Bytes(std::vector<int16_t>{2}));
    }
    Linear("decoder/projection", kTargetVocab, kHidden);
  }

  std::string File() const { return Head("TransformerSpec", 7, count_) + variables_ + U32(0); }
  // Writes model.bin, source_vocabulary.txt and target_vocabulary.txt.
  void WriteTo(const std::filesystem::path& folder) const {
    std::filesystem::create_directories(folder);
    std::ofstream(folder / "model.bin", std::ios::binary) << File();
    for (const auto& [name, size] :
         {std::pair("source", kSourceVocab), std::pair("target", kTargetVocab)}) {
      std::string tokens = "<blank>\n<s>\n</s>\n";
      for (uint32_t i = 3; i + 1 < size; ++i) tokens += name[0] + std::to_string(i) + "\n";
      std::ofstream(folder / (name + std::string("_vocabulary.txt"))) << tokens;  // and <unk>
    }
  }

 private:
  void Add(const std::string& name, const std::vector<uint32_t>& shape, int type,
           const std::string& bytes) {
    variables_ += Variable(name, shape, type, bytes);
    ++count_;
  }
  float Near0() { return static_cast<float>(random_.Below(2001)) / 1000 - 1; }
  void Vector(const std::string& name, uint32_t size, float around) {
    std::vector<float> numbers(size);
    for (float& x : numbers) x = around + Near0() / 2;
    Add(name, {size}, 0, Bytes(numbers));
  }
  void Norm(const std::string& name) {
    Vector(name + "/gamma", kHidden, 1);
    Vector(name + "/beta", kHidden, 0);
  }
  void Linear(const std::string& name, uint32_t rows, uint32_t columns) {
    Matrix(name + "/weight", rows, columns);
    Vector(name + "/bias", rows, 0);
  }
  // Adds linear_i of multiples[i] times the width.
  void Attention(const std::string& name, const std::vector<uint32_t>& multiples) {
    Norm(name + "layer_norm");
    for (size_t i = 0; i < multiples.size(); ++i) {
      Linear(name + "linear_" + std::to_string(i), multiples[i] * kHidden, kHidden);
    }
  }
  // Adds a matrix. 8 bits: a scale for each row; 16 bits: one for all.
  void Matrix(const std::string& name, uint32_t rows, uint32_t columns) {
    const bool is_i8 = stored_ == Stored::kI8 || stored_ == Stored::kQuotientsOfI8;
    std::vector<float> scales(is_i8 ? rows : 1);
    for (float& scale : scales) scale = (is_i8 ? 127 : 1000) * (1 + Near0() / 4);
    std::vector<int16_t> integers(size_t{rows} * columns);
    std::vector<float> quotients;
    for (int16_t& q : integers) {
      q = static_cast<int16_t>(random_.Below(255)) - 127;
      if (!is_i8) q = static_cast<int16_t>(q * 7);
      const float scale = scales[is_i8 ? quotients.size() / columns : 0];
      quotients.push_back(static_cast<float>(q) / scale);
    }
    const std::vector<uint32_t> shape = {rows, columns};
    if (stored_ == Stored::kQuotientsOfI8 || stored_ == Stored::kQuotientsOfI16) {
      return Add(name, shape, 0, Bytes(quotients));
    }
    const std::vector<uint32_t> scale_shape =
        is_i8 ? std::vector<uint32_t>{rows} : std::vector<uint32_t>{};
    Add(name + "_scale", scale_shape, 0, Bytes(scales));
    if (!is_i8) return Add(name, shape, 2, Bytes(integers));
    Add(name, shape, 1, Bytes(std::vector<int8_t>(integers.begin(), integers.end())));
  }

  const Stored stored_;
  Random random_{5};
  uint32_t count_ = 0;
  std::string variables_;
};

}  // namespace kvasir::ct2_file
