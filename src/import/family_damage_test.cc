// Each family of tests/data with one thing wrong in its files: a tensor that is missing, unknown or
// of another shape, a figure that disagrees with the tensors, an absurd size. Each is an error that
// names what is wrong.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "base/bytes_for_test.h"
#include "import/gguf.h"
#include "import/gguf_importer.h"
#include "import/importer.h"
#include "import/model_files_for_test.h"
#include "source_paths.h"

namespace kvasir {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

const fs::path kData = fs::path(KVASIR_SOURCE_DIR) / "tests/data";

// A folder of tests/data, whose config.json and table of tensors a test changes. Shards become one
// file.
struct HfFiles {
  explicit HfFiles(const fs::path& from)
      : name(from.filename()), config(json::parse(ReadFile(from / "config.json"))) {
    std::vector<fs::path> files;
    for (const auto& entry : fs::directory_iterator(from)) {
      if (entry.path().extension() == ".safetensors") files.push_back(entry.path());
    }
    std::ranges::sort(files);
    for (const fs::path& file : files) Add(ReadFile(file));
  }
  void Add(const std::string& file) {
    uint64_t header_bytes = 0;
    std::memcpy(&header_bytes, file.data(), sizeof(header_bytes));
    const json added = json::parse(file.substr(8, header_bytes));
    for (const auto& [tensor, about] : added.items()) {
      tensors[tensor] = about;
      if (tensor == "__metadata__") continue;
      for (json& offset : tensors[tensor]["data_offsets"]) {
        offset = offset.get<uint64_t>() + data.size();
      }
    }
    data += file.substr(8 + header_bytes);
  }
  // Writes over the files of the call before, and imports them.
  Result<ImportedModel> Import(const TemporaryFolder& folder) const {
    folder.Write("config.json", config.dump());
    folder.Write("model.safetensors", Safetensors(tensors.dump(), data));
    return ImportModel(folder.path());
  }
  // Returns the object with the figures of the language model.
  json& figures() { return config.contains("text_config") ? config["text_config"] : config; }

  std::string name;
  json config, tensors;
  std::string data;
};

std::vector<HfFiles> Folders() {
  std::vector<HfFiles> all;
  for (const auto& entry : fs::directory_iterator(kData)) {
    const bool is_sharded = fs::exists(entry.path() / "model.safetensors.index.json");
    if (is_sharded || fs::exists(entry.path() / "model.safetensors")) {
      all.emplace_back(entry.path());
    }
  }
  EXPECT_GE(all.size(), 22u);
  return all;
}

// What a test has damaged: each file and each key must have had its turn.
class Damaged {
 public:
  void Add(const std::string& name, const std::string& key) {
    names_.insert(name);
    keys_.insert(key);
    ++count_;
  }
  void ExpectAllNames(const std::vector<std::string>& names) const {
    for (const std::string& name : names) EXPECT_TRUE(names_.contains(name)) << name;
  }
  void ExpectAllKeys(const std::vector<std::string>& keys) const {
    for (const std::string& key : keys) EXPECT_TRUE(keys_.contains(key)) << key;
  }
  size_t count() const { return count_; }

 private:
  std::set<std::string> names_, keys_;
  size_t count_ = 0;
};

std::vector<std::string> NamesOf(const std::vector<HfFiles>& folders) {
  std::vector<std::string> names;
  for (const HfFiles& folder : folders) names.push_back(folder.name);
  return names;
}

std::vector<std::pair<std::string, std::string>> GgufFiles() {  // name, bytes
  std::vector<std::pair<std::string, std::string>> all;
  for (const auto& entry : fs::recursive_directory_iterator(kData)) {
    if (entry.path().extension() != ".gguf") continue;
    all.emplace_back(entry.path().parent_path().filename(), ReadFile(entry.path()));
  }
  EXPECT_GE(all.size(), 14u);
  return all;
}

std::vector<std::string> NamesOf(const std::vector<std::pair<std::string, std::string>>& files) {
  std::vector<std::string> names;
  for (const auto& file : files) names.push_back(file.first);
  return names;
}

// Imports bytes without a file: the importer waits 20 ms for a file that has just been written.
Result<ImportedModel> FromGguf(const std::string& bytes) {
  auto gguf = ParseGguf(BytesOf(bytes), "m.gguf");
  if (!gguf) return tl::unexpected(gguf.error());
  return ModelFromGguf(std::move(*gguf), "m.gguf");
}

// Tells whether a tensor is tried: those of one layer, and of no layer, stand for all.
bool Stands(const std::string& tensor) {
  const size_t dot = tensor.find_first_of("123456789");
  const bool later = dot != tensor.npos && dot > 0 && tensor[dot - 1] == '.';
  return tensor != "__metadata__" && !later;
}

// Returns the name in a message, which leaves out what the file puts before all names.
std::string Named(std::string tensor) {
  const std::string prefix = "language_model.";
  return tensor.starts_with(prefix) ? tensor.substr(prefix.size()) : tensor;
}

// Expects an error in whose text one of `parts` stands.
void ExpectRefused(const Result<ImportedModel>& model, const std::vector<std::string>& parts,
                   const std::string& what) {
  ASSERT_FALSE(model.has_value()) << what << " was read";
  const std::string text = model.error().text();
  EXPECT_TRUE(std::ranges::any_of(
      parts, [&](const std::string& part) { return text.find(part) != text.npos; }))
      << what << ": " << text;
}

TEST(FamilyDamage, ATensorThatIsMissingIsNamed) {
  const TemporaryFolder folder;
  Damaged damaged;
  const std::vector<HfFiles> folders = Folders();
  for (const HfFiles& whole : folders) {
    EXPECT_TRUE(whole.Import(folder)) << whole.name;
    for (const auto& tensor : whole.tensors.items()) {
      if (!Stands(tensor.key())) continue;
      HfFiles files = whole;
      files.tensors["elsewhere." + tensor.key()] = tensor.value();
      files.tensors.erase(tensor.key());
      ExpectRefused(files.Import(folder), {Named(tensor.key())},
                    whole.name + " without " + tensor.key());
      damaged.Add(whole.name, tensor.key());
    }
  }
  damaged.ExpectAllNames(NamesOf(folders));
  EXPECT_GT(damaged.count(), 200u);
}

TEST(FamilyDamage, ATensorOfAnotherShapeIsNamed) {
  const TemporaryFolder folder;
  for (const HfFiles& whole : Folders()) {
    for (const auto& tensor : whole.tensors.items()) {
      if (!Stands(tensor.key())) continue;
      HfFiles files = whole;
      json& shape = files.tensors[tensor.key()]["shape"];
      if (shape.size() == 2 && shape[0] == shape[1]) continue;
      shape = shape.size() == 2 ? json{shape[1], shape[0]} : json{shape[0], 1};
      ExpectRefused(files.Import(folder), {Named(tensor.key()) + "'"},
                    whole.name + ", " + tensor.key());
    }
  }
}

TEST(FamilyDamage, ATensorOfALayerThatNoSlotTakesIsNamed) {
  const TemporaryFolder folder;
  for (const HfFiles& whole : Folders()) {
    for (const char* extra : {"attn.sinks", "self_attn.rotary.weight", "q_norm.bias"}) {
      HfFiles files = whole;
      const auto any = std::ranges::find_if(files.tensors.items(), [](const auto& tensor) {
        return tensor.key().find(".0.") != std::string::npos;
      });
      ASSERT_NE(any, files.tensors.items().end());
      const std::string key = (*any).key();
      const std::string name = key.substr(0, key.find(".0.") + 3) + extra;
      files.tensors[name] = {{"dtype", "F32"}, {"shape", {0}}, {"data_offsets", {0, 0}}};
      ExpectRefused(files.Import(folder), {Named(name) + "'"}, whole.name + ", " + name);
    }
  }
}

// The figures that shapes follow from.
const std::vector<std::string> kFigures = {"vocab_size",
                                           "hidden_size",
                                           "n_embd",
                                           "intermediate_size",
                                           "n_inner",
                                           "num_hidden_layers",
                                           "n_layer",
                                           "num_attention_heads",
                                           "n_head",
                                           "num_key_value_heads",
                                           "n_positions",
                                           "head_dim",
                                           "num_experts",
                                           "num_local_experts",
                                           "moe_intermediate_size"};

TEST(FamilyDamage, AFigureThatDisagreesWithTheTensorsOrIsAbsurdIsRefused) {
  const TemporaryFolder folder;
  Damaged damaged;
  const std::vector<HfFiles> folders = Folders();
  for (const HfFiles& whole : folders) {
    for (const std::string& key : kFigures) {
      HfFiles files = whole;
      json& figure = files.figures()[key];
      if (key == "n_inner" && files.config.contains("n_embd")) {
        figure = 4 * files.config["n_embd"].get<uint64_t>();  // what null means
      }
      if (!figure.is_number()) continue;
      const uint64_t right = figure;
      // Where all layers have experts of another size, no tensor follows from it.
      const bool unused = key == "intermediate_size" && whole.name == "tiny-qwen3-moe-norm";
      for (const json& wrong : {json(right * 2), json(right + 1), json(0), json(-1), json(1.5),
                                json(uint64_t{1} << 33), json(uint64_t{1} << 63), json("8")}) {
        if (unused && wrong.is_number_unsigned() && wrong >= 1 && wrong < 1000) continue;
        figure = wrong;
        ExpectRefused(files.Import(folder), {key, "tensor", "multiple", "odd", "layer_types"},
                      whole.name + ", " + key + " " + wrong.dump());
        damaged.Add(whole.name, key);
      }
    }
  }
  damaged.ExpectAllNames(NamesOf(folders));
  damaged.ExpectAllKeys(kFigures);
  EXPECT_GT(damaged.count(), 500u);
}

// Families that never have these biases do not read the flags.
TEST(FamilyDamage, AFlagThatDisagreesWithTheTensorsIsRefused) {
  const TemporaryFolder folder;
  size_t count = 0;
  for (const HfFiles& whole : Folders()) {
    const bool biases = whole.name.find("mistral") == std::string::npos &&
                        whole.name.find("ministral") == std::string::npos &&
                        whole.name.find("mixtral") == std::string::npos;
    for (const char* key : {"tie_word_embeddings", "attention_bias", "mlp_bias"}) {
      HfFiles files = whole;
      json& flag = files.figures()[key];
      if (!flag.is_boolean() || (!biases && key == std::string("attention_bias"))) continue;
      flag = !flag;
      ExpectRefused(files.Import(folder), {"tensor", "tie_word_embeddings"},
                    whole.name + ", " + key);
      ++count;
    }
  }
  EXPECT_GT(count, 20u);
}

// Returns the place of a key's 32-bit value, or 0 where the file lacks the key.
size_t ValueOf(const std::string& file, const std::string& key) {
  const size_t at = file.find(Le<uint64_t>(key.size()) + key + Le<uint32_t>(4));
  return at == file.npos ? 0 : at + 8 + key.size() + 4;
}

// Figures that tensors follow from, and two from which none follows: of those only what is absurd
// is wrong.
const std::vector<std::string> kGgufFigures = {"embedding_length",
                                               "block_count",
                                               "feed_forward_length",
                                               "attention.head_count",
                                               "attention.head_count_kv",
                                               "attention.key_length",
                                               "vocab_size",
                                               "expert_count",
                                               "expert_feed_forward_length",
                                               "expert_used_count",
                                               "rope.dimension_count"};
const std::vector<std::string> kGgufFamilies = {"llama",   "qwen2",  "qwen3",   "qwen3moe",
                                                "granite", "olmo2",  "smollm3", "phi3",
                                                "gpt2",    "gemma2", "gemma3"};

std::vector<uint32_t> WrongValues(const std::string& key, uint32_t right) {
  std::vector<uint32_t> wrong = {0, 0x80000000, 0xffffffff};
  if (key == "expert_used_count") {
    wrong.push_back(4096);
  } else {
    wrong.push_back(right + 1);
    if (key != "rope.dimension_count") wrong.push_back(right * 2);
  }
  return wrong;
}

TEST(FamilyDamage, AFigureOfAGgufFileThatDisagreesOrIsAbsurdIsRefused) {
  Damaged damaged;
  const auto files = GgufFiles();
  for (const auto& [name, whole] : files) {
    for (const std::string& key : kGgufFigures) {
      for (const std::string& family : kGgufFamilies) {
        const size_t at = ValueOf(whole, family + "." + key);
        if (at == 0) continue;
        uint32_t right = 0;
        std::memcpy(&right, whole.data() + at, sizeof(right));
        // All layers have experts of another size: no tensor follows from it.
        if (key == "feed_forward_length" && family == "qwen3moe") continue;
        for (const uint32_t wrong : WrongValues(key, right)) {
          std::string file = whole;
          file.replace(at, 4, Le(wrong));
          ExpectRefused(FromGguf(file),
                        {key, "tensor", "multiple", "odd", "heads", "experts", "rotate"},
                        name + ", " + key + " " + std::to_string(wrong));
          damaged.Add(name, key);
          damaged.Add(family, key);
        }
      }
    }
  }
  damaged.ExpectAllNames(NamesOf(files));
  damaged.ExpectAllNames(kGgufFamilies);
  damaged.ExpectAllKeys(kGgufFigures);
  EXPECT_GT(damaged.count(), 400u);
}

// Renamed to a name that no file has: missing, and where it belongs to a layer unknown too.
TEST(FamilyDamage, ATensorThatAGgufFileLacksIsNamed) {
  Damaged damaged;
  const auto files = GgufFiles();
  for (const auto& [name, whole] : files) {
    const auto model = FromGguf(whole);
    ASSERT_TRUE(model) << name << ": " << model.error().text();
    std::vector<std::string> names = {model->embedding.name, model->final_norm.name};
    for (const SlotTensors& layer : model->layers) {
      layer.ForEach([&](Slot, const MatrixSource& tensor) { names.push_back(tensor.view.name); });
    }
    for (const std::string& tensor : names) {
      std::string file = whole;
      // One of several experts lies in the tensor of all.
      const std::string whole_tensor = tensor.substr(0, tensor.find('['));
      const std::string stored = Le<uint64_t>(whole_tensor.size()) + whole_tensor;
      const size_t at = file.find(stored);
      ASSERT_NE(at, file.npos) << tensor;
      file[at + stored.size() - 1] = 'X';
      ExpectRefused(FromGguf(file), {whole_tensor}, name);
      damaged.Add(name, whole_tensor);
    }
  }
  damaged.ExpectAllNames(NamesOf(files));
  EXPECT_GT(damaged.count(), 200u);
}

}  // namespace
}  // namespace kvasir
