// Reads a CTranslate2 folder: model.bin, and what its other files say.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/json_object.h"
#include "base/result.h"
#include "import/ctranslate2.h"
#include "import/importer.h"

namespace kvasir {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr uint64_t kMaxVocabularyBytes = uint64_t{256} << 20;
constexpr uint64_t kMaxFolderConfigBytes = uint64_t{1} << 20;

Result<std::vector<std::string>> ParseTokens(const std::string& text, const fs::path& path) {
  if (path.extension() == ".json") {
    // An object around it, since only those are read with a limit of depth.
    KV_ASSIGN(const json object, ParseJsonObject("{\"tokens\":" + text + "}", path.string()));
    const json& list = object["tokens"];
    const auto is_text = [](const json& token) { return token.is_string(); };
    if (!list.is_array() || object.size() != 1 || !std::ranges::all_of(list, is_text)) {
      return Fail(Code::kCorruption, "{}: not a list of tokens; convert the model again",
                  path.string());
    }
    return list.get<std::vector<std::string>>();
  }
  std::vector<std::string> tokens;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    tokens.push_back(text.substr(begin, end - begin));
    if (tokens.back().ends_with('\r')) tokens.back().pop_back();
    begin = end + 1;
  }
  return tokens;
}

// Reads shared_vocabulary.json or .txt, else STEM_vocabulary, as CTranslate2 looks for them; with
// the unknown token. kCorruption: not as many tokens as the embedding has rows.
Result<std::vector<std::string>> ReadTokens(const fs::path& folder, const std::string& stem,
                                            const std::string& unk, uint32_t vocab_size) {
  for (const std::string& name : {std::string("shared"), stem}) {
    for (const char* extension : {".json", ".txt"}) {
      const fs::path path = folder / (name + "_vocabulary" + extension);
      KV_ASSIGN(const bool exists, Exists(path));
      if (!exists) continue;
      KV_ASSIGN(const std::string text, ReadTextFile(path, kMaxVocabularyBytes));
      KV_ASSIGN(std::vector<std::string> tokens, ParseTokens(text, path));
      if (std::ranges::find(tokens, unk) == tokens.end()) tokens.push_back(unk);
      if (tokens.size() == vocab_size) return tokens;
      return Fail(Code::kCorruption,
                  "{}: {} tokens, but the {}'s embedding has {} rows; convert the model again",
                  path.string(), tokens.size(), stem == "source" ? "encoder" : "decoder",
                  vocab_size);
    }
  }
  return Fail(Code::kNotFound, "{}: neither {}_vocabulary nor shared_vocabulary (.json or .txt)",
              folder.string(), stem);
}

Status Wrong(const fs::path& path, const char* field) {
  return Fail(Code::kCorruption, "{}: {} has the wrong type; convert the model again",
              path.string(), field);
}

Status TakeConfig(const json& config, const fs::path& path, Ct2Folder* folder) {
  const auto field = [&](const char* name) {
    const auto found = config.find(name);
    return found == config.end() || found->is_null() ? nullptr : &*found;
  };
  for (const auto& [name, to] : {std::pair("unk_token", &folder->unk),
                                 {"bos_token", &folder->bos},
                                 {"eos_token", &folder->eos}}) {
    const json* value = field(name);
    if (value == nullptr) continue;
    if (!value->is_string()) return Wrong(path, name);
    *to = *value;
  }
  for (const auto& [name, to] : {std::pair("add_source_bos", &folder->add_source_bos),
                                 {"add_source_eos", &folder->add_source_eos}}) {
    const json* value = field(name);
    if (value == nullptr) continue;
    if (!value->is_boolean()) return Wrong(path, name);
    *to = *value;
  }
  if (const json* eps = field("layer_norm_epsilon")) {
    if (!eps->is_number() || !(eps->get<double>() > 0 && eps->get<double>() < 1)) {
      return Wrong(path, "layer_norm_epsilon");
    }
    folder->norm_eps = eps->get<float>();
  }
  if (!config.contains("decoder_start_token")) {
    folder->decoder_start = folder->bos;
  } else if (const json* start = field("decoder_start_token")) {
    if (!start->is_string()) return Wrong(path, "decoder_start_token");
    folder->decoder_start = *start;
  }
  return {};
}

// Returns what variables of the whole model say, in files from before config.json had it.
json OldConfig(const Ct2File& model) {
  json config = json::object();
  const auto flag = [&](const char* name) -> std::optional<bool> {
    const auto found = model.variables.find(name);
    if (found == model.variables.end() || found->second.bytes.empty()) return std::nullopt;
    return found->second.bytes[0] != std::byte{0};
  };
  for (const char* name : {"unk_token", "bos_token", "eos_token"}) {
    const auto found = model.variables.find(name);
    if (found == model.variables.end()) continue;
    const auto bytes = found->second.bytes;
    std::string text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    config[name] = std::move(text);
  }
  config["add_source_bos"] = flag("with_source_bos").value_or(false);
  config["add_source_eos"] = flag("with_source_eos").value_or(false);
  if (flag("user_decoder_start_tokens").value_or(false)) {
    config["decoder_start_token"] = nullptr;
  } else if (!flag("with_target_bos").value_or(true)) {
    config["decoder_start_token"] = config.value("eos_token", "</s>");
  }
  return config;
}

}  // namespace

Result<Ct2Folder> ReadCt2Folder(const fs::path& path) {
  Ct2Folder folder;
  const fs::path model_path = path / "model.bin", config_path = path / "config.json";
  KV_ASSIGN(folder.file, MappedFile::Open(model_path));
  KV_TRY(CheckNoLfsPointer(folder.file->bytes(), model_path.string()));
  KV_ASSIGN(const Ct2File model, ParseCt2(folder.file->bytes(), model_path.string()));
  KV_ASSIGN(folder.weights, DescribeCt2(model, model_path.string()));
  json config = OldConfig(model);
  KV_ASSIGN(const bool has_config, Exists(config_path));
  if (has_config) {
    KV_ASSIGN(const std::string text, ReadTextFile(config_path, kMaxFolderConfigBytes));
    KV_ASSIGN(const json own, ParseJsonObject(text, config_path.string()));
    if (model.version >= 6) config = json::object();
    config.update(own);
  }
  KV_TRY(TakeConfig(config, config_path, &folder));
  const Ct2Shape& shape = folder.weights.shape;
  KV_ASSIGN(folder.source_tokens, ReadTokens(path, "source", folder.unk, shape.encoder.vocab_size));
  KV_ASSIGN(folder.target_tokens, ReadTokens(path, "target", folder.unk, shape.decoder.vocab_size));
  return folder;
}

}  // namespace kvasir
