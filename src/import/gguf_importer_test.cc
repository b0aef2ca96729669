// Hand-made GGUF files, whole and broken, through the importer.
#include <cmath>

#include "import/handmade_model_for_test.h"

namespace kvasir {
namespace {

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

// Old files call the first three otherwise.
TEST_F(GgufModel, NamesTheTokensThatMarkAMiddle) {
  const auto m = ImportWith([](GgufBuilder& b, Tensors&) {
    b.U32("tokenizer.ggml.fim_pre_token_id", 1).U32("tokenizer.ggml.prefix_token_id", 6);
    b.U32("tokenizer.ggml.suffix_token_id", 2).U32("tokenizer.ggml.fim_mid_token_id", 3);
    b.U32("tokenizer.ggml.fim_sep_token_id", 4).U32("tokenizer.ggml.fim_rep_token_id", 7);
  });
  ASSERT_TRUE(m) << m.error().message;
  EXPECT_EQ(m->config.fim.prefix, 1);
  EXPECT_EQ(m->config.fim.suffix, 2);
  EXPECT_EQ(m->config.fim.middle, 3);
  EXPECT_EQ(m->config.fim.file, 4);
  EXPECT_FALSE(m->config.fim.repo);  // the vocabulary ends at 6
  EXPECT_FALSE(m->config.fim.pad);
}

TEST_F(GgufModel, TemplatesHaveNames) {
  const auto m = ImportWith([](GgufBuilder& b, Tensors&) {
    b.Text("tokenizer.chat_template", "{{ x }}")
        .Text("tokenizer.chat_template.tool_use", "tools")
        .Text("tokenizer.chat_template.rag", "documents")
        .Text("tokenizer.chat_template.none", "")
        .Text("tokenizer.chat_templates", "not a template");
  });
  ASSERT_TRUE(m) << m.error().message;
  EXPECT_EQ(m->chat_template, "{{ x }}");
  EXPECT_EQ(m->named_templates,
            (std::map<std::string, std::string>{{"rag", "documents"}, {"tool_use", "tools"}}));
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
  ExpectError(with([](GgufBuilder& b) { b.Raw("llama.attention.causal", 7, std::string(1, 0)); }),
              Code::kUnsupported, {"llama.attention.causal", "is false"});
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
  ExpectError(with([](GgufBuilder& b) { b.Text("tokenizer.ggml.eos_token_id", "x"); }),
              Code::kInvalidArgument, {"tokenizer.ggml.eos_token_id", "whole number"});
  ExpectError(with([](GgufBuilder& b) { b.Text("llama.rope.freq_base", "x"); }),
              Code::kInvalidArgument, {"llama.rope.freq_base", "float"});
  ExpectError(with([](GgufBuilder& b) { b.F32("llama.rope.freq_base", NAN); }),
              Code::kInvalidArgument, {"theta is nan"});
  ExpectError(with([](GgufBuilder& b) { b.U32("tokenizer.chat_template", 1); }),
              Code::kInvalidArgument, {"tokenizer.chat_template", "string"});
}

// Converters write -1, or an id beyond the vocabulary, for a token that the model does not have.
TEST_F(GgufModel, AnIdThatIsNoTokenIsAbsent) {
  const auto m = ImportWith([](GgufBuilder& b, Tensors&) {
    b.Raw("tokenizer.ggml.bos_token_id", 5, Le<int32_t>(-1));
    b.U32("tokenizer.ggml.eos_token_id", 7).U32("tokenizer.ggml.eot_token_id", 6);
  });
  ASSERT_TRUE(m) << m.error().message;
  EXPECT_TRUE(m->config.bos.empty());
  EXPECT_EQ(m->config.eos, std::vector<TokenId>{6});
}

TEST_F(GgufModel, RefusesMissingOrImpossibleMetadata) {
  const auto bare = [&](const std::function<void(GgufBuilder&)>& add) {
    return ImportWith([&](GgufBuilder& b, Tensors&) { add(b); }, /*metadata=*/false);
  };
  ExpectError(bare([](GgufBuilder&) {}), Code::kUnsupported, {"'none'"});
  ExpectError(bare([](GgufBuilder& b) { b.Text("general.architecture", "mamba"); }),
              Code::kUnsupported, {"'mamba'", "docs/models.md"});
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
                b.U32("llama.block_count", 2);
                b.Raw("llama.attention.head_count", 9,
                      Le<uint32_t>(4) + Le<uint64_t>(2) + Le<uint32_t>(2) + Le<uint32_t>(4));
              }),
              Code::kUnsupported, {"llama.attention.head_count", "layer to layer"});
}

}  // namespace
}  // namespace kvasir
