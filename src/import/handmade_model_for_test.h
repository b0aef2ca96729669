// A model of one layer, made by hand, so that tests can damage or extend each part of it.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "import/importer.h"
#include "import/model_files_for_test.h"

namespace kvasir {

struct Made {
  std::string dtype;
  std::vector<uint64_t> shape;
};
using Tensors = std::map<std::string, Made>;

// Makes tensors of hidden 6, 1 layer, 2 heads of 4, 1 KV head, ffn 5, vocab 7; names of both
// styles.
inline Tensors Whole(bool gguf) {
  const std::string l = gguf ? "blk.0." : "model.layers.0.";
  const auto name = [&](const char* hf, const char* g) { return l + (gguf ? g : hf) + ".weight"; };
  const std::string type = "F32";
  return {
      {gguf ? "token_embd.weight" : "model.embed_tokens.weight", {type, {7, 6}}},
      {gguf ? "output_norm.weight" : "model.norm.weight", {type, {6}}},
      {gguf ? "output.weight" : "lm_head.weight", {type, {7, 6}}},
      {name("input_layernorm", "attn_norm"), {type, {6}}},
      {name("post_attention_layernorm", "ffn_norm"), {type, {6}}},
      {name("self_attn.q_proj", "attn_q"), {type, {8, 6}}},
      {name("self_attn.k_proj", "attn_k"), {type, {4, 6}}},
      {name("self_attn.v_proj", "attn_v"), {type, {4, 6}}},
      {name("self_attn.o_proj", "attn_output"), {type, {6, 8}}},
      {name("mlp.gate_proj", "ffn_gate"), {type, {5, 6}}},
      {name("mlp.up_proj", "ffn_up"), {type, {5, 6}}},
      {name("mlp.down_proj", "ffn_down"), {type, {6, 5}}},
  };
}
inline constexpr char kConfig[] =
    R"({"architectures": ["LlamaForCausalLM"], "vocab_size": 7, "hidden_size": 6,
        "intermediate_size": 5, "num_hidden_layers": 1, "num_attention_heads": 2, "head_dim": 4,
        "num_key_value_heads": 1, "tie_word_embeddings": false)";

inline uint64_t Elements(const Made& tensor) {
  uint64_t n = 1;
  for (uint64_t dim : tensor.shape) n *= dim;
  return n;
}

// Packs tensors; each is filled with its own serial byte, or all with `fill`.
inline std::string Pack(const Tensors& tensors, std::optional<char> fill = {}) {
  std::string header = "{", data;
  char serial = 0;
  for (const auto& [name, tensor] : tensors) {
    const uint64_t bytes = Elements(tensor) * (tensor.dtype == "F32" ? 4 : 2);
    std::string shape;
    for (uint64_t dim : tensor.shape) shape += (shape.empty() ? "" : ",") + std::to_string(dim);
    header += (header.size() > 1 ? ",\"" : "\"") + name + "\":{\"dtype\":\"" + tensor.dtype +
              "\",\"shape\":[" + shape + "],\"data_offsets\":[" + std::to_string(data.size()) +
              "," + std::to_string(data.size() + bytes) + "]}";
    data += std::string(bytes, fill.value_or(++serial));
  }
  return Safetensors(header + "}", data);
}

// The model as a GGUF file.
class GgufModel : public testing::Test {
 protected:
  using Change = std::function<void(GgufBuilder&, Tensors&)>;
  static void Metadata(GgufBuilder& b, const std::string& architecture = "llama",
                       uint32_t layers = 1) {
    const std::string at = architecture + ".";
    b.Text("general.architecture", architecture).U32(at + "block_count", layers);
    b.U32(at + "embedding_length", 6).U32(at + "feed_forward_length", 5);
    b.U32(at + "attention.head_count", 2).U32(at + "attention.head_count_kv", 1);
    b.U32(at + "attention.key_length", 4).U32(at + "context_length", 64);
    b.F32(at + "attention.layer_norm_rms_epsilon", 1e-5f);
  }
  Result<ImportedModel> ImportWith(const Change& change, bool metadata = true) {
    GgufBuilder b;
    Tensors tensors = Whole(true);
    if (metadata) Metadata(b);
    change(b, tensors);
    return Import(b, tensors);
  }
  // Imports this model as another architecture with Llama's tensors.
  Result<ImportedModel> ImportAs(const std::string& architecture, const Change& change) {
    GgufBuilder b;
    Tensors tensors = Whole(true);
    Metadata(b, architecture);
    change(b, tensors);
    return Import(b, tensors);
  }
  Result<ImportedModel> Import(GgufBuilder& b, const Tensors& tensors) {
    for (const auto& [name, tensor] : tensors) {
      const std::vector<uint64_t> dims(tensor.shape.rbegin(), tensor.shape.rend());
      const bool f32 = tensor.dtype == "F32";
      b.Tensor(name, dims, f32 ? 0 : 30, std::string(Elements(tensor) * (f32 ? 4 : 2), 'x'));
    }
    return ImportModel(folder_.Write("m.gguf", b.Build()));
  }
  TemporaryFolder folder_;
};

}  // namespace kvasir
