// Makes a model of a CTranslate2 folder.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/json_object.h"
#include "base/result.h"
#include "import/ctranslate2.h"
#include "import/importer.h"
#include "import/tensor_binding.h"
#include "text/language_codes.h"
#include "text/sentencepiece_model.h"
#include "text/translation_vocabulary.h"

namespace kvasir {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

// Positions of sinusoids, which no file limits: as many as CTranslate2 reads of a source
// (max_input_length).
constexpr uint32_t kSinusoidPositions = 1024;
constexpr uint32_t kLeastSinusoidWidth =
    4;  // of sinusoids: their frequencies are 10000^(-i / (half - 1))
constexpr uint64_t kMaxMetadataBytes = uint64_t{1} << 20;

tl::unexpected<Error> Unsupported(const fs::path& file, const std::string& what) {
  return Fail(Code::kUnsupported, "{}: {}", file.string(), what);
}

Activation ActivationOf(Ct2Activation activation) {
  switch (activation) {
    case Ct2Activation::kRelu:
      return Activation::kRelu;
    case Ct2Activation::kGeluTanh:
      return Activation::kGeluTanh;
    case Ct2Activation::kSilu:
      return Activation::kSilu;
    case Ct2Activation::kGelu:
      break;
  }
  return Activation::kGelu;
}

// Checks what the halves must have in common, and what no model here has.
Status CheckShape(const Ct2Shape& shape, const fs::path& file) {
  for (const Ct2Stack* stack : {&shape.encoder, &shape.decoder}) {
    const char* name = stack == &shape.encoder ? "encoder" : "decoder";
    if (!stack->norm_first) {
      return Unsupported(file, fmt::format("{}/pre_norm is 0: norms after the branches (as "
                                           "OPUS-MT's models have them) are not supported",
                                           name));
    }
    if (!stack->has_final_norm) {
      return Unsupported(
          file, fmt::format("{} has no {}/layer_norm, which is not supported", name, name));
    }
  }
  if (shape.encoder.activation != shape.decoder.activation) {
    return Unsupported(file,
                       "encoder/activation and decoder/activation differ, which is not "
                       "supported");
  }
  if (shape.encoder.embedding_scale != shape.decoder.embedding_scale) {
    return Unsupported(file,
                       "encoder/scale_embeddings and decoder/scale_embeddings differ, which "
                       "is not supported");
  }
  if (!shape.max_positions &&
      (shape.hidden_size < kLeastSinusoidWidth || shape.hidden_size % 2 != 0)) {
    return Unsupported(file, fmt::format("rows of {} numbers; with sinusoids it must be even, and "
                                         "{} or more",
                                         shape.hidden_size, kLeastSinusoidWidth));
  }
  return {};
}

std::optional<TokenId> IdOf(const std::vector<std::string>& tokens, const std::string& text) {
  const auto found = std::ranges::find(tokens, text);
  if (found == tokens.end()) return std::nullopt;
  return static_cast<TokenId>(found - tokens.begin());
}

Result<TokenId> NeedId(const std::vector<std::string>& tokens, const std::string& text,
                       const char* what, const fs::path& folder) {
  if (const auto id = IdOf(tokens, text)) return *id;
  return Fail(Code::kCorruption,
              "{}: the vocabulary has no token '{}', which config.json names as {}; convert the "
              "model again",
              folder.string(), text.substr(0, 40), what);
}

// Returns whether some token stands for a language, as those of M2M-100 and NLLB-200 do.
bool HasLanguages(const std::vector<std::string>& tokens) {
  const auto is_language = [](std::string_view token) {
    if (token.size() > 4 && token.starts_with("__") && token.ends_with("__")) {
      const auto known = M2mLanguages();
      return std::ranges::find(known, token.substr(2, token.size() - 4)) != known.end();
    }
    const auto known = NllbLanguages();
    return token.find('_') == 3 && std::ranges::find(known, token) != known.end();
  };
  return std::ranges::any_of(tokens, is_language);
}

Result<LanguagePair> PairOf(const Ct2Folder& folder, const fs::path& path) {
  LanguagePair pair;
  if (folder.add_source_bos) {
    KV_ASSIGN(const TokenId bos, NeedId(folder.source_tokens, folder.bos, "bos_token", path));
    pair.frame.before.push_back(bos);
  }
  if (folder.add_source_eos) {
    KV_ASSIGN(const TokenId eos, NeedId(folder.source_tokens, folder.eos, "eos_token", path));
    pair.frame.after.push_back(eos);
  }
  return pair;
}

Result<ModelConfig> ConfigOf(const Ct2Folder& folder, const TensorCatalog& catalog,
                             const fs::path& path) {
  const Ct2Shape& shape = folder.weights.shape;
  KV_TRY(CheckShape(shape, path / "model.bin"));
  const auto has = [&](const char* name) { return catalog.contains(name); };
  ModelConfig config;
  config.architecture = Ct2Architecture().name;
  config.vocab_size = shape.decoder.vocab_size;
  config.hidden_size = shape.hidden_size;
  config.num_layers = shape.decoder.layers;
  config.num_heads = config.num_kv_heads = shape.decoder.heads;
  config.head_dim = shape.hidden_size / shape.decoder.heads;
  config.ffn_size = shape.decoder.ffn_size;
  config.max_positions = shape.max_positions.value_or(kSinusoidPositions);
  config.rms_norm_eps = folder.norm_eps;
  config.rope.rotated_dims = 0;
  config.activation = ActivationOf(shape.decoder.activation);
  config.embedding_multiplier = shape.decoder.embedding_scale;
  config.qkv_bias = has("model.decoder.layers.0.self_attn.q_proj.bias");
  config.o_bias = has("model.decoder.layers.0.self_attn.out_proj.bias");
  config.mlp_bias = has("model.decoder.layers.0.fc1.bias");
  config.head_bias = has("lm_head.bias");
  config.sinusoids = !shape.max_positions;
  config.tied_embeddings = !has("lm_head.weight");
  EncoderConfig encoder{.num_layers = shape.encoder.layers,
                        .num_heads = shape.encoder.heads,
                        .head_dim = shape.hidden_size / shape.encoder.heads,
                        .ffn_size = shape.encoder.ffn_size,
                        .first_position = 1};
  if (has("model.encoder.embed_tokens.weight")) encoder.vocab_size = shape.encoder.vocab_size;
  if (!folder.decoder_start) {
    return Unsupported(path / "config.json",
                       "decoder_start_token is null: a model whose first token is given with each "
                       "text is not supported");
  }
  KV_ASSIGN(encoder.decoder_start,
            NeedId(folder.target_tokens, *folder.decoder_start, "decoder_start_token", path));
  if (!HasLanguages(folder.source_tokens)) {
    KV_ASSIGN(encoder.pair, PairOf(folder, path));
  }
  config.encoder = std::move(encoder);
  KV_ASSIGN(const TokenId eos, NeedId(folder.target_tokens, folder.eos, "eos_token", path));
  config.eos = {eos};
  if (const auto bos = IdOf(folder.target_tokens, folder.bos)) config.bos = {*bos};
  KV_TRY(ValidateConfig(config, path.string()));
  return config;
}

bool SamePlace(const Ct2Tensor& a, const Ct2Tensor& b) {
  return a.weights.bytes.data() == b.weights.bytes.data() && a.shape == b.shape;
}

// Returns the tensors under the names of slot_names.h: an embedding of the encoder and an output
// head only where they are not the decoder's embedding.
Result<TensorCatalog> CatalogOfFolder(const Ct2Folder& folder, const fs::path& file) {
  const auto& tensors = folder.weights.tensors;
  const auto embedding =
      std::ranges::find(tensors, "model.decoder.embed_tokens.weight", &Ct2Tensor::name);
  std::vector<StoredTensor> stored;
  for (const Ct2Tensor& tensor : tensors) {
    if (tensor.name.ends_with(".embed_tokens.bias")) {
      return Unsupported(file, tensor.name + ": embeddings with a bias are not supported");
    }
    const bool is_embedding = tensor.name == embedding->name;
    const bool may_be_shared =
        tensor.name == "lm_head.weight" || tensor.name == "model.encoder.embed_tokens.weight";
    if (may_be_shared && SamePlace(tensor, *embedding)) continue;
    stored.push_back(StoredTensorOf(tensor, file.string()));
    if (is_embedding) stored.back().name = Ct2Architecture().NamesOf(Slot::kEmbedding).hf;
  }
  return CatalogOf(std::move(stored));
}

// Finds the SentencePiece model of a side ("source"), in a folder or in the package around it: its
// own, or that of both. Absent: neither has one.
Result<std::optional<fs::path>> FindPieces(const fs::path& folder, const std::string& side) {
  std::vector<fs::path> places = {folder};
  if (folder.filename() == "model") places.push_back(folder.parent_path());
  for (const fs::path& place : places) {
    for (const std::string& name : {side + ".spm", std::string("sentencepiece.model"),
                                    std::string("sentencepiece.bpe.model")}) {
      KV_ASSIGN(const bool exists, Exists(place / name));
      if (exists) return place / name;
    }
  }
  return std::nullopt;
}

Result<Vocabulary> VocabularyOfSide(const Ct2Folder& ct2, const fs::path& pieces_path,
                                    const std::vector<std::string>& tokens,
                                    const fs::path& tokens_path) {
  KV_ASSIGN(const std::string bytes, ReadTextFile(pieces_path, kMaxTokenizerBytes));
  KV_TRY(CheckNoLfsPointer(std::as_bytes(std::span(bytes)), pieces_path.string()));
  KV_ASSIGN(Vocabulary pieces, ParseSentencePiece(bytes, pieces_path.string(), kMaxVocabulary));
  return Ct2Vocabulary(std::move(pieces),
                       {tokens, tokens_path.string(), ct2.unk, ct2.bos, ct2.eos});
}

// Makes the vocabulary of what the model writes, with that of what it reads where that is another
// one.
Result<std::optional<Vocabulary>> VocabularyOf(const Ct2Folder& ct2, const fs::path& folder) {
  KV_ASSIGN(const auto source, FindPieces(folder, "source"));
  KV_ASSIGN(const auto target, FindPieces(folder, "target"));
  if (!source || !target) {
    return Unsupported(folder / (source ? "target.spm" : "sentencepiece.model"),
                       "is missing (sentencepiece.bpe.model too, or source.spm and target.spm), "
                       "which cuts a text into the model's tokens; put it into this folder, or "
                       "beside it where it is called 'model'");
  }
  const bool share_tokens = ct2.source_tokens == ct2.target_tokens;
  if (!share_tokens && HasLanguages(ct2.source_tokens)) {
    return Unsupported(folder / "source_vocabulary",
                       "has other tokens than target_vocabulary, and languages among them; texts "
                       "of such a model are not read");
  }
  const auto tokens_path = [&](const char* name) {
    return folder / (share_tokens ? "shared_vocabulary" : name);
  };
  KV_ASSIGN(Vocabulary vocabulary,
            VocabularyOfSide(ct2, *target, ct2.target_tokens, tokens_path("target_vocabulary")));
  if (share_tokens && *source == *target) return vocabulary;
  KV_ASSIGN(Vocabulary sources,
            VocabularyOfSide(ct2, *source, ct2.source_tokens, tokens_path("source_vocabulary")));
  vocabulary.sources = std::make_shared<const Vocabulary>(std::move(sources));
  return vocabulary;
}

// Reads from_code and to_code of the metadata.json that Argos Translate's packages have.
Status ReadMetadata(const fs::path& package, LanguagePair* pair) {
  const fs::path path = package / "metadata.json";
  KV_ASSIGN(const bool exists, Exists(path));
  if (!exists) return {};
  KV_ASSIGN(const std::string text, ReadTextFile(path, kMaxMetadataBytes));
  KV_ASSIGN(const json metadata, ParseJsonObject(text, path.string()));
  for (const auto& [key, to] :
       {std::pair("from_code", &pair->source), {"to_code", &pair->target}}) {
    const auto found = metadata.find(key);
    if (found != metadata.end() && found->is_string()) *to = *found;
  }
  return {};
}

}  // namespace

Result<ImportedModel> ImportCt2Folder(const fs::path& folder, const fs::path& given) {
  ImportedModel model;
  model.path = given;
  model.name = given.filename().string();
  const fs::path file = folder / "model.bin";
  KV_ASSIGN(const Ct2Folder ct2, ReadCt2Folder(folder));
  KV_ASSIGN(const TensorCatalog catalog, CatalogOfFolder(ct2, file));
  KV_ASSIGN(model.config, ConfigOf(ct2, catalog, folder));
  KV_TRY(BindTensors(catalog, NameStyle::kHuggingFace, file.string(), model));
  model.mapped_files = {ct2.file};
  model.vocabulary = VocabularyOf(ct2, folder);
  if (auto& pair = model.config.encoder->pair) {
    KV_TRY(ReadMetadata(folder.filename() == "model" ? folder.parent_path() : folder, &*pair));
  }
  return model;
}

}  // namespace kvasir
