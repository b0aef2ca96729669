// Hand-made models, whole and broken, through the importer.
#include <cmath>
#include <functional>
#include <map>

#include "import/importer.h"
#include "import/model_files_for_test.h"

namespace kvasir {
namespace {

namespace fs = std::filesystem;

struct Made {
  std::string dtype;
  std::vector<uint64_t> shape;
};
using Tensors = std::map<std::string, Made>;

// hidden 6, 1 layer, 2 heads of 4, 1 KV head, ffn 5, vocab 7; names of both styles.
Tensors Whole(bool gguf) {
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
const char kConfig[] =
    R"({"architectures": ["LlamaForCausalLM"], "vocab_size": 7, "hidden_size": 6,
        "intermediate_size": 5, "num_hidden_layers": 1, "num_attention_heads": 2, "head_dim": 4,
        "num_key_value_heads": 1, "tie_word_embeddings": false)";

uint64_t Elements(const Made& tensor) {
  uint64_t n = 1;
  for (uint64_t dim : tensor.shape) n *= dim;
  return n;
}

// Each tensor is filled with its own serial byte, or all with `fill`.
std::string Pack(const Tensors& tensors, std::optional<char> fill = {}) {
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

class Folder : public testing::Test {
 protected:
  Result<ImportedModel> ImportWith(const Tensors& tensors, const std::string& more = "") {
    folder_.Write("config.json", kConfig + more + "}");
    folder_.Write("model.safetensors", Pack(tensors));
    return ImportModel(folder_.path());
  }
  Tensors tensors_ = Whole(false);
  TemporaryFolder folder_;
};

TEST_F(Folder, AWholeModelIsReadAndExtraTensorsAreIgnored) {
  tensors_["model.layers.0.self_attn.rotary_emb.inv_freq"] = {"F64", {2}};
  tensors_["model.layers.0.self_attn.rotary_emb.inv_freq"].dtype = "I16";
  const auto m = ImportWith(tensors_);
  ASSERT_TRUE(m) << m.error().message;
  EXPECT_TRUE(m->lm_head);
  EXPECT_EQ(m->layers[0][Slot::kO].view.shape, (std::vector<uint64_t>{6, 8}));
  EXPECT_EQ(m->tokenizer_json, "");
}

TEST_F(Folder, ATensorOfALayerThatNoSlotTakesIsRefusedByName) {
  for (const char* name : {"self_attn.q_norm.weight", "self_attn.q_proj.bias", "mlp.experts.0.w"}) {
    Tensors more = tensors_;
    more[std::string("model.layers.0.") + name] = {"F32", {4}};
    ExpectError(ImportWith(more), Code::kUnsupported,
                {std::string("'model.layers.0.") + name + "'", "LlamaForCausalLM"});
  }
  Tensors more = tensors_;
  more["model.layers.1.input_layernorm.weight"] = {"F32", {6}};
  ExpectError(ImportWith(more), Code::kUnsupported, {"'model.layers.1.", "1 layers"});
  more = tensors_;
  more["model.vision.weight"] = {"F32", {6}};  // of no layer
  EXPECT_TRUE(ImportWith(more));
}

TEST_F(Folder, MissingTensorsAreAllNamedUpToEight) {
  tensors_.erase("model.norm.weight");
  tensors_.erase("model.layers.0.self_attn.k_proj.weight");
  ExpectError(ImportWith(tensors_), Code::kNotFound,
              {"2 of the tensors", "model.norm.weight", "model.layers.0.self_attn.k_proj.weight"});
  ExpectError(ImportWith({}), Code::kNotFound, {"12 of the tensors", "and 4 more"});
  ExpectError(ImportWith(tensors_, R"(, "num_hidden_layers": 16384)"), Code::kNotFound,
              {"of the tensors", "more"});
}

TEST_F(Folder, BiasesAreNeededWhereTheConfigHasThem) {
  ExpectError(ImportWith(tensors_, R"(, "attention_bias": true)"), Code::kNotFound,
              {"4 of the tensors", "q_proj.bias", "o_proj.bias"});
  ExpectError(ImportWith(tensors_, R"(, "mlp_bias": true)"), Code::kNotFound,
              {"3 of the tensors", "mlp.down_proj.bias"});
  tensors_["model.layers.0.mlp.gate_proj.bias"] = {"F32", {5}};
  tensors_["model.layers.0.mlp.up_proj.bias"] = {"F32", {5}};
  tensors_["model.layers.0.mlp.down_proj.bias"] = {"BF16", {6}};
  const auto m = ImportWith(tensors_, R"(, "mlp_bias": true)");
  ASSERT_TRUE(m) << m.error().message;
  EXPECT_EQ(m->layers[0][Slot::kDownBias].view.dtype, DType::kBf16);
  tensors_["model.layers.0.mlp.down_proj.bias"] = {"F32", {5}};
  ExpectError(ImportWith(tensors_, R"(, "mlp_bias": true)"), Code::kCorruption,
              {"down_proj.bias", "[5]", "[6]"});
}

TEST_F(Folder, AShapeThatIsNotTheConfigsIsNamedWithBoth) {
  for (auto& [name, tensor] : tensors_) {
    const auto right = tensor.shape;
    tensor.shape[0] += 1;
    ExpectError(
        ImportWith(tensors_), Code::kCorruption,
        {"'" + name + "'", "[" + std::to_string(right[0] + 1), "[" + std::to_string(right[0])});
    tensor.shape = {Elements({"F32", right})};
    tensor.shape.push_back(1);
    EXPECT_FALSE(ImportWith(tensors_)) << name;
    tensor.shape = right;
  }
  EXPECT_TRUE(ImportWith(tensors_));
}

TEST_F(Folder, ANumberTypeThatWeightsCannotHaveIsNamed) {
  tensors_["model.layers.0.mlp.up_proj.weight"].dtype = "I16";
  ExpectError(
      ImportWith(tensors_), Code::kUnsupported,
      {"'model.layers.0.mlp.up_proj.weight' is I16", "weights may be F32, F16, BF16, Q8_0"});
}

TEST_F(Folder, EveryFloatTypeMayBeMixed) {
  tensors_["model.layers.0.mlp.up_proj.weight"].dtype = "BF16";
  tensors_["model.norm.weight"].dtype = "F16";
  const auto m = ImportWith(tensors_);
  ASSERT_TRUE(m) << m.error().message;
  EXPECT_EQ(m->layers[0][Slot::kUp].view.dtype, DType::kBf16);
  EXPECT_EQ(m->final_norm.dtype, DType::kF16);
}

TEST_F(Folder, ATiedTableMayStandUnderEitherNameOrBothIfEqual) {
  const std::string tied = R"(, "tie_word_embeddings": true)";
  ExpectError(ImportWith(tensors_, tied), Code::kInvalidArgument, {"differ", "set it to false"});
  folder_.Write("config.json", kConfig + tied + "}");
  folder_.Write("model.safetensors", Pack(tensors_, 'e'));
  const auto equal = ImportModel(folder_.path());
  ASSERT_TRUE(equal) << equal.error().message;
  EXPECT_FALSE(equal->lm_head);
  Tensors only_head = tensors_, only_table = tensors_;
  only_head.erase("model.embed_tokens.weight");
  only_table.erase("lm_head.weight");
  const auto head = ImportWith(only_head, tied), table = ImportWith(only_table, tied);
  ASSERT_TRUE(head && table);
  EXPECT_EQ(head->embedding.name, "lm_head.weight");
  EXPECT_EQ(table->embedding.name, "model.embed_tokens.weight");
  ExpectError(ImportWith(only_table), Code::kNotFound, {"lm_head.weight"});  // untied
}

// hidden 4, 1 layer, 2 heads of 2, ffn 16, vocab 7, 8 positions.
Tensors WholeGpt2(const std::string& prefix) {
  const std::string type = "F32";
  Tensors tensors = {{"wte.weight", {type, {7, 4}}}, {"wpe.weight", {type, {8, 4}}}};
  for (const char* norm : {"ln_f", "h.0.ln_1", "h.0.ln_2"}) {
    tensors[std::string(norm) + ".weight"] = tensors[std::string(norm) + ".bias"] = {type, {4}};
  }
  const std::pair<const char*, std::vector<uint64_t>> matrices[] = {{"attn.c_attn", {4, 12}},
                                                                    {"attn.c_proj", {4, 4}},
                                                                    {"mlp.c_fc", {4, 16}},
                                                                    {"mlp.c_proj", {16, 4}}};
  for (const auto& [name, shape] : matrices) {
    tensors[std::string("h.0.") + name + ".weight"] = {type, shape};
    tensors[std::string("h.0.") + name + ".bias"] = {type, {shape[1]}};
  }
  Tensors named;
  for (const auto& [name, tensor] : tensors) named[prefix + name] = tensor;
  return named;
}

class Gpt2Folder : public testing::Test {
 protected:
  Result<ImportedModel> ImportWith(const Tensors& tensors) {
    folder_.Write("config.json", R"({"architectures": ["GPT2LMHeadModel"], "vocab_size": 7,
        "n_embd": 4, "n_layer": 1, "n_head": 2, "n_positions": 8})");
    folder_.Write("model.safetensors", Pack(tensors));
    return ImportModel(folder_.path());
  }
  TemporaryFolder folder_;
};

TEST_F(Gpt2Folder, IsReadWithAndWithoutThePrefixOfItsNames) {
  for (const char* prefix : {"transformer.", ""}) {
    Tensors tensors = WholeGpt2(prefix);
    tensors[std::string(prefix) + "h.0.attn.bias"] = {"F32", {1, 1, 8, 8}};  // the causal mask
    const auto m = ImportWith(tensors);
    ASSERT_TRUE(m) << m.error().message;
    const SlotTensors& layer = m->layers[0];
    EXPECT_EQ(layer[Slot::kV].view.shape, (std::vector<uint64_t>{4, 4}));
    EXPECT_EQ(layer[Slot::kV].column_stride, 12u);
    EXPECT_EQ(layer[Slot::kV].view.data - layer[Slot::kQ].view.data, 8 * 4);
    EXPECT_EQ(layer[Slot::kVBias].view.data - layer[Slot::kQBias].view.data, 8 * 4);
    EXPECT_EQ(layer[Slot::kUp].view.shape, (std::vector<uint64_t>{16, 4}));
    EXPECT_EQ(m->positions->shape, (std::vector<uint64_t>{8, 4}));
    EXPECT_TRUE(m->final_norm_bias);
    EXPECT_FALSE(m->lm_head);
  }
}

TEST_F(Gpt2Folder, NamesWhatIsMissingDoubledOrOfAnotherShape) {
  Tensors tensors = WholeGpt2("");
  tensors.erase("h.0.attn.c_attn.weight");
  ExpectError(ImportWith(tensors), Code::kNotFound, {"1 of the tensors", "h.0.attn.c_attn.weight"});
  tensors["h.0.attn.c_attn.weight"] = {"F32", {12, 4}};  // not turned
  ExpectError(ImportWith(tensors), Code::kCorruption, {"c_attn.weight", "[12, 4]", "[4, 12]"});
  tensors = WholeGpt2("");
  tensors["transformer.wte.weight"] = tensors["wte.weight"];
  ExpectError(ImportWith(tensors), Code::kCorruption, {"wte.weight", "transformer.", "same"});
}

class Shards : public testing::Test {
 protected:
  Result<ImportedModel> ImportWith(const std::string& index) {
    folder_.Write("config.json", std::string(kConfig) + "}");
    folder_.Write("model.safetensors.index.json", index);
    return ImportModel(folder_.path());
  }
  std::string Index(const std::string& shard_of_norm) {
    std::string map;
    for (const auto& [name, tensor] : Whole(false)) {
      map += (map.empty() ? "\"" : ",\"") + name + "\":\"" +
             (name == "model.norm.weight" ? shard_of_norm : "a.safetensors") + "\"";
    }
    return R"({"metadata": {}, "weight_map": {)" + map + "}}";
  }
  TemporaryFolder folder_;
};

TEST_F(Shards, AreReadFromTheFilesThatTheIndexNames) {
  Tensors a = Whole(false);
  const Tensors norm = {{"model.norm.weight", a.at("model.norm.weight")}};
  folder_.Write("sub/b.safetensors", Pack(norm, 'b'));
  folder_.Write("a.safetensors", Pack(a, 'a'));
  const auto m = ImportWith(Index("sub/b.safetensors"));
  ASSERT_TRUE(m) << m.error().message;
  EXPECT_EQ(m->final_norm.data[0], std::byte{'b'});
  EXPECT_EQ(m->mapped_files.size(), 2u);
}

TEST_F(Shards, StayInTheFolder) {
  folder_.Write("a.safetensors", Pack(Whole(false)));
  const std::string outside = (folder_.path() / "a.safetensors").string();
  for (const std::string& shard :
       {std::string("../x.safetensors"), std::string("sub/../../x"), std::string(".."),
        std::string(), outside, std::string("a\\u0000.safetensors")}) {
    ExpectError(ImportWith(Index(shard)), Code::kInvalidArgument,
                {"model.norm.weight", "same folder"});
  }
}

TEST_F(Shards, AMissingFileOrTensorIsNamed) {
  Tensors some = Whole(false);
  some.erase("model.norm.weight");
  folder_.Write("a.safetensors", Pack(some));
  ExpectError(ImportWith(Index("b.safetensors")), Code::kNotFound, {"b.safetensors"});
  ExpectError(ImportWith(Index("a.safetensors")), Code::kNotFound,
              {"model.norm.weight", "a.safetensors", "index"});
}

TEST_F(Shards, AMalformedIndexIsRefused) {
  ExpectError(ImportWith("{"), Code::kCorruption, {"index.json", "not valid JSON"});
  ExpectError(ImportWith("[]"), Code::kCorruption, {"index.json", "not a JSON object"});
  ExpectError(ImportWith(R"({"weight_map": []})"), Code::kCorruption, {"weight_map"});
  ExpectError(ImportWith(R"({"weight_map": {"w": 3}})"), Code::kInvalidArgument, {"'w'"});
  ExpectError(ImportWith(R"({"weight_map": {}})"), Code::kNotFound, {"12 of the tensors"});
}

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
  // The same model as another architecture with Llama's tensors.
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

TEST_F(GgufModel, IsReadFromItsMetadata) {
  const auto m = ImportWith([](GgufBuilder& b, Tensors&) {
    b.U32("tokenizer.ggml.bos_token_id", 1).U32("tokenizer.ggml.eos_token_id", 2);
    b.U32("tokenizer.ggml.eot_token_id", 3).Text("tokenizer.chat_template", "{{ x }}");
  });
  ASSERT_TRUE(m) << m.error().message;
  EXPECT_EQ(m->config.head_dim, 4u);
  EXPECT_EQ(m->config.vocab_size, 7u);
  EXPECT_EQ(m->config.eos, (std::vector<TokenId>{2, 3}));
  EXPECT_EQ(m->chat_template, "{{ x }}");
  EXPECT_TRUE(m->lm_head);
}

TEST_F(GgufModel, BiasesAndTyingFollowFromTheTensors) {
  const auto m = ImportWith([](GgufBuilder&, Tensors& t) {
    t.erase("output.weight");
    t["blk.0.attn_q.bias"] = {"F32", {8}};
    t["blk.0.attn_k.bias"] = t["blk.0.attn_v.bias"] = {"F32", {4}};
  });
  ASSERT_TRUE(m) << m.error().message;
  EXPECT_TRUE(m->config.qkv_bias && m->config.tied_embeddings && !m->config.o_bias);
  EXPECT_TRUE(m->layers[0][Slot::kQBias].interleaved_rope_rows);
  EXPECT_FALSE(m->layers[0][Slot::kVBias].interleaved_rope_rows);
  ExpectError(ImportWith([](GgufBuilder&, Tensors& t) {
                t["blk.0.attn_q.bias"] = {"F32", {8}};
              }),
              Code::kNotFound, {"attn_k.bias", "attn_v.bias"});
}

// GGUF files of Gemma do not hold query_pre_attn_scalar. The largest Gemma 2 and 3 have
// hidden_size / heads there, all others head_dim.
TEST_F(GgufModel, TheLargestGemmasHaveAnotherQueryScale) {
  const auto import = [&](const std::string& architecture, uint32_t layers) {
    GgufBuilder b;
    const Tensors whole = Whole(true);
    Tensors tensors;
    for (const auto& [name, tensor] : whole) {
      if (!name.starts_with("blk.0.")) tensors[name] = tensor;
    }
    tensors.erase("output.weight");  // tied
    for (uint32_t layer = 0; layer < layers; ++layer) {
      const std::string at = "blk." + std::to_string(layer) + ".";
      for (const auto& [name, tensor] : whole) {
        if (name.starts_with("blk.0.")) tensors[at + name.substr(6)] = tensor;
      }
      for (const char* norm : {"post_attention_norm", "post_ffw_norm"}) {
        tensors[at + norm + ".weight"] = {"F32", {6}};
      }
      if (architecture == "gemma2") continue;
      for (const char* norm : {"attn_q_norm", "attn_k_norm"}) {
        tensors[at + norm + ".weight"] = {"F32", {4}};
      }
    }
    Metadata(b, architecture, layers);
    return Import(b, tensors);
  };
  const float other = 1.0f / __builtin_sqrtf(6.0f / 2);
  for (const auto& [architecture, layers] : {std::pair("gemma2", 46u), {"gemma3", 62u}}) {
    const auto largest = import(architecture, layers);
    ASSERT_TRUE(largest) << largest.error().message;
    EXPECT_EQ(largest->config.attention_multiplier, std::optional<double>(other));
    const auto smaller = import(architecture, layers - 1);
    ASSERT_TRUE(smaller) << smaller.error().message;
    EXPECT_FALSE(smaller->config.attention_multiplier);  // 1 / sqrt(head_dim)
  }
}

TEST_F(GgufModel, LongRopeIsReadFromItsTwoTensors) {
  const auto import = [&](const std::vector<float>& shorts, const std::vector<float>& longs,
                          std::optional<uint32_t> original) {
    return ImportWith([&](GgufBuilder& b, Tensors&) {
      const auto add = [&](const char* name, const std::vector<float>& values) {
        std::string bytes;
        for (const float value : values) bytes += Le(value);
        if (!values.empty()) b.Tensor(name, {values.size()}, 0, bytes);
      };
      add("rope_factors_short.weight", shorts);
      add("rope_factors_long.weight", longs);
      if (original) b.U32("llama.rope.scaling.original_context_length", *original);
      b.F32("llama.rope.scaling.attn_factor", 1.25f);
    });
  };
  const auto model = import({1, 2}, {3, 4}, 8);
  ASSERT_TRUE(model) << model.error().message;
  EXPECT_EQ(model->config.rope.type, RopeType::kLongRope);
  EXPECT_EQ(model->config.rope.freq_factors, (std::vector<float>{1, 2}));
  EXPECT_EQ(model->config.rope.long_freq_factors, (std::vector<float>{3, 4}));
  EXPECT_EQ(model->config.rope.original_max_positions, 8);
  EXPECT_EQ(model->config.rope.attention_factor, 1.25);
  using enum Code;
  ExpectError(import({1, 2}, {}, 8), kInvalidArgument, {"'rope_factors_long.weight' is missing"});
  ExpectError(import({}, {3, 4}, 8), kInvalidArgument, {"'rope_factors_short.weight' is missing"});
  ExpectError(import({1, 2}, {3, 4}, {}), kInvalidArgument,
              {"llama.rope.scaling.original_context_length"});
  ExpectError(import({1, 2, 3}, {3, 4}, 8), kInvalidArgument, {"3 short RoPE factors"});
  ExpectError(import({1, 2}, {3}, 8), kInvalidArgument, {"1 long RoPE factors"});
  for (const float wrong : {0.0f, -1.0f, NAN, INFINITY}) {
    ExpectError(import({1, wrong}, {3, 4}, 8), kInvalidArgument, {"short RoPE factor is"});
    ExpectError(import({1, 2}, {wrong, 4}, 8), kInvalidArgument, {"long RoPE factor is"});
  }
}

TEST_F(GgufModel, LinearRopeAndFrequencyFactorsAreRead) {
  const auto linear = ImportWith([](GgufBuilder& b, Tensors&) {
    b.Text("llama.rope.scaling.type", "linear").F32("llama.rope.scaling.factor", 4);
    b.F32("llama.rope.freq_base", 5e5f);
  });
  ASSERT_TRUE(linear) << linear.error().message;
  EXPECT_EQ(linear->config.rope.type, RopeType::kLinear);
  EXPECT_EQ(linear->config.rope.factor, 4);
  EXPECT_EQ(linear->config.rope.theta, 5e5);
  const auto factors = [&](const std::vector<float>& values) {
    return ImportWith([&](GgufBuilder& b, Tensors&) {
      std::string bytes;
      for (float value : values) bytes += Le(value);
      b.Tensor("rope_freqs.weight", {values.size()}, 0, bytes);
    });
  };
  EXPECT_EQ(factors({1, 8})->config.rope.freq_factors, (std::vector<float>{1, 8}));
  ExpectError(factors({1, 2, 3}), Code::kInvalidArgument, {"3 RoPE frequency factors"});
  ExpectError(factors({1, 0}), Code::kInvalidArgument, {"factor is 0"});
  ExpectError(factors({1, NAN}), Code::kInvalidArgument, {"factor is nan"});
  ExpectError(factors(std::vector<float>(600, 1)), Code::kUnsupported, {"rope_freqs.weight"});
}

TEST_F(GgufModel, YarnIsReadWithItsDefaults) {
  const auto yarn = [&](const std::function<void(GgufBuilder&)>& more) {
    return ImportWith([&](GgufBuilder& b, Tensors&) {
      b.Text("llama.rope.scaling.type", "yarn").F32("llama.rope.scaling.factor", 4);
      more(b);
    });
  };
  const auto plain = yarn([](GgufBuilder&) {});
  ASSERT_TRUE(plain) << plain.error().message;
  EXPECT_EQ(plain->config.rope.type, RopeType::kYarn);
  EXPECT_EQ(plain->config.rope.factor, 4);
  EXPECT_EQ(plain->config.rope.original_max_positions, 64);  // context_length
  EXPECT_NEAR(plain->config.rope.attention_factor, 1.1386294361119891, 1e-15);
  const auto all = yarn([](GgufBuilder& b) {
    b.U32("llama.rope.scaling.original_context_length", 16);
    b.F32("llama.rope.scaling.yarn_beta_fast", 16).F32("llama.rope.scaling.yarn_beta_slow", 0.5f);
    b.F32("llama.rope.scaling.yarn_attn_factor", 1.25f).F32("llama.rope.scaling.attn_factor", 2);
  });
  ASSERT_TRUE(all) << all.error().message;
  EXPECT_EQ(all->config.rope.original_max_positions, 16);
  EXPECT_EQ(all->config.rope.beta_fast, 16);
  EXPECT_EQ(all->config.rope.beta_slow, 0.5);
  EXPECT_EQ(all->config.rope.attention_factor, 2.5);
}

TEST_F(GgufModel, FamiliesAreReadFromTheirKeys) {
  const auto granite = ImportAs("granite", [](GgufBuilder& b, Tensors&) {
    b.F32("granite.attention.scale", 0.125f).F32("granite.embedding_scale", 12);
    b.F32("granite.residual_scale", 0.25f).F32("granite.logit_scale", 8);
    b.Raw("granite.rope.scaling.finetuned", 7, "\x01");
  });
  ASSERT_TRUE(granite) << granite.error().message;
  EXPECT_EQ(granite->config.attention_multiplier, 0.125);
  EXPECT_EQ(granite->config.embedding_multiplier, 12);
  EXPECT_EQ(granite->config.residual_multiplier, 0.25);
  EXPECT_EQ(granite->config.logits_scaling, 8);
  EXPECT_TRUE(granite->layers[0][Slot::kQ].interleaved_rope_rows);
  const auto silent = ImportAs("granite", [](GgufBuilder& b, Tensors&) {
    b.F32("granite.attention.scale", 0);  // llama.cpp's word for 1/sqrt(head_dim)
  });
  ASSERT_TRUE(silent) << silent.error().message;
  EXPECT_FALSE(silent->config.attention_multiplier);
  ExpectError(ImportAs("granite",
                       [](GgufBuilder& b, Tensors&) {
                         b.Raw("granite.rope.scaling.finetuned", 7, std::string(1, '\0'));
                       }),
              Code::kUnsupported, {"granite.rope.scaling.finetuned", "without RoPE"});
  ExpectError(
      ImportAs("granite", [](GgufBuilder& b, Tensors&) { b.F32("granite.logit_scale", 0); }),
      Code::kInvalidArgument, {"logits scaling is 0"});
  const auto smollm3 = ImportAs("smollm3", [](GgufBuilder&, Tensors&) {});
  ASSERT_TRUE(smollm3) << smollm3.error().message;
  EXPECT_EQ(smollm3->config.rotated_layers, std::vector<bool>{true});
  const auto qwen2 = ImportAs("qwen2", [](GgufBuilder& b, Tensors& t) {
    b.U32("qwen2.rope.dimension_count", 2);
    t["blk.0.attn_q.bias"] = {"F32", {8}};
    t["blk.0.attn_k.bias"] = t["blk.0.attn_v.bias"] = {"F32", {4}};
  });
  ASSERT_TRUE(qwen2) << qwen2.error().message;
  EXPECT_EQ(qwen2->config.rope.rotated_dims, 2u);
  EXPECT_FALSE(qwen2->layers[0][Slot::kQ].interleaved_rope_rows);
}

TEST_F(GgufModel, BiasesThatAFamilyAlwaysHasMustBeThere) {
  ExpectError(ImportAs("qwen2", [](GgufBuilder&, Tensors&) {}), Code::kNotFound,
              {"3 of the tensors", "Qwen2ForCausalLM", "blk.0.attn_k.bias"});
}

TEST_F(GgufModel, EveryLayerOfLlamaHasTheWindowThatIsNamed) {
  const auto windows = [&](uint32_t window) {
    const auto model = ImportWith(
        [&](GgufBuilder& b, Tensors&) { b.U32("llama.attention.sliding_window", window); });
    EXPECT_TRUE(model) << (model ? "" : model.error().message);
    return model->config.windows;
  };
  const std::vector<uint32_t> all = windows(8);
  EXPECT_FALSE(all.empty());
  for (const uint32_t window : all) EXPECT_EQ(window, 8u);
  EXPECT_TRUE(windows(64).empty());  // as long as the context
  EXPECT_TRUE(windows(0).empty());
  ExpectError(
      ImportWith([](GgufBuilder& b, Tensors&) { b.Text("llama.attention.sliding_window", "8"); }),
      Code::kInvalidArgument, {"llama.attention.sliding_window"});
}

TEST_F(GgufModel, RefusesWhatItWouldComputeWrongly) {
  const auto with = [&](const std::function<void(GgufBuilder&)>& add) {
    return ImportWith([&](GgufBuilder& b, Tensors&) { add(b); });
  };
  ExpectError(with([](GgufBuilder& b) { b.Text("llama.rope.scaling.type", "longrope"); }),
              Code::kUnsupported, {"'longrope'"});
  ExpectError(with([](GgufBuilder& b) {
                b.Text("llama.rope.scaling.type", "yarn").F32("llama.rope.scaling.factor", 2);
                b.F32("llama.rope.scaling.yarn_ext_factor", 0.5f);
              }),
              Code::kUnsupported, {"llama.rope.scaling.yarn_ext_factor"});
  ExpectError(with([](GgufBuilder& b) { b.U32("llama.rope.dimension_count", 2); }),
              Code::kUnsupported, {"2 of 4 numbers"});
  ExpectError(ImportAs("qwen3", [](GgufBuilder& b,
                                   Tensors&) { b.U32("qwen3.attention.sliding_window", 8); }),
              Code::kUnsupported, {"'qwen3'", "window of 8 tokens", "64"});
  for (const char* key : {"llama.attn_logit_softcapping", "llama.final_logit_softcapping",
                          "llama.rope.freq_base_swa", "llama.attention.sliding_window_pattern"}) {
    ExpectError(with([key](GgufBuilder& b) { b.F32(key, 6); }), Code::kUnsupported, {key});
  }
  ExpectError(with([](GgufBuilder& b) { b.F32("llama.residual_scale", 0.5f); }), Code::kUnsupported,
              {"llama.residual_scale"});
  ExpectError(ImportWith([](GgufBuilder&, Tensors& t) {
                t["blk.0.attn_q_norm.weight"] = {"F32", {4}};
              }),
              Code::kUnsupported, {"'blk.0.attn_q_norm.weight'"});
  ExpectError(with([](GgufBuilder& b) { b.U32("llama.attention.value_length", 6); }),
              Code::kUnsupported, {"6 value "});
  ExpectError(with([](GgufBuilder& b) { b.U32("llama.expert_count", 8); }), Code::kInvalidArgument,
              {"'llama.expert_used_count' is missing"});
  ExpectError(with([](GgufBuilder& b) { b.Raw("split.count", 2, Le<uint16_t>(3)); }),
              Code::kInvalidArgument, {"one of 3 parts"});
  ExpectError(with([](GgufBuilder& b) { b.U32("llama.vocab_size", 8); }), Code::kCorruption,
              {"token_embd.weight", "[7, 6]", "[8, 6]"});
  ExpectError(with([](GgufBuilder& b) { b.U32("tokenizer.ggml.eos_token_id", 7); }),
              Code::kInvalidArgument, {"id 7", "vocabulary of 7"});
  ExpectError(with([](GgufBuilder& b) { b.Text("llama.rope.freq_base", "x"); }),
              Code::kInvalidArgument, {"llama.rope.freq_base", "float"});
  ExpectError(with([](GgufBuilder& b) { b.F32("llama.rope.freq_base", NAN); }),
              Code::kInvalidArgument, {"theta is nan"});
  ExpectError(with([](GgufBuilder& b) { b.U32("tokenizer.chat_template", 1); }),
              Code::kInvalidArgument, {"tokenizer.chat_template", "string"});
}

TEST_F(GgufModel, RefusesMissingOrImpossibleMetadata) {
  const auto bare = [&](const std::function<void(GgufBuilder&)>& add) {
    return ImportWith([&](GgufBuilder& b, Tensors&) { add(b); }, /*metadata=*/false);
  };
  ExpectError(bare([](GgufBuilder&) {}), Code::kUnsupported, {"'none'"});
  ExpectError(bare([](GgufBuilder& b) { b.Text("general.architecture", "mamba"); }),
              Code::kUnsupported, {"'mamba'", "llama"});
  ExpectError(bare([](GgufBuilder& b) { b.U32("general.architecture", 1); }),
              Code::kInvalidArgument, {"general.architecture"});
  ExpectError(bare([](GgufBuilder& b) { b.Text("general.architecture", "llama"); }),
              Code::kInvalidArgument, {"llama.embedding_length' is missing"});
  ExpectError(bare([](GgufBuilder& b) {
                b.Text("general.architecture", "llama").U32("llama.embedding_length", 0);
              }),
              Code::kInvalidArgument, {"llama.embedding_length", "from 1 to"});
  ExpectError(bare([](GgufBuilder& b) {
                b.Text("general.architecture", "llama").U32("llama.embedding_length", 6);
                b.Raw("llama.block_count", 5, Le<int32_t>(-1));
              }),
              Code::kInvalidArgument, {"llama.block_count"});
  ExpectError(bare([](GgufBuilder& b) {
                b.Text("general.architecture", "llama").U32("llama.embedding_length", 6);
                b.U32("llama.block_count", 1);
                b.Raw("llama.attention.head_count", 9,
                      Le<uint32_t>(4) + Le<uint64_t>(1) + Le<uint32_t>(2));
              }),
              Code::kUnsupported, {"llama.attention.head_count", "layer to layer"});
}

}  // namespace
}  // namespace kvasir
