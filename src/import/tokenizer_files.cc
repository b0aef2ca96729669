#include "import/tokenizer_files.h"

#include <algorithm>
#include <array>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/json_object.h"
#include "base/mapped_file.h"
#include "base/result.h"
#include "import/gguf_metadata.h"
#include "text/sentencepiece_model.h"
#include "text/tiktoken_ranks.h"
#include "text/translation_vocabulary.h"
#include "text/vocabulary_config.h"

namespace kvasir {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr uint64_t kMaxTemplateBytes = uint64_t{16} << 20;

// Reads a file; "" where it is absent.
Result<std::string> ReadOptional(const fs::path& path, uint64_t max_bytes) {
  KV_ASSIGN(const bool exists, Exists(path));
  if (!exists) return std::string();
  KV_ASSIGN(std::string text, ReadTextFile(path, max_bytes));
  KV_TRY(CheckNoLfsPointer(std::as_bytes(std::span(text)), path.string()));
  return text;
}

// By name; "default" is the model's.
using Templates = std::map<std::string, std::string>;

// Reads the "chat_template" of a file, tokenizer_config.json or chat_template.json: text, or a list
// of {name, template}. Of equal names the first one counts.
Result<Templates> TemplatesOf(const std::string& file, const fs::path& path) {
  Templates templates;
  if (file.empty()) return templates;
  KV_ASSIGN(const json object, ParseJsonObject(file, path.string()));
  const auto found = object.find("chat_template");
  if (found == object.end()) return templates;
  if (found->is_string()) templates["default"] = *found;
  if (!found->is_array()) return templates;
  for (const json& entry : *found) {
    if (!entry.is_object()) continue;
    const json name = entry.value("name", json()), text = entry.value("template", json());
    if (name.is_string() && text.is_string()) {
      templates.emplace(name.get<std::string>(), text.get<std::string>());
    }
  }
  return templates;
}

// Reads *.jinja in a folder, each under the name of its file.
Result<Templates> TemplatesIn(const fs::path& folder) {
  Templates templates;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    if (entry.path().extension() != ".jinja") continue;
    KV_ASSIGN(templates[entry.path().stem().string()],
              ReadOptional(entry.path(), kMaxTemplateBytes));
  }
  return templates;
}

// Reads the templates of a folder, as transformers finds them: a template's own file comes before
// tokenizer_config.json, and that before chat_template.json, which processors have.
Result<Templates> ReadTemplates(const fs::path& folder, const std::string& tokenizer_config) {
  KV_ASSIGN(Templates templates, TemplatesIn(folder / "additional_chat_templates"));
  KV_ASSIGN(std::string own, ReadOptional(folder / "chat_template.jinja", kMaxTemplateBytes));
  if (!own.empty()) {
    templates["default"] = std::move(own);
    return templates;
  }
  KV_ASSIGN(Templates named, TemplatesOf(tokenizer_config, folder / "tokenizer_config.json"));
  if (!named.contains("default")) {
    const fs::path path = folder / "chat_template.json";
    KV_ASSIGN(const std::string file, ReadOptional(path, kMaxTemplateBytes));
    KV_ASSIGN(Templates of_processor, TemplatesOf(file, path));
    named.merge(of_processor);
  }
  templates.merge(named);
  return templates;
}

// Returns the first file of ranks in a folder, by name; "": there is none.
fs::path TiktokenFile(const fs::path& folder) {
  std::vector<fs::path> found;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    if (entry.path().extension() == ".tiktoken") found.push_back(entry.path());
  }
  return found.empty() ? fs::path() : *std::ranges::min_element(found);
}

// Texts of the files that say more about a vocabulary.
struct FilesBeside {
  std::array<std::string, 3> texts;
  VocabularyConfig config() const { return {texts[0], texts[1], texts[2]}; }
};

Result<FilesBeside> ReadFilesBeside(const fs::path& folder) {
  FilesBeside files;
  const std::array names = {"tokenizer_config.json", "special_tokens_map.json",
                            "added_tokens.json"};
  for (size_t i = 0; i < names.size(); ++i) {
    KV_ASSIGN(files.texts[i], ReadOptional(folder / names[i], kMaxTokenizerBytes));
  }
  return files;
}

// Reads sentencepiece.bpe.model: with vocab.json M2M-100's, without NLLB's. Absent: no such file.
Result<std::optional<Vocabulary>> ReadTranslationVocabulary(const fs::path& folder,
                                                            const ModelConfig& config) {
  const fs::path path = folder / "sentencepiece.bpe.model", vocab = folder / "vocab.json";
  KV_ASSIGN(const std::string bytes, ReadOptional(path, kMaxTokenizerBytes));
  if (bytes.empty()) return std::nullopt;
  KV_ASSIGN(Vocabulary pieces, ParseSentencePiece(bytes, path.string(), config.vocab_size));
  KV_ASSIGN(const FilesBeside files, ReadFilesBeside(folder));
  KV_ASSIGN(const std::string ids, ReadOptional(vocab, kMaxTokenizerBytes));
  const M2mFiles m2m{ids, vocab.string(), files.texts[0]};
  KV_ASSIGN(Vocabulary vocabulary, ids.empty()
                                       ? NllbVocabulary(std::move(pieces), config.vocab_size)
                                       : M2mVocabulary(std::move(pieces), m2m, config.vocab_size));
  KV_TRY(Apply(files.config(), &vocabulary));
  return vocabulary;
}

// Reads tokenizer.model, else *.tiktoken, else sentencepiece.bpe.model, with what the files beside
// it say.
Result<std::optional<Vocabulary>> ReadVocabularyFile(const fs::path& folder,
                                                     const ModelConfig& config) {
  fs::path path = folder / "tokenizer.model";
  KV_ASSIGN(const bool has_model, Exists(path));
  if (!has_model) path = TiktokenFile(folder);
  if (path.empty()) return ReadTranslationVocabulary(folder, config);
  KV_ASSIGN(const std::string bytes, ReadTextFile(path, kMaxTokenizerBytes));
  KV_TRY(CheckNoLfsPointer(std::as_bytes(std::span(bytes)), path.string()));
  const bool ranks = !has_model || LooksLikeTiktoken(bytes);
  KV_ASSIGN(Vocabulary vocabulary,
            ranks ? ParseTiktoken(bytes, path.string(), config.architecture)
                  : ParseSentencePiece(bytes, path.string(), config.vocab_size));
  KV_ASSIGN(const FilesBeside files, ReadFilesBeside(folder));
  KV_TRY(Apply(files.config(), &vocabulary));
  return vocabulary;
}

// Tells whether a text is UTF-8: JSON without what is not UTF-8 is the same text.
bool IsUtf8(const std::string& text) {
  return json::parse(json(text).dump(-1, ' ', false, json::error_handler_t::ignore)) == text;
}

}  // namespace

Status ReadTokenizerFiles(const fs::path& folder, ImportedModel& model) {
  KV_ASSIGN(model.tokenizer_json, ReadOptional(folder / "tokenizer.json", kMaxTokenizerBytes));
  const bool is_gguf = !model.vocabulary || model.vocabulary->has_value();
  if (!model.tokenizer_json.empty()) {
    model.vocabulary = std::nullopt;
  } else if (!is_gguf) {
    model.vocabulary = ReadVocabularyFile(folder, model.config);
  }
  KV_ASSIGN(model.tokenizer_config_json,
            ReadOptional(folder / "tokenizer_config.json", kMaxTokenizerBytes));
  if (model.special_tokens_json.empty()) {
    KV_ASSIGN(model.special_tokens_json,
              ReadOptional(folder / "special_tokens_map.json", kMaxTokenizerBytes));
  }
  if (!model.chat_template.empty()) return {};
  KV_ASSIGN(model.named_templates, ReadTemplates(folder, model.tokenizer_config_json));
  std::erase_if(model.named_templates, [](const auto& named) { return named.second.empty(); });
  auto own = model.named_templates.extract("default");
  if (own) model.chat_template = std::move(own.mapped());
  return {};
}

std::string GgufSpecialTokens(const GgufFile& gguf) {
  const std::string file;
  Metadata keys(gguf, "tokenizer.ggml.", file);  // its errors are those of the vocabulary
  json object = json::object();
  const GgufArray* tokens = keys.List("tokens");
  for (const std::string name : {"bos_token", "eos_token"}) {
    if (const auto id = keys.Whole(name + "_id")) {
      object[name + "_id"] = *id;
      const auto text = tokens != nullptr ? StringAt(*tokens, *id) : std::nullopt;
      if (text && !text->empty() && IsUtf8(*text)) object[name] = *text;
    }
    if (const auto add = keys.Flag("add_" + name)) object["add_" + name] = *add;
  }
  return object.empty() ? "" : object.dump();
}

}  // namespace kvasir
