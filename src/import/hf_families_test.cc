// What config.json says of each family, and what is refused.
#include <nlohmann/json.hpp>

#include "import/hf_config.h"
#include "import/model_files_for_test.h"

namespace kvasir {
namespace {

using nlohmann::json;

Result<ModelConfig> ParseFamily(const json& config) {
  return ParseHfConfig(config.dump(), {}, "config.json");
}

json Family(const char* hf_class, const json& more = json::object()) {
  json config = json::parse(R"({"vocab_size": 100, "hidden_size": 48, "intermediate_size": 100,
      "num_hidden_layers": 2, "num_attention_heads": 6, "num_key_value_heads": 2,
      "max_position_embeddings": 512})");
  config["architectures"] = {hf_class};
  config.update(more);
  return config;
}

TEST(HfFamilies, EachFamilyHasItsOwnDefaults) {
  const auto qwen2 = ParseFamily(Family("Qwen2ForCausalLM"));
  ASSERT_TRUE(qwen2) << qwen2.error().message;
  EXPECT_TRUE(qwen2->qkv_bias && !qwen2->o_bias && !qwen2->mlp_bias && !qwen2->tied_embeddings);
  const auto qwen3 = ParseFamily(Family("Qwen3ForCausalLM"));
  ASSERT_TRUE(qwen3) << qwen3.error().message;
  EXPECT_EQ(qwen3->head_dim, 128u);
  EXPECT_FALSE(qwen3->qkv_bias);
  const auto smollm3 = ParseFamily(Family("SmolLM3ForCausalLM"));
  ASSERT_TRUE(smollm3) << smollm3.error().message;
  EXPECT_TRUE(smollm3->tied_embeddings);
  EXPECT_EQ(smollm3->rope.theta, 2e6);
  const auto granite = ParseFamily(Family("GraniteForCausalLM"));
  ASSERT_TRUE(granite) << granite.error().message;
  EXPECT_EQ(granite->attention_multiplier, 1.0);  // not 1/sqrt(head_dim)
  EXPECT_FALSE(qwen3->attention_multiplier);
}

// What the configuration classes of transformers 5.23 have where config.json names nothing.
TEST(HfFamilies, MissingKeysHaveTheDefaultsOfTransformers) {
  struct Defaults {
    const char* hf_class;
    bool tied;
    double eps;
    uint32_t positions;
    double theta;
    uint32_t head_dim, kv_heads;
    Activation activation = Activation::kSilu;
  };
  const Defaults all[] = {
      {"LlamaForCausalLM", false, 1e-6, 2048, 1e4, 32, 16},
      {"MistralForCausalLM", false, 1e-6, 131072, 1e4, 32, 8},
      {"MinistralForCausalLM", false, 1e-6, 131072, 1e4, 32, 8},
      {"Qwen2ForCausalLM", false, 1e-6, 32768, 1e4, 32, 16},
      {"Qwen3ForCausalLM", false, 1e-6, 32768, 1e4, 128, 16},
      {"GraniteForCausalLM", false, 1e-6, 2048, 1e4, 32, 16},
      {"Olmo2ForCausalLM", false, 1e-5, 2048, 1e4, 32, 16},
      {"SmolLM3ForCausalLM", true, 1e-6, 32768, 2e6, 32, 4},
      {"Phi3ForCausalLM", false, 1e-5, 4096, 1e4, 32, 16},
      {"Gemma2ForCausalLM", true, 1e-6, 8192, 1e4, 256, 4, Activation::kGeluTanh},
      {"Gemma3ForCausalLM", true, 1e-6, 131072, 1e6, 256, 4, Activation::kGeluTanh},
      {"GPT2LMHeadModel", true, 1e-5, 1024, 1e4, 32, 16, Activation::kGeluTanh}};
  for (const Defaults& d : all) {
    json config = {{"architectures", {d.hf_class}},
                   {"vocab_size", 100},
                   {"intermediate_size", 64},
                   {"hidden_size", 512},
                   {"num_hidden_layers", 2},
                   {"num_attention_heads", 16},
                   {"n_embd", 512},
                   {"n_layer", 2},
                   {"n_head", 16}};
    const auto c = ParseFamily(config);
    ASSERT_TRUE(c) << c.error().message;
    EXPECT_EQ(c->tied_embeddings, d.tied) << d.hf_class;
    EXPECT_EQ(c->rms_norm_eps, d.eps) << d.hf_class;
    EXPECT_EQ(c->max_positions, d.positions) << d.hf_class;
    EXPECT_EQ(c->rope.theta, d.theta) << d.hf_class;
    EXPECT_EQ(c->head_dim, d.head_dim) << d.hf_class;
    EXPECT_EQ(c->num_kv_heads, d.kv_heads) << d.hf_class;
    EXPECT_EQ(c->activation, d.activation) << d.hf_class;
    config["num_key_value_heads"] = nullptr;
    EXPECT_EQ(ParseFamily(config)->num_kv_heads, 16u) << d.hf_class;
  }
}

TEST(HfFamilies, ReadsGranitesMultipliersAndRefusesWhatIsNone) {
  const auto c = ParseFamily(Family("GraniteForCausalLM", {{"embedding_multiplier", 12},
                                                           {"attention_multiplier", 0.015625},
                                                           {"residual_multiplier", 0.22},
                                                           {"logits_scaling", 8.0}}));
  ASSERT_TRUE(c) << c.error().message;
  EXPECT_EQ(c->embedding_multiplier, 12);
  EXPECT_EQ(c->attention_multiplier, 0.015625);
  EXPECT_EQ(c->residual_multiplier, 0.22);
  EXPECT_EQ(c->logits_scaling, 8);
  for (const char* key :
       {"embedding_multiplier", "attention_multiplier", "residual_multiplier", "logits_scaling"}) {
    for (const json& wrong : {json(0), json(-1), json(1e39), json("x")}) {
      ExpectError(ParseFamily(Family("GraniteForCausalLM", {{key, wrong}})), Code::kInvalidArgument,
                  {"config.json"});
    }
  }
}

TEST(HfFamilies, ReadsWhichLayersOfSmolLm3RopeRotates) {
  const auto layers = [](const json& more) {
    json config = Family("SmolLM3ForCausalLM", more);
    config["num_hidden_layers"] = 6;
    return ParseFamily(config);
  };
  EXPECT_EQ(layers(json::object())->rotated_layers, (std::vector<bool>{1, 1, 1, 0, 1, 1}));
  EXPECT_EQ(layers({{"no_rope_layer_interval", 2}})->rotated_layers,
            (std::vector<bool>{1, 0, 1, 0, 1, 0}));
  EXPECT_EQ(layers({{"no_rope_layers", {0, 1, 1, 0, 1, 1}}})->rotated_layers,
            (std::vector<bool>{0, 1, 1, 0, 1, 1}));
  for (const json& wrong : {json(3), json{1, 1}, json{1, 1, 2, 1, 1, 1}, json{1, 1, "", 1, 1, 1}}) {
    ExpectError(layers({{"no_rope_layers", wrong}}), Code::kInvalidArgument, {"no_rope_layers"});
  }
}

TEST(HfFamilies, ReadsPhi3sPartialRotary) {
  const auto c = ParseFamily(Family("Phi3ForCausalLM", {{"partial_rotary_factor", 0.75}}));
  ASSERT_TRUE(c) << c.error().message;
  EXPECT_EQ(c->rope.rotated_dims, 6u);
  for (const double wrong : {0.0, -1.0, 1.5, 0.4}) {  // 0.4 of 8 are 3
    ExpectError(ParseFamily(Family("Phi3ForCausalLM", {{"partial_rotary_factor", wrong}})),
                Code::kInvalidArgument, {"config.json"});
  }
}

// Writes Phi-3 with RoPE longrope: 8 numbers of each head, so 4 factors.
json LongRope(const json& scaling, const json& more = {{"original_max_position_embeddings", 64}}) {
  json rope = {{"type", "longrope"}, {"short_factor", {1, 2, 3, 4}}, {"long_factor", {5, 6, 7, 8}}};
  rope.update(scaling);
  json config = Family("Phi3ForCausalLM", more);
  config["rope_scaling"] = rope;
  return config;
}

TEST(HfFamilies, ReadsPhi3sLongRopeUnderEachOfItsNames) {
  for (const char* type : {"longrope", "su", "yarn"}) {
    const auto c = ParseFamily(LongRope({{"type", type}}));
    ASSERT_TRUE(c) << c.error().message;
    EXPECT_EQ(c->rope.type, RopeType::kLongRope);
    EXPECT_EQ(c->rope.freq_factors, (std::vector<float>{1, 2, 3, 4}));
    EXPECT_EQ(c->rope.long_freq_factors, (std::vector<float>{5, 6, 7, 8}));
    EXPECT_EQ(c->rope.original_max_positions, 64);
    EXPECT_FLOAT_EQ(c->rope.attention_factor, 1.2247449f);  // sqrt(1 + ln(512 / 64) / ln(64))
    EXPECT_FALSE(UsesLongFactors(c->rope, 64));
    EXPECT_TRUE(UsesLongFactors(c->rope, 65));
  }
  EXPECT_EQ(ParseFamily(LongRope({{"attention_factor", 1.5}}))->rope.attention_factor, 1.5);
  EXPECT_FLOAT_EQ(ParseFamily(LongRope({{"factor", 64}}))->rope.attention_factor, 1.4142135f);
  // Beside the RoPE parameters it counts first, as in transformers.
  const json inside = {{"original_max_position_embeddings", 32}};
  EXPECT_EQ(ParseFamily(LongRope(inside))->rope.original_max_positions, 64);
  EXPECT_EQ(ParseFamily(LongRope(inside, json::object()))->rope.original_max_positions, 32);
  // A context that was not extended: the long factors are never used.
  const auto whole =
      ParseFamily(LongRope(json::object(), {{"original_max_position_embeddings", 1024}}));
  ASSERT_TRUE(whole) << whole.error().message;
  EXPECT_EQ(whole->rope.attention_factor, 1);
  EXPECT_FALSE(UsesLongFactors(whole->rope, whole->max_positions));
}

TEST(HfFamilies, RefusesLongRopeThatItCannotCompute) {
  const auto refuses = [](const json& config, std::vector<std::string> words) {
    ExpectError(ParseFamily(config), Code::kInvalidArgument, words);
  };
  refuses(LongRope(json::object(), json::object()),
          {"longrope needs original_max_position_embeddings"});
  refuses(LongRope(json::object(), {{"original_max_position_embeddings", 1}}), {"embeddings >= 2"});
  refuses(LongRope({{"short_factor", nullptr}}), {"short_factor must be a list"});
  refuses(LongRope({{"long_factor", {1, 2, "3", 4}}}), {"long_factor must be a list"});
  refuses(LongRope({{"short_factor", {1, 2, 3}}}), {"3 short RoPE factors", "it must be 4"});
  refuses(LongRope({{"long_factor", {1, 2, 3, 4, 5}}}), {"5 long RoPE factors", "it must be 4"});
  for (const double wrong : {0.0, -1.0, 1e300, 1e-300}) {
    refuses(LongRope({{"long_factor", {1, 2, 3, wrong}}}), {"long RoPE factor is"});
    refuses(LongRope({{"short_factor", {wrong, 2, 3, 4}}}), {"short RoPE factor is"});
  }
  for (const double wrong : {0.0, -1.0, 1e9}) {
    refuses(LongRope({{"attention_factor", wrong}}), {"attention factor in"});
  }
}

using Windows = std::vector<uint32_t>;

TEST(HfFamilies, EveryLayerOfMistralAndPhi3HasTheWindowThatIsNamed) {
  for (const char* hf_class : {"MistralForCausalLM", "MinistralForCausalLM", "Phi3ForCausalLM"}) {
    const auto with = [&](const json& window) {
      return ParseFamily(Family(hf_class, {{"sliding_window", window}}));
    };
    EXPECT_EQ(with(511)->windows, (Windows{511, 511}));
    EXPECT_EQ(with(nullptr)->windows, Windows());
    EXPECT_EQ(with(512)->windows, Windows());  // as long as the context: full
    ExpectError(with(0), Code::kInvalidArgument, {"sliding_window is 0"});
    ExpectError(with(-1), Code::kInvalidArgument, {"sliding_window is -1"});
    ExpectError(with("x"), Code::kInvalidArgument, {"sliding_window"});
  }
  const json longer = {{"max_position_embeddings", 8192}};
  EXPECT_EQ(ParseFamily(Family("MistralForCausalLM", longer))->windows, (Windows{4096, 4096}));
  EXPECT_EQ(ParseFamily(Family("Phi3ForCausalLM", longer))->windows, Windows());
}

TEST(HfFamilies, LayersOfQwen2HaveAWindowFromMaxWindowLayersOn) {
  const auto qwen = [](json more) {
    more["num_hidden_layers"] = 3;
    if (!more.contains("sliding_window")) more["sliding_window"] = 64;
    return ParseFamily(Family("Qwen2ForCausalLM", more));
  };
  const auto used = [&](json more) {
    more["use_sliding_window"] = true;
    return qwen(std::move(more));
  };
  EXPECT_EQ(qwen({{"use_sliding_window", false}, {"max_window_layers", 0}})->windows, Windows());
  EXPECT_EQ(used({})->windows, Windows());  // max_window_layers is 28 where it is missing
  EXPECT_EQ(used({{"max_window_layers", 1}})->windows, (Windows{0, 64, 64}));
  EXPECT_EQ(used({{"max_window_layers", 0}})->windows, (Windows{64, 64, 64}));
  EXPECT_EQ(used({{"max_window_layers", 3}})->windows, Windows());
  EXPECT_EQ(used({{"max_window_layers", 1}, {"sliding_window", nullptr}})->windows, Windows());
  ExpectError(used({{"max_window_layers", -1}}), Code::kInvalidArgument, {"max_window_layers"});
}

TEST(HfFamilies, LayerTypesDecideWhichLayersHaveAWindow) {
  const auto with = [](const char* hf_class, json more) {
    if (!more.contains("sliding_window")) more["sliding_window"] = 64;
    return ParseFamily(Family(hf_class, more));
  };
  const json types = {"full_attention", "sliding_attention"}, full = {types[0], types[0]};
  EXPECT_EQ(with("Qwen2ForCausalLM", {{"layer_types", types}})->windows, (Windows{0, 64}));
  EXPECT_EQ(with("MistralForCausalLM", {{"layer_types", types}})->windows, (Windows{0, 64}));
  EXPECT_EQ(with("MistralForCausalLM", {{"layer_types", full}})->windows, Windows());
  EXPECT_EQ(with("LlamaForCausalLM", {{"layer_types", full}})->windows, Windows());
  ExpectError(with("LlamaForCausalLM", {{"layer_types", types}}), Code::kUnsupported,
              {"LlamaForCausalLM", "64", "512"});
  ExpectError(with("LlamaForCausalLM", {{"use_sliding_window", true}}), Code::kUnsupported,
              {"LlamaForCausalLM", "64", "512"});
  ExpectError(with("MistralForCausalLM", {{"layer_types", types}, {"sliding_window", nullptr}}),
              Code::kInvalidArgument, {"sliding_window is null"});
  ExpectError(with("Qwen2ForCausalLM", {{"layer_types", {types[0], "linear_attention"}}}),
              Code::kUnsupported, {"linear_attention"});
  ExpectError(with("Qwen2ForCausalLM", {{"layer_types", {types[0]}}}), Code::kInvalidArgument,
              {"layer_types", "2 layers"});
  ExpectError(with("Qwen2ForCausalLM", {{"layer_types", 3}}), Code::kInvalidArgument,
              {"layer_types", "2 layers"});
}

TEST(HfFamilies, ReadsGemma2sScalesSoftCapsAndWindows) {
  const auto with = [](const json& more) { return ParseFamily(Family("Gemma2ForCausalLM", more)); };
  const auto c = with(json::object());
  ASSERT_TRUE(c) << c.error().message;
  EXPECT_TRUE(c->tied_embeddings);
  EXPECT_EQ(c->activation, Activation::kGeluTanh);
  EXPECT_EQ(c->head_dim, 256u);
  EXPECT_EQ(c->embedding_multiplier, __builtin_sqrtf(48));
  EXPECT_EQ(c->attention_multiplier, 1 / 16.0);
  EXPECT_EQ(c->attention_softcap, 50);
  EXPECT_EQ(c->logits_softcap, 30);
  EXPECT_TRUE(c->windows.empty());  // 4,096 of a context of 512
  const auto other = with({{"query_pre_attn_scalar", 144},
                           {"attn_logit_softcapping", nullptr},
                           {"final_logit_softcapping", 7.5},
                           {"hidden_act", "relu"},
                           {"hidden_activation", nullptr},
                           {"sliding_window", 100}});
  ASSERT_TRUE(other) << other.error().message;
  EXPECT_EQ(other->attention_multiplier, static_cast<double>(1.0f / 12));
  EXPECT_EQ(other->attention_softcap, std::nullopt);
  EXPECT_EQ(other->logits_softcap, 7.5);
  EXPECT_EQ(other->activation, Activation::kGeluTanh);
  EXPECT_EQ(other->windows, (Windows{100, 0}));
  for (const char* key :
       {"query_pre_attn_scalar", "attn_logit_softcapping", "final_logit_softcapping"}) {
    for (const json& wrong : {json(0), json(-1), json("x")}) {
      ExpectError(with({{key, wrong}}), Code::kInvalidArgument, {"config.json"});
    }
  }
  ExpectError(with({{"sliding_window", nullptr}}), Code::kInvalidArgument,
              {"sliding_window is null"});
  ExpectError(with({{"use_bidirectional_attention", true}}), Code::kUnsupported,
              {"use_bidirectional_attention"});
  ExpectError(with({{"is_causal", false}}), Code::kUnsupported, {"is_causal is false"});
}

TEST(HfFamilies, ReadsGemma3sTwoRopesInBothStyles) {
  const auto with = [](json more) {
    more["num_hidden_layers"] = 7;
    more["sliding_window"] = 64;
    return ParseFamily(Family("Gemma3ForCausalLM", more));
  };
  const json linear = {{"rope_type", "linear"}, {"factor", 8.0}};
  const auto old = with({{"rope_scaling", linear}, {"rope_local_base_freq", 5000.0}});
  ASSERT_TRUE(old) << old.error().message;
  EXPECT_EQ(old->windows, (Windows{64, 64, 64, 64, 64, 0, 64}));
  EXPECT_EQ(old->rope.type, RopeType::kLinear);
  EXPECT_EQ(old->rope.theta, 1e6);
  EXPECT_EQ(old->local_rope->type, RopeType::kDefault);
  EXPECT_EQ(old->local_rope->theta, 5000);
  EXPECT_EQ(old->logits_softcap, std::nullopt);
  json full = linear;
  full["rope_theta"] = 200.0;
  const auto now = with({{"rope_parameters",
                          {{"full_attention", full}, {"sliding_attention", {{"rope_theta", 300}}}}},
                         {"sliding_window_pattern", 2}});
  ASSERT_TRUE(now) << now.error().message;
  EXPECT_EQ(now->windows, (Windows{64, 0, 64, 0, 64, 0, 64}));
  EXPECT_EQ(now->rope.theta, 200);
  EXPECT_EQ(now->rope.factor, 8);
  EXPECT_EQ(now->local_rope->theta, 300);
  EXPECT_EQ(with({})->local_rope->theta, 10000);
  ExpectError(with({{"sliding_window_pattern", 0}}), Code::kInvalidArgument,
              {"sliding_window_pattern is 0"});
  ExpectError(with({{"rope_parameters", {{"full_attention", 3}}}}), Code::kInvalidArgument,
              {"not an object"});
  // A layer with a window as long as the context is full, but has its own RoPE.
  const auto wide = ParseFamily(Family("Gemma3ForCausalLM"));
  ASSERT_TRUE(wide) << wide.error().message;
  EXPECT_EQ(wide->windows, (Windows{4096, 4096}));
}

TEST(HfFamilies, ReadsTheTextHalfOfGemma3) {
  const json text = {
      {"model_type", "gemma3_text"}, {"hidden_size", 2560},
      {"intermediate_size", 10240},  {"num_hidden_layers", 34},
      {"sliding_window", 1024},      {"rope_scaling", {{"factor", 8.0}, {"rope_type", "linear"}}}};
  json config = {{"architectures", {"Gemma3ForConditionalGeneration"}},
                 {"model_type", "gemma3"},
                 {"text_config", text},
                 {"eos_token_id", {1, 106}},
                 {"vision_config", {{"hidden_size", 1152}}}};
  const auto c = ParseFamily(config);
  ASSERT_TRUE(c) << c.error().message;
  EXPECT_EQ(c->hidden_size, 2560u);
  EXPECT_EQ(c->vocab_size, 262208u);
  EXPECT_EQ(c->num_heads, 8u);
  EXPECT_EQ(c->num_kv_heads, 4u);
  EXPECT_EQ(c->head_dim, 256u);
  EXPECT_EQ(c->max_positions, 131072u);
  EXPECT_EQ(c->rope.factor, 8);
  EXPECT_EQ(c->windows[4], 1024u);
  EXPECT_EQ(c->windows[5], 0u);
  EXPECT_EQ(c->eos, (std::vector<TokenId>{1, 106}));
  config["text_config"] = 3;
  ExpectError(ParseFamily(config), Code::kInvalidArgument, {"text_config"});
}

json Gpt2() {
  return json::parse(R"({"architectures": ["GPT2LMHeadModel"], "vocab_size": 100, "n_embd": 48,
      "n_layer": 2, "n_head": 6, "n_positions": 256, "layer_norm_epsilon": 1e-5,
      "activation_function": "gelu_new", "n_inner": null})");
}

TEST(HfFamilies, ReadsGpt2sOwnNames) {
  const auto c = ParseFamily(Gpt2());
  ASSERT_TRUE(c) << c.error().message;
  EXPECT_EQ(c->hidden_size, 48u);
  EXPECT_EQ(c->num_kv_heads, 6u);
  EXPECT_EQ(c->ffn_size, 192u);
  EXPECT_EQ(c->max_positions, 256u);
  EXPECT_EQ(c->rope.rotated_dims, 0u);
  EXPECT_EQ(c->activation, Activation::kGeluTanh);
  EXPECT_TRUE(c->tied_embeddings && c->qkv_bias && c->o_bias && c->mlp_bias);
  json other = Gpt2();
  other.update({{"n_inner", 100}, {"activation_function", "relu"}});
  EXPECT_EQ(ParseFamily(other)->ffn_size, 100u);
  EXPECT_EQ(ParseFamily(other)->activation, Activation::kRelu);
  for (const auto& [key, value] : {std::pair{"scale_attn_weights", false},
                                   {"scale_attn_by_inverse_layer_idx", true},
                                   {"add_cross_attention", true}}) {
    json wrong = Gpt2();
    wrong[key] = value;
    ExpectError(ParseFamily(wrong), Code::kUnsupported, {key});
  }
  json missing = Gpt2();
  missing.erase("n_head");
  ExpectError(ParseFamily(missing), Code::kInvalidArgument, {"n_head is missing"});
}

}  // namespace
}  // namespace kvasir
