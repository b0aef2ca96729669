#include "import/importer.h"

#include <fmt/format.h>

#include <cmath>
#include <numbers>

#include "base/needs_for_test.h"
#include "import/architecture.h"
#include "import/model_files_for_test.h"
#include "import/tokenizer_files.h"
#include "source_paths.h"

namespace kvasir {
namespace {

namespace fs = std::filesystem;

fs::path Demo() { return fs::path(KVASIR_SOURCE_DIR) / "models/kvasir-demo"; }
fs::path Shared(const std::string& path) { return fs::path(KVASIR_SHARED_DIR) / path; }

ImportedModel Import(const fs::path& path) {
  auto model = ImportModel(path);
  EXPECT_TRUE(model) << model.error().message;
  return model ? std::move(*model) : ImportedModel{};
}

// Writes "the model's, name text, ...".
std::string TemplatesOf(const ImportedModel& model) {
  std::string texts = model.chat_template;
  for (const auto& [name, text] : model.named_templates) texts += ", " + name + " " + text;
  return texts;
}

float NumberAt(const TensorView& view, uint64_t i) {
  uint32_t bits = 0;
  std::memcpy(&bits, view.data + i * BytesOf(view.dtype), BytesOf(view.dtype));
  if (view.dtype == DType::kF16) {
    _Float16 half;
    std::memcpy(&half, &bits, 2);
    return static_cast<float>(half);
  }
  if (view.dtype == DType::kBf16) bits <<= 16;
  float single;
  std::memcpy(&single, &bits, 4);
  return single;
}

// Returns all numbers of a tensor, rows of each head in our order.
std::vector<float> Numbers(const MatrixSource& source, uint32_t head_dim) {
  const TensorView& view = source.view;
  const uint64_t rows = view.shape[0], columns = view.shape.size() > 1 ? view.shape[1] : 1;
  std::vector<float> numbers(rows * columns);
  for (uint64_t stored = 0; stored < rows; ++stored) {
    uint64_t row = stored;
    if (source.interleaved_rope_rows) {
      const uint64_t in_head = stored % head_dim;
      row = stored - in_head + in_head / 2 + in_head % 2 * (head_dim / 2);
    }
    for (uint64_t c = 0; c < columns; ++c) {
      numbers[row * columns + c] = NumberAt(view, stored * columns + c);
    }
  }
  return numbers;
}
std::vector<float> Numbers(const TensorView& view) { return Numbers(MatrixSource{view}, 1); }

void ExpectSameModel(const ImportedModel& a, const ImportedModel& b) {
  const uint32_t d = a.config.head_dim;
  EXPECT_EQ(a.config.num_kv_heads, b.config.num_kv_heads);
  EXPECT_EQ(d, b.config.head_dim);
  EXPECT_EQ(a.config.max_positions, b.config.max_positions);
  EXPECT_EQ(a.config.rope.theta, b.config.rope.theta);
  EXPECT_EQ(a.config.bos, b.config.bos);
  EXPECT_EQ(a.config.eos, b.config.eos);
  EXPECT_FLOAT_EQ(a.config.rms_norm_eps, b.config.rms_norm_eps);
  EXPECT_EQ(a.config.tied_embeddings, b.config.tied_embeddings);
  EXPECT_EQ(Numbers(a.embedding), Numbers(b.embedding));
  EXPECT_EQ(Numbers(a.final_norm), Numbers(b.final_norm));
  ASSERT_EQ(a.lm_head.has_value(), b.lm_head.has_value());
  if (a.lm_head) {
    EXPECT_EQ(Numbers(*a.lm_head, d), Numbers(*b.lm_head, d));
  }
  ASSERT_EQ(a.layers.size(), b.layers.size());
  for (size_t i = 0; i < a.layers.size(); ++i) {
    const SlotTensors &x = a.layers[i], &y = b.layers[i];
    x.ForEach([&](Slot slot, const MatrixSource& tensor) {
      ASSERT_NE(y.Find(slot), nullptr) << tensor.view.name;
      if (tensor.view.shape.size() == 1) {
        EXPECT_EQ(Numbers(tensor.view), Numbers(y[slot].view)) << tensor.view.name;
      } else {
        EXPECT_EQ(Numbers(tensor, d), Numbers(y[slot], d)) << tensor.view.name;
      }
    });
  }
}

TEST(Importer, ReadsTheBundledModel) {
  const ImportedModel m = Import(Demo() / "");
  EXPECT_EQ(m.name, "kvasir-demo");
  EXPECT_TRUE(m.path.is_absolute());
  EXPECT_EQ(m.config.hidden_size, 192u);
  EXPECT_EQ(m.config.head_dim, 32u);
  EXPECT_EQ(m.config.rope.theta, 100000.0);
  EXPECT_TRUE(m.config.tied_embeddings);
  EXPECT_FALSE(m.lm_head);
  EXPECT_EQ(m.config.eos, std::vector<TokenId>{2});
  EXPECT_EQ(m.embedding.shape, (std::vector<uint64_t>{1024, 192}));
  EXPECT_EQ(m.layers.size(), 4u);
  EXPECT_EQ(m.layers[3][Slot::kK].view.name, "model.layers.3.self_attn.k_proj.weight");
  EXPECT_EQ(m.layers[3][Slot::kK].view.shape, (std::vector<uint64_t>{64, 192}));
  EXPECT_FALSE(m.layers[3][Slot::kK].interleaved_rope_rows);
  EXPECT_FALSE(m.layers[3].Find(Slot::kQBias));
  EXPECT_EQ(m.mapped_files.size(), 1u);
  EXPECT_NE(m.tokenizer_json.find("\"model\""), std::string::npos);
  EXPECT_FALSE(m.tokenizer_config_json.empty());
  EXPECT_NE(m.chat_template.find("message"), std::string::npos);
}

TEST(Importer, AListOfTemplatesHasNames) {
  const auto of = [](const std::string& list) {
    const TemporaryFolder folder;
    folder.Write("tokenizer_config.json", R"({"chat_template": )" + list + "}");
    ImportedModel model;
    EXPECT_TRUE(ReadTokenizerFiles(folder.path(), model)) << list;
    return TemplatesOf(model);
  };
  const std::string plain = R"({"name": "default", "template": "d"})";
  const std::string tools = R"({"name": "tool_use", "template": "t"})";
  EXPECT_EQ(of("[" + plain + "]"), "d");
  EXPECT_EQ(of("[" + plain + ", 7, {}, " + tools + "]"), "d, tool_use t");
  EXPECT_EQ(of(R"([{"name": "rag", "template": "r"}, )" + tools + ", " + plain + ", " +
               R"({"name": "rag", "template": "second"}, {"name": "x"}, {"template": "y"}])"),
            "d, rag r, tool_use t");
  EXPECT_EQ(of("[" + tools + "]"), ", tool_use t") << "a chat without tools has no template";
  EXPECT_EQ(of(R"("{{ x }}")"), "{{ x }}");
}

TEST(Importer, AFolderOfTemplatesHasThemByTheirNames) {
  const TemporaryFolder folder;
  const auto read = [&folder] {
    ImportedModel model;
    EXPECT_TRUE(ReadTokenizerFiles(folder.path(), model));
    return TemplatesOf(model);
  };
  folder.Write("chat_template.json", R"({"chat_template": "j"})");
  EXPECT_EQ(read(), "j");
  folder.Write("chat_template.json", R"({"chat_template": [{"name": "default", "template": "j"},)"
                                     R"( {"name": "rag", "template": "jr"}]})");
  EXPECT_EQ(read(), "j, rag jr");
  std::filesystem::create_directory(folder.path() / "additional_chat_templates");
  folder.Write("additional_chat_templates/rag.jinja", "r");
  folder.Write("additional_chat_templates/tool_use.jinja", "t");
  folder.Write("additional_chat_templates/README.md", "no template");
  EXPECT_EQ(read(), "j, rag r, tool_use t") << "a file comes first";
  const std::string list = R"([{"name": "default", "template": "c"}, )"
                           R"({"name": "tool_use", "template": "u"}])";
  folder.Write("tokenizer_config.json", R"({"chat_template": )" + list + "}");
  EXPECT_EQ(read(), "c, rag r, tool_use t");
  folder.Write("chat_template.jinja", "d");
  EXPECT_EQ(read(), "d, rag r, tool_use t");
  std::filesystem::remove_all(folder.path() / "additional_chat_templates");
  EXPECT_EQ(read(), "d") << "the config's list belongs to another template";
  folder.Write("chat_template.jinja", "");
  folder.Write("tokenizer_config.json", "{}");
  folder.Write("chat_template.json", "[]");
  ImportedModel model;
  const Status damaged = ReadTokenizerFiles(folder.path(), model);
  ASSERT_FALSE(damaged);
  EXPECT_EQ(damaged.error().code, Code::kCorruption);
}

TEST(Importer, ViewsOutliveTheImportedModelsMove) {
  ImportedModel first = Import(Demo());
  const float number = NumberAt(first.embedding, 5);
  const ImportedModel second = std::move(first);
  EXPECT_EQ(NumberAt(second.embedding, 5), number);
}

TEST(Importer, GgufAndSafetensorsOfLlamaGqaHoldTheSameNumbers) {
  KV_NEEDS(Shared("goldens/llama-gqa"));
  const ImportedModel hf = Import(Shared("goldens/llama-gqa"));
  const ImportedModel gguf = Import(Shared("goldens/llama-gqa/model-bf16.gguf"));
  ExpectSameModel(hf, gguf);
  EXPECT_EQ(hf.config.rope.type, RopeType::kLlama3);
  EXPECT_EQ(hf.config.rope.original_max_positions, 64);
  EXPECT_TRUE(gguf.layers[0][Slot::kQ].interleaved_rope_rows &&
              gguf.layers[2][Slot::kK].interleaved_rope_rows);
  EXPECT_FALSE(gguf.layers[0][Slot::kV].interleaved_rope_rows ||
               gguf.layers[0][Slot::kO].interleaved_rope_rows);
  EXPECT_FALSE(gguf.tokenizer_json.empty());  // lies beside it
  EXPECT_EQ(gguf.tokenizer_config_json, hf.tokenizer_config_json);
  EXPECT_EQ(gguf.chat_template, hf.chat_template);
  EXPECT_EQ(gguf.name, "model-bf16");
  // llama3's formula (Llama 3.1's model card) is what the converter wrote as factors.
  ASSERT_EQ(gguf.config.rope.freq_factors.size(), 8u);
  for (int i = 0; i < 8; ++i) {
    const double wavelength = 2 * std::numbers::pi * std::pow(500000.0, i / 8.0);
    const double smooth = (64 / wavelength - 1) / (4 - 1);
    const double factor = wavelength < 64 / 4.0   ? 1
                          : wavelength > 64 / 1.0 ? 8
                                                  : 1 / ((1 - smooth) / 8 + smooth);
    EXPECT_NEAR(gguf.config.rope.freq_factors[i], factor, 1e-5 * factor) << i;
  }
}

TEST(Importer, GgufAndShardsOfLlamaMhaHoldTheSameNumbers) {
  KV_NEEDS(Shared("goldens/llama-mha"));
  const ImportedModel hf = Import(Shared("goldens/llama-mha"));
  EXPECT_EQ(hf.mapped_files.size(), 2u);
  EXPECT_TRUE(hf.lm_head);
  EXPECT_EQ(hf.config.rms_norm_eps, 1e-6);
  ExpectSameModel(hf, Import(Shared("goldens/llama-mha/model-f32.gguf")));
}

TEST(Importer, GgufAndSafetensorsOfQwenHoldTheSameNumbers) {
  KV_NEEDS(Shared("goldens/qwen2"));
  KV_NEEDS(Shared("goldens/qwen3"));
  const ImportedModel qwen2 = Import(Shared("goldens/qwen2"));
  ExpectSameModel(qwen2, Import(Shared("goldens/qwen2/model-f16.gguf")));
  EXPECT_TRUE(qwen2.layers[0].Find(Slot::kQBias));
  EXPECT_FALSE(qwen2.layers[0].Find(Slot::kOBias));
  const ImportedModel qwen3 = Import(Shared("goldens/qwen3"));
  ExpectSameModel(qwen3, Import(Shared("goldens/qwen3/model-bf16.gguf")));
  EXPECT_EQ(qwen3.layers[0][Slot::kKNorm].view.shape, std::vector<uint64_t>{32});
}

TEST(Importer, ReadsLlamaQuantAndItsQuantisedFiles) {
  KV_NEEDS(Shared("goldens/llama-quant"));
  const ImportedModel hf = Import(Shared("goldens/llama-quant"));
  EXPECT_EQ(hf.layers[1][Slot::kGate].view.dtype, DType::kBf16);
  EXPECT_TRUE(hf.lm_head);
  const std::pair<const char*, DType> files[] = {
      {"Q4_0", DType::kQ4_0},  {"Q8_0", DType::kQ8_0}, {"Q4_K_M", DType::kQ4K},
      {"Q5_K_M", DType::kQ5K}, {"Q6_K", DType::kQ6K},  {"IQ4_NL", DType::kIq4Nl}};
  for (const auto& [name, dtype] : files) {
    const ImportedModel m =
        Import(Shared("goldens/llama-quant/model-" + std::string(name) + ".gguf"));
    EXPECT_EQ(m.layers[0][Slot::kGate].view.dtype, dtype) << name;
    EXPECT_EQ(m.layers[0][Slot::kAttentionNorm].view.dtype, DType::kF32) << name;
  }
}

TEST(Importer, TheVersion1GgufOfStories260kHoldsTheNumbersOfLlama2c) {
  KV_NEEDS(Shared("data/stories260K"));
  const ImportedModel m = Import(Shared("data/stories260K/tinyllamas-stories-260k-f32.gguf"));
  EXPECT_EQ(m.config.vocab_size, 512u);
  EXPECT_EQ(m.config.num_heads, 8u);
  EXPECT_EQ(m.config.num_kv_heads, 4u);
  EXPECT_EQ(m.config.head_dim, 8u);
  EXPECT_EQ(m.config.ffn_size, 172u);
  EXPECT_EQ(m.config.rope.theta, 10000.0);
  EXPECT_EQ(m.config.bos, std::vector<TokenId>{1});
  // llama2.c's legacy export: seven int32, then f32 of the embedding, all attention norms, all Wq
  // ...
  const auto bin = MappedFile::Open(Shared("data/stories260K/stories260K.bin"));
  ASSERT_TRUE(bin);
  const std::byte* weights = (*bin)->bytes().data() + 7 * 4;
  EXPECT_EQ(std::memcmp(m.embedding.data, weights, m.embedding.num_bytes()), 0);
  weights += m.embedding.num_bytes();
  for (const SlotTensors& layer : m.layers) {
    const TensorView& norm = layer[Slot::kAttentionNorm].view;
    EXPECT_EQ(std::memcmp(norm.data, weights, norm.num_bytes()), 0);
    weights += norm.num_bytes();
  }
  for (const SlotTensors& layer : m.layers) {
    EXPECT_TRUE(layer[Slot::kQ].interleaved_rope_rows);  // llama2.c pairs neighbours
    EXPECT_EQ(std::memcmp(layer[Slot::kQ].view.data, weights, layer[Slot::kQ].view.num_bytes()), 0);
    weights += layer[Slot::kQ].view.num_bytes();
  }
}

TEST(Importer, Story656kHasItsTiedTableUnderTheHeadsName) {
  KV_NEEDS(Shared("data/story656k"));
  const ImportedModel m = Import(Shared("data/story656k"));
  EXPECT_EQ(m.embedding.name, "lm_head.weight");
  EXPECT_EQ(m.embedding.shape, (std::vector<uint64_t>{2048, 128}));
  EXPECT_FALSE(m.lm_head);
}

TEST(Importer, ReadsTheGoldensOfTheTests) {
  const std::pair<const char*, const char*> models[] = {
      {"tiny-gqa", "llama"},           {"tiny-mqa", "llama"},
      {"tiny-bias", "llama"},          {"tiny-yarn", "llama"},
      {"tiny-qwen2", "qwen2"},         {"tiny-qwen3", "qwen3"},
      {"tiny-granite", "granite"},     {"tiny-olmo2", "olmo2"},
      {"tiny-smollm3", "smollm3"},     {"tiny-phi3", "phi3"},
      {"tiny-gpt2", "gpt2"},           {"tiny-mistral", "mistral"},
      {"tiny-ministral", "ministral"}, {"tiny-gemma2", "gemma2"},
      {"tiny-gemma3", "gemma3"},       {"tiny-gemma3-vision", "gemma3-vision"},
      {"m2m100-tiny", "m2m100"}};
  for (const auto& [name, architecture] : models) {
    const ImportedModel m = Import(fs::path(KVASIR_SOURCE_DIR) / "tests/data" / name);
    EXPECT_EQ(m.config.architecture, architecture);
    EXPECT_EQ(m.layers.size(), m.config.num_layers) << name;
    EXPECT_EQ(m.layers[0].Find(Slot::kQBias) != nullptr, m.config.qkv_bias);
    EXPECT_EQ(m.layers[0].Find(Slot::kDownBias) != nullptr, m.config.mlp_bias);
  }
}

TEST(Importer, TheDocsHaveARowForEachFamily) {
  std::ifstream file(fs::path(KVASIR_SOURCE_DIR) / "docs/models.md");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  for (const Architecture& row : Architectures()) {
    const std::string begin =
        fmt::format("| {} | {} |", row.hf_class, row.gguf_name.empty() ? "-" : row.gguf_name);
    EXPECT_NE(text.find(begin), std::string::npos) << begin;
  }
  size_t num_rows = 0;
  for (size_t at = text.find("\n| "); at != text.npos; at = text.find("\n| ", at + 1)) ++num_rows;
  EXPECT_EQ(num_rows, Architectures().size() + 2);  // the head has two
}

TEST(Importer, RefusesOtherArchitecturesByName) {
  KV_NEEDS(Shared("data/gguf-vocabs"));
  ExpectError(ImportModel(Shared("data/gguf-vocabs/ggml-vocab-falcon.gguf")), Code::kUnsupported,
              {"'falcon'", "docs/models.md"});
  ExpectError(ImportModel(Shared("data/gguf-vocabs/ggml-vocab-llama-spm.gguf")), Code::kNotFound,
              {"token_embd.weight"});
}

TEST(Importer, RefusesPathsThatAreNoModel) {
  const TemporaryFolder folder;
  ExpectError(ImportModel(""), Code::kInvalidArgument, {"empty"});
  ExpectError(ImportModel(folder.path() / "none"), Code::kNotFound, {"none", "--model"});
  ExpectError(ImportModel(folder.path()), Code::kNotFound, {"no config.json"});
  ExpectError(ImportModel(folder.Write("x.safetensors", "")), Code::kInvalidArgument, {"folder"});
  ExpectError(ImportModel(folder.Write("x.txt", "text")), Code::kCorruption, {"not a GGUF file"});
  ExpectError(ImportModel(folder.Write("empty.gguf", "")), Code::kCorruption, {"not a GGUF file"});
  fs::remove(folder.path() / "x.txt");
  ExpectError(ImportModel(folder.path()), Code::kCorruption, {"empty.gguf"});  // the only one
}

TEST(Importer, NamesPyTorchFilesAsTheReason) {
  const TemporaryFolder folder;
  fs::copy_file(Demo() / "config.json", folder.path() / "config.json");
  folder.Write("pytorch_model.bin", "");
  ExpectError(ImportModel(folder.path()), Code::kNotFound,
              {"model.safetensors", "pytorch_model.bin"});
}

}  // namespace
}  // namespace kvasir
