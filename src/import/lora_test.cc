#include "import/lora.h"

#include <cmath>
#include <functional>
#include <limits>
#include <tuple>

#include "base/random.h"
#include "import/handmade_model_for_test.h"
#include "import/hf_config.h"
#include "import/lora_for_test.h"
#include "simd/half.h"

namespace kvasir {
namespace {

struct StoredHalf {
  std::vector<uint64_t> shape;
  std::vector<float> numbers;
};
using Halves = std::map<std::string, StoredHalf>;

StoredHalf RandomHalf(Random& random, uint64_t rows, uint64_t columns) {
  StoredHalf half{{rows, columns}, std::vector<float>(rows * columns)};
  for (float& number : half.numbers) number = static_cast<float>(random.Uniform() * 2 - 1);
  return half;
}

std::string BytesOfHalf(const StoredHalf& half) {
  return std::string(reinterpret_cast<const char*>(half.numbers.data()), half.numbers.size() * 4);
}

std::string SafetensorsOf(const Halves& halves) {
  std::string header = "{", data;
  for (const auto& [name, half] : halves) {
    const std::string bytes = BytesOfHalf(half);
    header += (header.size() > 1 ? ",\"" : "\"") + name + R"(":{"dtype":"F32","shape":[)" +
              std::to_string(half.shape[0]) + "," + std::to_string(half.shape[1]) +
              "],\"data_offsets\":[" + std::to_string(data.size()) + "," +
              std::to_string(data.size() + bytes.size()) + "]}";
    data += bytes;
  }
  return Safetensors(header + "}", data);
}

std::string NameOfHalf(const std::string& module, char half) {
  return "base_model.model.model.layers.0." + module + ".lora_" + half + ".weight";
}

// Adapters of the model of handmade_model_for_test.h: rank 2 on q, v and down.
class Loras : public testing::Test {
 protected:
  Loras() {
    constexpr std::tuple<const char*, int, int> kChanged[] = {
        {"self_attn.q_proj", 8, 6}, {"self_attn.v_proj", 4, 6}, {"mlp.down_proj", 6, 5}};
    for (const auto& [module, out, in] : kChanged) {
      halves_[NameOfHalf(module, 'A')] = RandomHalf(random_, 2, in);
      halves_[NameOfHalf(module, 'B')] = RandomHalf(random_, out, 2);
    }
    model_ = ConfigOf(kConfig + std::string("}"));
  }

  static ModelConfig ConfigOf(const std::string& text) {
    auto config = ParseHfConfig(text, std::nullopt, "config.json");
    EXPECT_TRUE(config) << config.error().text();
    return *config;
  }
  static std::string PeftText(const std::string& more) {
    return R"({"peft_type": "LORA", "r": 2, "lora_alpha": 16, "bias": "none", "use_dora": false,
               "modules_to_save": null, "target_modules": ["q_proj"])" +
           more + "}";
  }
  Result<WholeLora> ReadPeft(const std::string& more = "") {
    folder_.Write("adapter_config.json", PeftText(more));
    folder_.Write("adapter_model.safetensors", SafetensorsOf(halves_));
    return ReadWhole(OpenLora(folder_.path(), model_));
  }
  void ExpectRefused(const std::string& more, Code code, const std::vector<std::string>& parts) {
    ExpectError(ReadPeft(more), code, parts);
  }

  // Writes the same adapter as llama.cpp's converter does: rows of B of q and k interleaved.
  std::string GgufOf(const std::function<void(GgufBuilder&)>& metadata) {
    constexpr std::pair<const char*, const char*> kModules[] = {
        {"self_attn.q_proj", "blk.0.attn_q.weight"},
        {"self_attn.v_proj", "blk.0.attn_v.weight"},
        {"mlp.down_proj", "blk.0.ffn_down.weight"}};
    GgufBuilder b;
    metadata(b);
    for (const auto& [module, name] : kModules) {
      if (!halves_.contains(NameOfHalf(module, 'A'))) continue;
      const StoredHalf& a = halves_.at(NameOfHalf(module, 'A'));
      StoredHalf of_b = halves_.at(NameOfHalf(module, 'B'));
      if (name == std::string("blk.0.attn_q.weight")) {
        const StoredHalf ours = of_b;
        for (uint32_t row = 0; row < 8; ++row) {  // heads of 4: stored 2i + j is i + 2j
          const uint32_t from = row / 4 * 4 + row % 4 / 2 + row % 2 * 2;
          const uint64_t rank = of_b.shape[1];
          std::copy_n(&ours.numbers[from * rank], rank, &of_b.numbers[row * rank]);
        }
      }
      b.Tensor(std::string(name) + ".lora_a", {a.shape[1], a.shape[0]}, 0, BytesOfHalf(a));
      b.Tensor(std::string(name) + ".lora_b", {of_b.shape[1], of_b.shape[0]}, 0, BytesOfHalf(of_b));
    }
    return b.Build();
  }
  static void GgufMetadata(GgufBuilder& b) {
    b.Text("general.type", "adapter").Text("general.architecture", "llama");
    b.Text("adapter.type", "lora").F32("adapter.lora.alpha", 16);
  }
  Result<WholeLora> ReadGguf(const std::function<void(GgufBuilder&)>& metadata) {
    return ReadWhole(OpenLora(folder_.Write("a.gguf", GgufOf(metadata)), model_));
  }

  Random random_{7};
  Halves halves_;
  ModelConfig model_;
  TemporaryFolder folder_;
};

TEST_F(Loras, AFolderOfPeftIsReadByLayerAndTarget) {
  const auto adapter = ReadPeft();
  ASSERT_TRUE(adapter) << adapter.error().text();
  ASSERT_EQ(adapter->pairs.size(), 3u);
  const LoraPair& q = adapter->pairs[0];
  EXPECT_EQ(q.target, LoraTarget::kQ);
  EXPECT_EQ(adapter->pairs[1].target, LoraTarget::kV);
  EXPECT_EQ(adapter->pairs[2].target, LoraTarget::kDown);
  EXPECT_EQ(q.rank, 2u);
  EXPECT_EQ(q.in, 6u);
  EXPECT_EQ(q.out, 8u);
  EXPECT_EQ(q.scale, 8.0);
  EXPECT_EQ(adapter->read[0].a, halves_.at(NameOfHalf("self_attn.q_proj", 'A')).numbers);
  EXPECT_EQ(adapter->read[0].b, halves_.at(NameOfHalf("self_attn.q_proj", 'B')).numbers);
  EXPECT_EQ(adapter->max_rank(), 2u);
}

TEST_F(Loras, ScalesFollowRslorAndPatterns) {
  const auto root = ReadPeft(R"(, "use_rslora": true)");
  ASSERT_TRUE(root) << root.error().text();
  EXPECT_DOUBLE_EQ(root->pairs[0].scale, 16 / std::sqrt(2.0));

  const auto patterns = ReadPeft(R"(, "alpha_pattern": {"v_proj": 4, "layers.0.mlp.down_proj": 6,
                                        "proj": 100, "^model.layers.1": 5})");
  ASSERT_TRUE(patterns) << patterns.error().text();
  EXPECT_EQ(patterns->pairs[0].scale, 8.0);
  EXPECT_EQ(patterns->pairs[1].scale, 2.0);
  EXPECT_EQ(patterns->pairs[2].scale, 3.0);

  const auto from_start = ReadPeft(R"(, "alpha_pattern": {"^model.layers.0.self_attn": 4})");
  ASSERT_TRUE(from_start) << from_start.error().text();
  EXPECT_EQ(from_start->pairs[1].scale, 2.0);
  EXPECT_EQ(from_start->pairs[2].scale, 8.0);

  halves_[NameOfHalf("mlp.down_proj", 'A')] = RandomHalf(random_, 4, 5);
  halves_[NameOfHalf("mlp.down_proj", 'B')] = RandomHalf(random_, 6, 4);
  ExpectRefused("", Code::kCorruption, {"rank 4", "adapter_config.json says 2"});
  const auto ranks = ReadPeft(R"(, "rank_pattern": {"down_proj": 4})");
  ASSERT_TRUE(ranks) << ranks.error().text();
  EXPECT_EQ(ranks->pairs[2].rank, 4u);
  EXPECT_EQ(ranks->pairs[2].scale, 4.0);
}

TEST_F(Loras, GgufAndPeftFilesOfTheSameNumbersAreOneAdapter) {
  const auto peft = ReadPeft(), gguf = ReadGguf(GgufMetadata);
  ASSERT_TRUE(peft) << peft.error().text();
  ASSERT_TRUE(gguf) << gguf.error().text();
  EXPECT_EQ(peft->numbers, gguf->numbers);
  EXPECT_EQ(peft->read[0].b, gguf->read[0].b);
  EXPECT_EQ(peft->DigestWith(1), gguf->DigestWith(1));
  EXPECT_NE(peft->DigestWith(1), gguf->DigestWith(0.5));

  // Twice the alpha at half the scale computes the same.
  folder_.Write("adapter_config.json", R"({"peft_type": "LORA", "r": 2, "lora_alpha": 32})");
  const auto larger = ReadWhole(OpenLora(folder_.path(), model_));
  ASSERT_TRUE(larger) << larger.error().text();
  EXPECT_EQ(peft->DigestWith(1), larger->DigestWith(0.5));
  EXPECT_NE(peft->DigestWith(1), larger->DigestWith(1));

  halves_.begin()->second.numbers[0] += 1;
  const auto other = ReadPeft();
  ASSERT_TRUE(other) << other.error().text();
  EXPECT_NE(peft->numbers, other->numbers);
}

TEST_F(Loras, GgufWithoutAlphaHasScale1) {
  const auto adapter = ReadGguf([](GgufBuilder& b) {
    b.Text("general.type", "adapter").Text("general.architecture", "llama");
    b.Text("adapter.type", "lora");
  });
  ASSERT_TRUE(adapter) << adapter.error().text();
  EXPECT_EQ(adapter->pairs[0].scale, 1.0);
}

TEST_F(Loras, GgufOfAnotherKindIsRefused) {
  const auto expect = [&](const char* key, const char* value, Code code,
                          const std::vector<std::string>& parts) {
    ExpectError(ReadGguf([&](GgufBuilder& b) {
                  constexpr std::pair<const char*, const char*> kUsual[] = {
                      {"general.type", "adapter"},
                      {"general.architecture", "llama"},
                      {"adapter.type", "lora"}};
                  for (const auto& [name, usual] : kUsual) {
                    b.Text(name, name == std::string(key) ? value : usual);
                  }
                }),
                code, parts);
  };
  expect("general.type", "model", Code::kInvalidArgument, {"general.type", "'model'"});
  expect("adapter.type", "control", Code::kUnsupported, {"adapter.type", "'control'"});
  expect("general.architecture", "qwen2", Code::kInvalidArgument, {"'qwen2'", "'llama'"});
  ExpectError(ReadGguf([](GgufBuilder& b) {
                GgufMetadata(b);
                b.Tensor("blk.0.attn_norm.weight", {6}, 0, std::string(24, '\0'));
              }),
              Code::kUnsupported, {"attn_norm", ".lora_a"});
}

TEST_F(Loras, NumbersOfHalfPrecisionAreWidened) {
  StoredHalf& a = halves_.at(NameOfHalf("self_attn.q_proj", 'A'));
  for (float& number : a.numbers) number = FromF16(ToF16(number));
  const auto f32 = ReadPeft();
  GgufBuilder b;
  GgufMetadata(b);
  std::string halves;
  for (const float number : a.numbers) halves += Le(ToF16(number));
  b.Tensor("blk.0.attn_v.weight.lora_a", {6, 2}, 1, halves);
  b.Tensor("blk.0.attn_v.weight.lora_b", {2, 4}, 0, std::string(32, '\1'));
  const auto f16 = ReadWhole(OpenLora(folder_.Write("f16.gguf", b.Build()), model_));
  ASSERT_TRUE(f32 && f16);
  EXPECT_EQ(f32->read[0].a, f16->read[0].a);
}

TEST_F(Loras, WhatKvasirDoesNotComputeIsRefusedByName) {
  using enum Code;
  constexpr std::pair<const char*, const char*> kKeys[] = {
      {"lora_bias", "true"},
      {"alora_invocation_tokens", "[1, 2]"},
      {"trainable_token_indices", "[3]"},
      {"layer_replication", "[[0, 1]]"},
      {"init_lora_weights", "\"pissa_niter_4\""}};
  for (const auto& [key, value] : kKeys) {
    const std::string more = std::string(", \"") + key + "\": " + value;
    ExpectRefused(more, kUnsupported, {key, "adapter_config.json"});
  }
  const auto with = [&](const std::string& text) {
    folder_.Write("adapter_config.json", text);
    folder_.Write("adapter_model.safetensors", SafetensorsOf(halves_));
    return ReadWhole(OpenLora(folder_.path(), model_));
  };
  ExpectError(with(R"({"peft_type": "LORA", "use_dora": true})"), kUnsupported, {"use_dora"});
  ExpectError(with(R"({"peft_type": "LORA", "bias": "all"})"), kUnsupported, {"bias", "all"});
  ExpectError(with(R"({"peft_type": "LORA", "modules_to_save": ["lm_head"]})"), kUnsupported,
              {"modules_to_save"});
  ExpectError(with(R"({"peft_type": "IA3"})"), kUnsupported, {"peft_type", "IA3"});
  ExpectError(with(R"({"peft_type": "LORA", "r": 0})"), kInvalidArgument, {"r is 0"});
  ExpectError(with(R"({"peft_type": "LORA", "r": 2, "alpha_pattern": {"q_proj": "x"}})"),
              kInvalidArgument, {"alpha_pattern", "q_proj"});
  ExpectError(with(R"({"peft_type": "LORA", "r": 2, "alpha_pattern": {"(": 1}})"), kUnsupported,
              {"alpha_pattern '('", "not a regular expression"});
  ExpectError(
      with(R"({"peft_type": "LORA", "r": 2, "alpha_pattern": {"q_proj": 1, "proj|q_proj": 2}})"),
      kInvalidArgument, {"two keys", "q_proj"});
}

TEST_F(Loras, TensorsThatNoMatrixTakesAreRefusedByName) {
  using enum Code;
  const auto expect = [&](const std::string& name, Code code,
                          const std::vector<std::string>& parts) {
    const Halves before = halves_;
    halves_["base_model.model." + name] = RandomHalf(random_, 2, 6);
    ExpectRefused("", code, parts);
    halves_ = before;
  };
  expect("model.layers.0.mlp.experts.0.gate_proj.lora_A.weight", kUnsupported, {"experts"});
  expect("model.embed_tokens.lora_embedding_A", kUnsupported, {"embedding"});
  expect("model.embed_tokens.lora_A.weight", kUnsupported, {"embedding"});
  expect("lm_head.lora_A.weight", kUnsupported, {"output head"});
  expect("lm_head.modules_to_save.weight", kUnsupported, {"modules_to_save"});
  expect("model.layers.0.self_attn.q_proj.lora_magnitude_vector", kUnsupported, {"use_dora"});
  expect("model.layers.0.self_attn.q_proj.lora_B.bias", kUnsupported, {"lora_bias"});
  expect("model.layers.1.self_attn.q_proj.lora_A.weight", kInvalidArgument,
         {"model.layers.1.self_attn.q_proj", "another model"});
}

TEST_F(Loras, WrongTensorsAreRefused) {
  using enum Code;
  const Halves good = halves_;
  const std::string a = NameOfHalf("self_attn.q_proj", 'A'),
                    b = NameOfHalf("self_attn.q_proj", 'B');
  halves_.erase(b);
  ExpectRefused("", kCorruption, {a, "lora_B", "missing"});
  halves_ = good;
  halves_[a] = RandomHalf(random_, 2, 7);
  ExpectRefused("", kInvalidArgument, {a, "[2, 7]", "[2, 6]"});
  halves_ = good;
  halves_[b] = RandomHalf(random_, 9, 2);
  ExpectRefused("", kInvalidArgument, {b, "[9, 2]", "[8, 2]"});
  halves_[b] = RandomHalf(random_, 8, 3);
  ExpectRefused("", kCorruption, {b, "3 columns"});
  halves_ = good;
  halves_[b].numbers[3] = std::numeric_limits<float>::infinity();
  ExpectRefused("", kCorruption, {b, "NaN or infinity"});
  halves_.clear();
  ExpectRefused("", kInvalidArgument, {"changes no matrix"});
}

TEST_F(Loras, MissingAndForeignFilesAreRefused) {
  using enum Code;
  const std::filesystem::path folder = folder_.path();
  ExpectError(OpenLora(folder / "none", model_), kNotFound, {"none", "does not exist"});
  ExpectError(OpenLora(folder, model_), kNotFound, {"adapter_config.json"});
  folder_.Write("adapter_config.json", PeftText(""));
  ExpectError(OpenLora(folder, model_), kNotFound, {"adapter_model.safetensors"});
  folder_.Write("adapter_model.bin", "x");
  ExpectError(OpenLora(folder, model_), kUnsupported, {"adapter_model.bin", "safetensors"});
  ExpectError(OpenLora(folder / "adapter_model.bin", model_), kUnsupported, {"PyTorch"});
  ExpectError(OpenLora(folder_.Write("x.gguf", "no gguf"), model_), kCorruption, {"not a GGUF"});
  folder_.Write("adapter_model.safetensors", "short");
  ExpectError(OpenLora(folder, model_), kCorruption, {"adapter_model.safetensors"});
}

TEST_F(Loras, AFusedMatrixIsCutByRowsOfB) {
  model_ = ConfigOf(R"({"architectures": ["Phi3ForCausalLM"], "vocab_size": 7, "hidden_size": 8,
      "intermediate_size": 5, "num_hidden_layers": 1, "num_attention_heads": 2,
      "num_key_value_heads": 1, "max_position_embeddings": 64, "tie_word_embeddings": false})");
  halves_.clear();
  const std::string b = NameOfHalf("self_attn.qkv_proj", 'B');
  halves_[NameOfHalf("self_attn.qkv_proj", 'A')] = RandomHalf(random_, 2, 8);
  halves_[b] = RandomHalf(random_, 16, 2);
  halves_[NameOfHalf("mlp.gate_up_proj", 'A')] = RandomHalf(random_, 2, 8);
  halves_[NameOfHalf("mlp.gate_up_proj", 'B')] = RandomHalf(random_, 10, 2);
  const auto adapter = ReadPeft();
  ASSERT_TRUE(adapter) << adapter.error().text();
  ASSERT_EQ(adapter->pairs.size(), 5u);
  const std::vector<float>& whole = halves_.at(b).numbers;
  EXPECT_EQ(adapter->pairs[0].out, 8u);
  EXPECT_EQ(adapter->read[0].b, std::vector(whole.begin(), whole.begin() + 16));
  EXPECT_EQ(adapter->pairs[1].target, LoraTarget::kK);
  EXPECT_EQ(adapter->read[1].b, std::vector(whole.begin() + 16, whole.begin() + 24));
  EXPECT_EQ(adapter->read[2].b, std::vector(whole.begin() + 24, whole.end()));
  EXPECT_EQ(adapter->pairs[4].target, LoraTarget::kUp);
  EXPECT_EQ(adapter->pairs[4].out, 5u);
}

// Ranks of more than a panel, so that the digest is of numbers that come in pieces.
TEST_F(Loras, NumbersAreReadInRowsOfAPanelAndTheirDigestIsOfAll) {
  halves_.clear();
  const StoredHalf& a = halves_[NameOfHalf("self_attn.q_proj", 'A')] = RandomHalf(random_, 20, 6);
  const StoredHalf& b = halves_[NameOfHalf("self_attn.q_proj", 'B')] = RandomHalf(random_, 8, 20);
  for (const bool is_gguf : {false, true}) {
    const auto adapter =
        is_gguf ? ReadGguf(GgufMetadata) : ReadPeft(R"(, "rank_pattern": {"q": 2})");
    ASSERT_TRUE(adapter) << adapter.error().text();
    EXPECT_EQ(adapter->read[0].a, a.numbers);
    EXPECT_EQ(adapter->read[0].b, b.numbers);
    Sha256 sha;
    sha.Update("kvasir adapter numbers 1\n").UpdateU64(1);
    for (const uint64_t number : {0, 0, 20, 6, 8}) sha.UpdateU64(number);
    sha.Update(BytesOfHalf(a)).Update(BytesOfHalf(b));
    EXPECT_EQ(adapter->numbers, sha.Finish());
    uint64_t largest = 0;
    const auto take = [&](size_t, LoraMatrix, uint64_t first, std::span<const float> rows) {
      EXPECT_EQ(first % kPanelOutputs, 0u);
      largest = std::max<uint64_t>(largest, rows.size_bytes());
    };
    ASSERT_TRUE(ReadLoraNumbers(*adapter, take));
    EXPECT_LE(largest, LoraRowBytes(*adapter));
    EXPECT_EQ(LoraRowBytes(*adapter), 20 * kPanelOutputs * sizeof(float));
  }
}

TEST_F(Loras, AFileThatChangesBeforeItsNumbersAreReadIsAnError) {
  ASSERT_TRUE(ReadPeft());
  auto opened = OpenLora(folder_.path(), model_);
  ASSERT_TRUE(opened) << opened.error().text();
  folder_.Write("adapter_model.safetensors", SafetensorsOf(halves_) + " ");
  ExpectError(ReadWhole(std::move(opened)), Code::kModelChanged, {"adapter_model.safetensors"});
}

}  // namespace
}  // namespace kvasir
