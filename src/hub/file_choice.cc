#include "hub/file_choice.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>

#include "base/ascii.h"
#include "base/part_name.h"
#include "base/result.h"
#include "hub/shard_index.h"

namespace kvasir::hub {
namespace {

constexpr std::string_view kDefaultQuant = "q4_k_m";
constexpr size_t kListed = 12;  // choices that an error lists

// What a model needs beside its weights, where a repository has it.
constexpr std::array<std::string_view, 9> kTextFiles = {"config.json",
                                                        "generation_config.json",
                                                        "tokenizer.json",
                                                        "tokenizer_config.json",
                                                        "tokenizer.model",
                                                        "chat_template.jinja",
                                                        "special_tokens_map.json",
                                                        "added_tokens.json",
                                                        "chat_template.json"};
constexpr std::string_view kNamedTemplates = "additional_chat_templates/";

bool IsGguf(std::string_view lower) {
  const size_t slash = lower.rfind('/');
  const std::string_view name = slash == lower.npos ? lower : lower.substr(slash + 1);
  return name.ends_with(".gguf") && name.find("mmproj") == name.npos;
}

// nullopt where the files are not a folder that can be loaded.
std::optional<FileChoice> FolderAmong(std::span<const std::string> files,
                                      std::span<const std::string> shards) {
  const auto has = [&](std::string_view name) {
    return std::ranges::find(files, name) != files.end();
  };
  const bool is_single = has(kSingleFile);
  const bool is_split = !is_single && has(kIndexFile);
  if (!has("config.json") || (!is_single && !is_split)) return std::nullopt;
  std::set<std::string_view> weights(shards.begin(), shards.end());
  FileChoice folder{std::string(kFolderChoice), {}};
  for (const std::string& file : files) {
    const bool is_weights =
        is_single ? file == kSingleFile : file == kIndexFile || weights.erase(file) > 0;
    if (IsTextFile(file) || is_weights) folder.files.push_back(file);
  }
  if (is_split) folder.missing.assign(weights.begin(), weights.end());
  return folder;
}

// Returns whether `quant` is a word of `name`; both in lower case. '_' belongs to the word at its
// end, so that q4_k is not in q4_k_m.
bool HasQuant(std::string_view name, std::string_view quant) {
  for (size_t at = name.find(quant); at != name.npos; at = name.find(quant, at + 1)) {
    const size_t end = at + quant.size();
    const bool begins = at == 0 || !IsAsciiAlnum(name[at - 1]);
    const bool ends = end == name.size() || (!IsAsciiAlnum(name[end]) && name[end] != '_');
    if (begins && ends) return true;
  }
  return false;
}

std::string Labels(std::span<const FileChoice> models) {
  std::vector<std::string_view> labels;
  for (const FileChoice& model : models.first(std::min(models.size(), kListed))) {
    labels.push_back(model.label);
  }
  return fmt::format("{}{}", fmt::join(labels, ", "), models.size() > kListed ? ", ..." : "");
}

std::vector<FileChoice> Matching(std::span<const FileChoice> models, const std::string& choice) {
  const std::string lower = LowerAscii(choice);
  std::vector<FileChoice> found;
  for (const FileChoice& model : models) {
    if (model.label == choice || std::ranges::find(model.files, choice) != model.files.end()) {
      return {model};
    }
    if (!model.is_folder() && HasQuant(LowerAscii(model.label), lower)) found.push_back(model);
  }
  return found;
}

std::vector<FileChoice> Default(const std::vector<FileChoice>& models) {
  if (models.size() == 1) return models;
  std::vector<FileChoice> found = Matching(models, std::string(kDefaultQuant));
  return found.empty() ? models : found;
}

}  // namespace

std::vector<FileChoice> ModelsAmong(std::span<const std::string> files,
                                    std::span<const std::string> shards) {
  std::map<std::string, FileChoice> found;  // by the name of the first part
  for (const std::string& file : files) {
    if (!IsGguf(LowerAscii(file))) continue;
    const std::optional<PartName> part = ParsePartName(file);
    FileChoice& model = found[part ? part->Text(1) : file];
    model.files.push_back(file);
    if (part) model.parts = part->count;
  }
  std::vector<FileChoice> models;
  for (auto& [name, model] : found) {
    std::ranges::sort(model.files);
    model.label = model.files.front();
    models.push_back(std::move(model));
  }
  if (auto folder = FolderAmong(files, shards)) models.push_back(std::move(*folder));
  return models;
}

bool IsTextFile(std::string_view file) {
  return std::ranges::find(kTextFiles, file) != kTextFiles.end() ||
         (file.ends_with(".tiktoken") && file.find('/') == file.npos) ||
         (file.starts_with(kNamedTemplates) && file.ends_with(".jinja"));
}

Result<FileChoice> ChooseParts(std::span<const std::string> files,
                               std::span<const std::string> shards,
                               const std::optional<std::string>& choice, std::string_view where) {
  const std::vector<FileChoice> models = ModelsAmong(files, shards);
  if (models.empty()) {
    return Fail(Code::kNotFound,
                "{} has no model that Kvasir reads: neither a GGUF file nor a config.json with "
                "model.safetensors",
                where);
  }
  const std::vector<FileChoice> found = choice ? Matching(models, *choice) : Default(models);
  if (found.empty()) {
    return Fail(Code::kNotFound, "{} has no '{}'; it has: {}", where, *choice, Labels(models));
  }
  if (found.size() > 1) {
    return Fail(Code::kInvalidArgument, "{} has {} models{}; add ':' and one of: {}", where,
                found.size(), choice ? " named '" + *choice + "'" : "", Labels(found));
  }
  return found.front();
}

Result<FileChoice> ChooseModel(std::span<const std::string> files,
                               const std::optional<std::string>& choice, std::string_view where) {
  KV_ASSIGN(FileChoice model, ChooseParts(files, {}, choice, where));
  if (model.is_whole()) return model;
  return Fail(Code::kNotFound, "{} has {} of the {} parts of {}", where, model.files.size(),
              model.parts, model.label);
}

}  // namespace kvasir::hub
