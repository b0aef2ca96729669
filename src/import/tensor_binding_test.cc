// Hand-made Hugging Face folders, whole and broken, through the importer.
#include "import/handmade_model_for_test.h"

namespace kvasir {
namespace {

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

// Makes tensors of hidden 4, 1 layer, 2 heads of 2, ffn 16, vocab 7, 8 positions.
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

}  // namespace
}  // namespace kvasir
