// What files say of experts, and what is refused.
#include "import/experts.h"

#include <nlohmann/json.hpp>

#include "import/handmade_model_for_test.h"
#include "import/hf_config.h"
#include "import/model_files_for_test.h"

namespace kvasir {
namespace {

using nlohmann::json;

Result<ModelConfig> ParseExperts(const char* hf_class, const json& more = json::object()) {
  json config = json::parse(R"({"vocab_size": 100, "hidden_size": 48, "intermediate_size": 100,
      "num_hidden_layers": 5, "num_attention_heads": 6, "num_key_value_heads": 2,
      "max_position_embeddings": 512})");
  config["architectures"] = {hf_class};
  config.update(more);
  return ParseHfConfig(config.dump(), {}, "config.json");
}

TEST(Experts, EachFamilyHasItsDefaults) {
  const auto mixtral = ParseExperts("MixtralForCausalLM");
  ASSERT_TRUE(mixtral) << mixtral.error().message;
  EXPECT_EQ(mixtral->experts->count, 8u);
  EXPECT_EQ(mixtral->experts->chosen, 2u);
  EXPECT_EQ(mixtral->experts->ffn_size, 100u);
  EXPECT_EQ(mixtral->experts->routing, Routing::kChosen);
  EXPECT_EQ(LayerOf(*mixtral, 4).ffn, FfnKind::kExperts);
  const auto qwen = ParseExperts("Qwen3MoeForCausalLM");
  ASSERT_TRUE(qwen) << qwen.error().message;
  EXPECT_EQ(qwen->experts->count, 128u);
  EXPECT_EQ(qwen->experts->chosen, 8u);
  EXPECT_EQ(qwen->experts->ffn_size, 768u);
  EXPECT_EQ(qwen->experts->routing, Routing::kAll);
  EXPECT_TRUE(qwen->experts->layers.empty());
  EXPECT_FALSE(ParseExperts("Qwen3ForCausalLM")->experts);
}

TEST(Experts, SomeLayersHaveAPlainFfn) {
  const auto c = ParseExperts("Qwen3MoeForCausalLM", {{"decoder_sparse_step", 2},
                                                      {"mlp_only_layers", {3}},
                                                      {"norm_topk_prob", true},
                                                      {"num_local_experts", 16}});
  ASSERT_TRUE(c) << c.error().message;
  EXPECT_EQ(c->experts->count, 16u);
  EXPECT_EQ(c->experts->layers, (std::vector<bool>{false, true, false, false, false}));
  EXPECT_EQ(c->experts->routing, Routing::kAllNormed);
  EXPECT_EQ(LayerOf(*c, 1).ffn, FfnKind::kExperts);
  EXPECT_EQ(LayerOf(*c, 3).ffn, FfnKind::kGated);
  EXPECT_NE(CanonicalText(*c).find(" experts=16 chosen=8 expert_ffn=768 routing=2 "
                                   "expert_layers=01000"),
            std::string::npos);
}

TEST(Experts, RefusesConfigsThatContradictThemselves) {
  const std::pair<json, const char*> cases[] = {
      {{{"num_experts", 0}}, "num_experts is 0; it must be a whole number from 1 to 4096"},
      {{{"num_experts", 5000}}, "num_experts is 5000"},
      {{{"num_experts_per_tok", 0}}, "num_experts_per_tok is 0"},
      {{{"num_experts", 4}}, "each token goes to 8 experts, but there are 4"},
      {{{"num_experts", 16}, {"num_local_experts", 8}},
       "num_experts is 16 and num_local_experts is 8"},
      {{{"moe_intermediate_size", 0}}, "moe_intermediate_size is 0"},
      {{{"decoder_sparse_step", 0}}, "decoder_sparse_step is 0"},
      {{{"decoder_sparse_step", 6}}, "no layer has experts"},
      {{{"mlp_only_layers", {0, 5}}}, "mlp_only_layers has 5; the model's layers are 0 to 4"},
      {{{"mlp_only_layers", {-1}}}, "mlp_only_layers has -1"},
      {{{"mlp_only_layers", 3}}, "mlp_only_layers must be a list"},
      {{{"norm_topk_prob", 1}}, "norm_topk_prob is 1"}};
  for (const auto& [fields, message] : cases) {
    ExpectError(ParseExperts("Qwen3MoeForCausalLM", fields), Code::kInvalidArgument, {message});
  }
}

// Each expert of each layer is three tensors with names: 2^26 of them fill any machine's memory.
TEST(Experts, AllLayersTogetherHaveALimit) {
  const json most = {{"num_hidden_layers", 64}, {"num_experts", 4096}};
  EXPECT_TRUE(ParseExperts("Qwen3MoeForCausalLM", most));
  for (const int layers : {65, 16384}) {
    const json more = {{"num_hidden_layers", layers}, {"num_experts", 4096}};
    ExpectError(ParseExperts("Qwen3MoeForCausalLM", more), Code::kInvalidArgument,
                {std::to_string(layers) + " layers of 4096 experts", "at most 262144"});
  }
}

// Almost 2^62 weights: twice as many wrap a sum of their bytes.
TEST(Experts, AllWeightsTogetherHaveALimit) {
  const json more = {{"num_hidden_layers", 64},
                     {"num_experts", 4096},
                     {"hidden_size", 1 << 20},
                     {"head_dim", 128},
                     {"moe_intermediate_size", 1 << 22}};
  ExpectError(ParseExperts("Qwen3MoeForCausalLM", more), Code::kInvalidArgument,
              {"config.json: 64 layers", " have 3458764926482399232 weights; at most 2^48"});
  const json large = {{"num_hidden_layers", 64}, {"num_experts", 4096}, {"head_dim", 128}};
  EXPECT_TRUE(ParseExperts("Qwen3MoeForCausalLM", large));
}

using GgufExperts = GgufModel;
TEST_F(GgufExperts, AllLayersTogetherHaveALimit) {
  GgufBuilder b;
  Metadata(b, "llama", 16384);
  b.U32("llama.expert_count", 4096).U32("llama.expert_used_count", 2);
  ExpectError(Import(b, Whole(true)), Code::kInvalidArgument,
              {"m.gguf", "16384 layers of 4096 experts", "at most 262144"});
}

// Makes a GGUF catalog of one layer, whose tensors have these shapes.
TensorCatalog CatalogWith(const std::map<std::string, std::vector<uint64_t>>& shapes) {
  static const std::vector<std::byte> bytes(4096);
  TensorCatalog catalog;
  for (const auto& [name, shape] : shapes) {
    uint64_t numbers = 1;
    for (const uint64_t n : shape) numbers *= n;
    catalog[name] = {name,    "F32", DType::kF32, shape, std::span(bytes).first(numbers * 4),
                     "x.gguf"};
  }
  return catalog;
}

TEST(Experts, BothStoragesOfGgufGiveTheSameTensors) {
  ModelConfig config;
  config.experts = ExpertsConfig{.count = 3, .chosen = 1, .ffn_size = 4};
  TensorCatalog joined = CatalogWith({{"blk.0.ffn_up_exps.weight", {3, 4, 2}}});
  const std::byte* begin = joined.begin()->second.bytes.data();
  ASSERT_TRUE(SplitGgufExperts(config, joined));
  ASSERT_EQ(joined.size(), 3u);
  const StoredTensor& last = joined.at("blk.0.ffn_up_exps.weight[2]");
  EXPECT_EQ(last.shape, (std::vector<uint64_t>{4, 2}));
  EXPECT_EQ(last.bytes.data(), begin + 2 * 4 * 2 * 4);
  EXPECT_EQ(last.bytes.size(), 4u * 2 * 4);
  TensorCatalog apart = CatalogWith({{"blk.0.ffn_up.2.weight", {4, 2}}});
  ASSERT_TRUE(SplitGgufExperts(config, apart));
  EXPECT_TRUE(apart.contains("blk.0.ffn_up_exps.weight[2]"));
}

// A row of quantised numbers is whole blocks: an expert's rows are a range of bytes too.
TEST(Experts, QuantisedTensorsOfGgufAreSplitByBlocks) {
  ModelConfig config;
  config.experts = ExpertsConfig{.count = 3, .chosen = 1, .ffn_size = 4};
  const std::vector<std::byte> bytes(3 * 4 * 2 * 34);  // Q8_0: 34 bytes for 32 numbers
  TensorCatalog catalog;
  const std::string name = "blk.0.ffn_up_exps.weight";
  catalog[name] = {name, "Q8_0", DType::kQ8_0, {3, 4, 64}, bytes, "x.gguf"};
  ASSERT_TRUE(SplitGgufExperts(config, catalog));
  for (size_t expert = 0; expert < 3; ++expert) {
    const StoredTensor& one = catalog.at(name + "[" + std::to_string(expert) + "]");
    EXPECT_EQ(one.shape, (std::vector<uint64_t>{4, 64}));
    EXPECT_EQ(one.bytes.data(), bytes.data() + expert * 4 * 2 * 34);
    EXPECT_EQ(one.bytes.size(), 4u * 2 * 34);
  }
}

TEST(Experts, RefusesGgufTensorsThatDoNotFit) {
  ModelConfig config;
  config.experts = ExpertsConfig{.count = 3, .chosen = 1, .ffn_size = 4};
  const auto split =
      [&](const std::map<std::string, std::vector<uint64_t>>& shapes) -> Result<int> {
    TensorCatalog catalog = CatalogWith(shapes);
    KV_TRY(SplitGgufExperts(config, catalog));
    return 0;
  };
  ExpectError(split({{"blk.0.ffn_up_exps.weight", {4, 4, 2}}}), Code::kCorruption,
              {"'blk.0.ffn_up_exps.weight'", "[4, 4, 2]", "3 experts"});
  ExpectError(split({{"blk.0.ffn_up_exps.weight", {3, 8}}}), Code::kCorruption, {"[3, 8]"});
  ExpectError(split({{"blk.0.ffn_up_exps.weight", {3, 4, 2}}, {"blk.0.ffn_up.1.weight", {4, 2}}}),
              Code::kCorruption, {"blk.0.ffn_up_exps.weight[1]", "twice"});
}

}  // namespace
}  // namespace kvasir
