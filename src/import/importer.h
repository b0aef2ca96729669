// Importers: a Hugging Face folder, a GGUF file or a CTranslate2 folder becomes an ImportedModel.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/digest.h"
#include "base/mapped_file.h"
#include "base/secret.h"
#include "import/model_config.h"
#include "import/slot.h"
#include "import/tensor_view.h"
#include "kvasir/pooling.h"
#include "kvasir/status.h"
#include "text/vocabulary.h"

namespace kvasir {

// The encoder of an encoder-decoder model.
struct EncoderTensors {
  // Absent: those of the decoder, or sinusoids.
  std::optional<TensorView> embedding, positions;
  std::vector<SlotTensors> layers;
  TensorView final_norm;  // [hidden]
  std::optional<TensorView> final_norm_bias;
};

// Views stay valid while the ImportedModel lives (it owns the mappings).
struct ImportedModel {
  ModelConfig config;
  // Where Need::kShapes found no weights: the type that config.json names. Tensors have no bytes.
  std::optional<DType> assumed_dtype;
  TensorView embedding;   // [vocab, hidden]
  TensorView final_norm;  // [hidden]
  std::optional<TensorView> final_norm_bias;
  std::optional<TensorView> positions;  // [max_positions, hidden], learned; absent: none
  std::optional<MatrixSource> lm_head;  // absent: tied to embedding
  std::optional<TensorView> head_bias;  // [vocab]
  std::vector<SlotTensors> layers;
  std::optional<EncoderTensors> encoder;
  std::filesystem::path path;  // as given, made absolute
  std::string name;            // of the folder or file, without extension
  // Text beside the weights, "" where absent.
  std::string tokenizer_json, tokenizer_config_json, chat_template;
  std::map<std::string, std::string> named_templates;  // beside chat_template, by other names
  std::string generation_config_json;                  // of a folder
  // What else is known of special tokens, with the keys of tokenizer_config.json: a folder's
  // special_tokens_map.json, or what a GGUF file says of itself.
  std::string special_tokens_json;
  // Tokens of a GGUF file that end an answer by what they are called, beside config.eos; some may
  // be beyond the vocabulary.
  std::vector<TokenId> ends_by_name;
  // Where tokenizer_json is empty: what another file says. An error says why it cannot be used.
  Result<std::optional<Vocabulary>> vocabulary;
  // How the rows of a text become its embedding; absent: the files do not say. An error says why
  // texts cannot be embedded as they do.
  Result<std::optional<Pooling>> pooling;
  std::vector<std::shared_ptr<const MappedFile>>
      mapped_files;                                   // with the weights, in a fixed order
  std::vector<std::shared_ptr<const void>> mappings;  // of what is in no file
};

// A larger file is not a tokenizer.
inline constexpr uint64_t kMaxTokenizerBytes = uint64_t{256} << 20;

// kCorruption where the file is what git keeps in the place of a large file that was not fetched.
Status CheckNoLfsPointer(std::span<const std::byte> bytes, const std::string& file);

// What a caller needs of a model: its weights, or only the shapes and types of its tensors. Then a
// Hugging Face folder may lack its weights (config.json says their type), `path` may be a
// config.json, and a GGUF file may end after its header.
enum class Need { kWeights, kShapes };

// `path`: a Hugging Face folder, a GGUF file (of a split one the first, with the others beside it),
// a folder with one GGUF file and no config.json, or a CTranslate2 folder: with a model.bin, or
// with a folder `model` that has it, as Argos Translate's packages have. Errors (kNotFound,
// kCorruption, kUnsupported, kInvalidArgument) name the file, the tensor or key, the numbers, and
// the fix. Non-finite weights are found when they are packed.
Result<ImportedModel> ImportModel(const std::filesystem::path& path, Need need = Need::kWeights);
// Imports a Hugging Face folder: config.json, safetensors in one or many files, tokenizer files.
Result<ImportedModel> ImportHfFolder(const std::filesystem::path& folder, Need need);
// Imports a CTranslate2 folder (ctranslate2.h). `folder` has the model.bin; `given`: that
// folder, or the package around it.
Result<ImportedModel> ImportCt2Folder(const std::filesystem::path& folder,
                                      const std::filesystem::path& given);

// Gives the model a tensor of `dtype` for each slot that its config fills, whose bytes are
// data(slot, numbers); nullptr: it has none.
void DescribeTensors(DType dtype,
                     const std::function<const std::byte*(Slot slot, uint64_t numbers)>& data,
                     ImportedModel& model);

// Makes a model of the given shape with random weights from `seed`, for `bench --shape`: llama-1b,
// qwen2-0.5b, llama-100m, qwen3-moe-2b, gemma3-1b, phi3-mini, m2m100-418m, m2m100-1.2b (and `tiny`,
// whose sizes are multiples of nothing, for tests). dtype: how weights are stored. Costs a few MiB
// whatever the shape: tensors are windows onto one tile.
Result<ImportedModel> SyntheticModel(std::string_view shape, DType dtype, uint64_t seed);

// Where digests are remembered, and the secret under which they are: a folder that others can
// write to cannot tell one model's weights for another's.
struct DigestMemory {
  std::filesystem::path cache_dir;
  Secret secret;
};

// Computes SHA-256 over the content of all weight files. Remembered by path, device, inode, size,
// mtime and ctime (ns), so that a later start reads no weights; without memory, or with an unusable
// folder, it only costs time. progress(done_bytes, total_bytes) may be empty.
Result<Digest> WeightsDigest(const ImportedModel& model, const std::optional<DigestMemory>& memory,
                             const std::function<void(uint64_t, uint64_t)>& progress);

}  // namespace kvasir
