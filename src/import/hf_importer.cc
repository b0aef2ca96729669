#include <algorithm>
#include <cstring>
#include <utility>

#include "base/mapped_file.h"
#include "base/result.h"
#include "import/hf_config.h"
#include "import/importer.h"
#include "import/pooling_files.h"
#include "import/safetensors.h"
#include "import/shard_index.h"
#include "import/tensor_binding.h"
#include "import/tokenizer_files.h"

namespace kvasir {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kMaxConfigBytes = uint64_t{16} << 20;

// Returns what a folder without the needed file may be instead, as the fix.
std::string Advice(const fs::path& folder) {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const std::string extension = entry.path().extension().string();
    if (extension == ".gguf") return "; to use the GGUF file in it, give " + entry.path().string();
    if (extension == ".bin" || extension == ".pt" || extension == ".pth") {
      return "; PyTorch files such as " + entry.path().filename().string() +
             " are not supported: save the model as safetensors";
    }
  }
  return "; a Hugging Face folder has config.json and model.safetensors (or "
         "model.safetensors.index.json and its shards)";
}

Result<std::vector<StoredTensor>> OpenWeights(const fs::path& path, ImportedModel& model) {
  KV_ASSIGN(auto file, MappedFile::Open(path));
  KV_TRY(CheckNoLfsPointer(file->bytes(), path.string()));
  KV_ASSIGN(auto tensors, ParseSafetensors(file->bytes(), path.string()));
  model.mapped_files.push_back(std::move(file));
  return tensors;
}

// Checks that a shard holds nothing that the index does not place there. Which shard a tensor is
// read from must follow from the shards alone, since the weights' digest covers them and not the
// index.
Status CheckNoneLeft(const TensorCatalog& left, const ShardIndex& tensors_of_shard,
                     const std::string& shard, const fs::path& index) {
  if (left.empty()) return {};
  const std::string& name =
      std::ranges::min_element(left, {}, [](const auto& entry) { return entry.first; })->first;
  for (const auto& [other, names] : tensors_of_shard) {
    if (std::ranges::find(names, name) == names.end()) continue;
    return Fail(Code::kCorruption,
                "{}: tensor '{}' is in {}, but the index says that it is in {}; fetch the model "
                "again, with all files of one version",
                index.string(), name, shard, other);
  }
  return Fail(Code::kCorruption,
              "{}: tensor '{}' is in {}, but the index does not name it; fetch the model again, "
              "with all files of one version",
              index.string(), name, shard);
}

Result<TensorCatalog> OpenShards(const fs::path& folder, const fs::path& index,
                                 ImportedModel& model) {
  TensorCatalog catalog;
  KV_ASSIGN(const auto tensors_of_shard, ReadShardIndex(index));
  for (const auto& [shard, names] : tensors_of_shard) {
    KV_ASSIGN(auto tensors, OpenWeights(folder / shard, model));
    TensorCatalog in_shard = CatalogOf(std::move(tensors));
    for (const std::string& name : names) {
      const auto found = in_shard.find(name);
      if (found == in_shard.end()) {
        return Fail(Code::kNotFound, "{}: tensor '{}' is not in {}, where the index says it is",
                    index.string(), name, (folder / shard).string());
      }
      catalog.insert(in_shard.extract(found));
    }
    KV_TRY(CheckNoneLeft(in_shard, tensors_of_shard, shard, index));
  }
  return catalog;
}

Result<TensorCatalog> OpenCatalog(const fs::path& folder, ImportedModel& model) {
  const fs::path single = folder / "model.safetensors";
  const fs::path index = folder / kShardIndexFile;
  KV_ASSIGN(const bool has_single, Exists(single));
  if (!has_single) {
    KV_ASSIGN(const bool has_index, Exists(index));
    if (has_index) return OpenShards(folder, index, model);
    return Fail(Code::kNotFound, "{}: has no model.safetensors{}", folder.string(), Advice(folder));
  }
  KV_ASSIGN(auto tensors, OpenWeights(single, model));
  return CatalogOf(std::move(tensors));
}

// Gives a tied model one table, which it may have under several names. Two different tables are a
// contradiction: transformers 4 uses the one, transformers 5 the other.
Status TieEmbeddings(const ModelConfig& config, const fs::path& folder, TensorCatalog& catalog) {
  if (!config.tied_embeddings) return {};
  const Architecture& row = ArchitectureOf(config);
  const std::string embedding(row.NamesOf(Slot::kEmbedding).hf);
  std::vector<std::string_view> others(row.hf_aliases.begin(), row.hf_aliases.end());
  others.push_back(row.NamesOf(Slot::kLmHead).hf);
  for (const std::string_view name : others) {
    const auto other = catalog.find(std::string(name));
    if (other == catalog.end()) continue;
    const StoredTensor b = other->second;
    const auto [table, added] = catalog.try_emplace(embedding, b);
    const StoredTensor& a = table->second;
    if (added ||
        (a.type == b.type && a.shape == b.shape && a.bytes.size() == b.bytes.size() &&
         (a.bytes.empty() || std::memcmp(a.bytes.data(), b.bytes.data(), a.bytes.size()) == 0))) {
      continue;
    }
    return Fail(Code::kInvalidArgument,
                "{}: config.json says tie_word_embeddings, but '{}' and '{}' differ{}",
                folder.string(), embedding, name,
                row.has_encoder() ? "" : "; set it to false to use both");
  }
  return {};
}

// Returns the name that the tensor has in a model that is nothing but a language model:
// transformers writes model.language_model.X, and wrote language_model.model.X before.
std::string OfLanguageModel(const std::string& name) {
  constexpr std::string_view kOld = "language_model.", kNew = "model.language_model.";
  if (name.starts_with(kOld)) return name.substr(kOld.size());
  if (name.starts_with(kNew)) return "model." + name.substr(kNew.size());
  return name;
}

// Leaves out the family's prefix of names, which files may have or not.
Status LeaveOutPrefix(const ModelConfig& config, const fs::path& folder, TensorCatalog& catalog) {
  const Architecture& row = ArchitectureOf(config);
  if (row.hf_prefix.empty() && !row.text_config) return {};
  TensorCatalog renamed;
  for (auto& [name, tensor] : catalog) {
    std::string short_name = row.text_config ? OfLanguageModel(name) : name;
    if (short_name.starts_with(row.hf_prefix)) short_name.erase(0, row.hf_prefix.size());
    if (const auto other = renamed.find(short_name); other != renamed.end()) {
      return Fail(Code::kCorruption, "{}: tensors '{}' and '{}' are the same one", folder.string(),
                  std::min(name, other->second.name), std::max(name, other->second.name));
    }
    renamed.emplace(short_name, std::move(tensor));
  }
  catalog = std::move(renamed);
  return {};
}

// The texts of config.json and, where there, of generation_config.json.
struct ConfigFiles {
  std::string config;
  std::optional<std::string> generation;
};

Result<ConfigFiles> ReadConfigFiles(const fs::path& folder) {
  ConfigFiles files;
  const fs::path path = folder / "config.json";
  KV_ASSIGN(const bool exists, Exists(path));
  if (!exists) {
    std::error_code error;
    for (const char* name : {"tokenizer.json", "tokenizer.model"}) {
      if (!fs::exists(folder / name, error)) continue;
      return Fail(Code::kNotFound, "{}: has a tokenizer ({}), but no config.json{}",
                  folder.string(), name, Advice(folder));
    }
    return Fail(Code::kNotFound, "{}: has no config.json{}", folder.string(), Advice(folder));
  }
  KV_ASSIGN(files.config, ReadTextFile(path, kMaxConfigBytes));
  KV_TRY(CheckNoLfsPointer(std::as_bytes(std::span(files.config)), path.string()));
  const fs::path beside = folder / "generation_config.json";
  KV_ASSIGN(const bool has_generation, Exists(beside));
  if (has_generation) {
    KV_ASSIGN(files.generation, ReadTextFile(beside, kMaxConfigBytes));
  }
  return files;
}

// Returns whether a weight file is there, and not only what git-LFS keeps in its place.
Result<bool> IsHere(const fs::path& path) {
  KV_ASSIGN(const bool exists, Exists(path));
  if (!exists) return false;
  KV_ASSIGN(const auto file, MappedFile::Open(path));
  return CheckNoLfsPointer(file->bytes(), path.string()).has_value();
}

Result<bool> HasWeights(const fs::path& folder) {
  KV_ASSIGN(const bool has_single, Exists(folder / "model.safetensors"));
  if (has_single) return IsHere(folder / "model.safetensors");
  const fs::path index = folder / kShardIndexFile;
  KV_ASSIGN(const bool has_index, Exists(index));
  if (!has_index) return false;
  KV_ASSIGN(const auto tensors_of_shard, ReadShardIndex(index));
  for (const auto& [shard, tensors] : tensors_of_shard) {
    KV_ASSIGN(const bool is_here, IsHere(folder / shard));
    if (!is_here) return false;
  }
  return true;
}

// Gives the tensors of a folder that was saved without an output head, as those of models for
// embeddings are, the names that they have with one: "model.norm.weight" for "norm.weight". Where
// the head is missing then, the embedding takes its place, as in a GGUF file.
void NameAsWithHead(TensorCatalog& catalog, ModelConfig& config) {
  constexpr std::string_view kModel = "model.";
  const Architecture& row = ArchitectureOf(config);
  const std::string embedding(row.NamesOf(Slot::kEmbedding).hf);
  if (!embedding.starts_with(kModel) || catalog.contains(embedding) ||
      !catalog.contains(embedding.substr(kModel.size()))) {
    return;
  }
  const std::string head(row.NamesOf(Slot::kLmHead).hf);
  TensorCatalog renamed;
  for (auto& [name, tensor] : catalog) {
    renamed.emplace(name == head ? name : std::string(kModel) + name, std::move(tensor));
  }
  catalog = std::move(renamed);
  if (!catalog.contains(head)) config.tied_embeddings = true;
}

Status BindWeights(const fs::path& folder, ImportedModel& model) {
  KV_ASSIGN(TensorCatalog catalog, OpenCatalog(folder, model));
  KV_TRY(LeaveOutPrefix(model.config, folder, catalog));
  NameAsWithHead(catalog, model.config);
  KV_TRY(TieEmbeddings(model.config, folder, catalog));
  return BindTensors(catalog, NameStyle::kHuggingFace, folder.string(), model);
}

}  // namespace

Result<ImportedModel> ImportHfFolder(const fs::path& folder, Need need) {
  ImportedModel model;
  model.path = folder;
  model.name = folder.filename().string();
  KV_ASSIGN(ConfigFiles files, ReadConfigFiles(folder));
  const std::string config_path = (folder / "config.json").string();
  KV_ASSIGN(model.config, ParseHfConfig(files.config, files.generation, config_path));
  bool has_weights = true;
  if (need == Need::kShapes) {
    KV_ASSIGN(has_weights, HasWeights(folder));
  }
  if (has_weights) {
    KV_TRY(BindWeights(folder, model));
  } else {
    KV_ASSIGN(model.assumed_dtype, HfDtype(files.config, config_path));
    DescribeTensors(
        *model.assumed_dtype, [](Slot, uint64_t) { return nullptr; }, model);
  }
  KV_TRY(ReadTokenizerFiles(folder, model));
  model.pooling = FolderPooling(folder);
  model.generation_config_json = std::move(files.generation).value_or("");
  return model;
}

}  // namespace kvasir
