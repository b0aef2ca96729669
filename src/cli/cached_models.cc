#include "cli/cached_models.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>

#include "base/ascii.h"
#include "base/file_name.h"
#include "base/model_tag.h"
#include "base/nearest.h"
#include "base/result.h"
#include "hub/hub_settings.h"

namespace kvasir::cli {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kSpaces = " \t\n";
constexpr std::string_view kBundledModel = "kvasir-demo";

bool IsMain(const hub::CachedModel& model) {
  return std::ranges::find(model.refs, "main") != model.refs.end();
}

// Returns the names of a model's repository that people type, in small letters.
std::vector<std::string> AliasesOf(const hub::CachedModel& model) {
  const std::string repo = LowerAscii(model.repo);
  std::string last = repo.substr(repo.find('/') + 1);
  std::vector<std::string> aliases = {repo, last};
  constexpr std::string_view kGguf = "-gguf";
  if (last.ends_with(kGguf)) aliases.push_back(last.substr(0, last.size() - kGguf.size()));
  return aliases;
}

// Tells whether a choice, as --model takes it after the colon, means the model.
bool Chooses(const std::string& choice, const hub::CachedModel& model) {
  if (LowerAscii(model.label) == choice) return true;
  const std::vector<std::string> files = {LowerAscii(model.label)};
  return hub::ChooseParts(files, {}, choice, "").has_value();
}

// Returns the models that a text may mean.
std::vector<const hub::CachedModel*> Meant(const std::vector<hub::CachedModel>& models,
                                           std::string_view text) {
  const std::string wanted(WithoutLatest(LowerAscii(text)));
  const size_t colon = std::min(wanted.find(':'), wanted.size());
  const std::string base = wanted.substr(0, colon);
  std::vector<const hub::CachedModel*> meant;
  for (const hub::CachedModel& model : models) {
    if (LowerAscii(CachedNameOf(model)) == wanted) return {&model};
    const std::vector<std::string> aliases = AliasesOf(model);
    if (std::ranges::find(aliases, base) == aliases.end()) continue;
    if (colon == wanted.size() || Chooses(wanted.substr(colon + 1), model)) meant.push_back(&model);
  }
  // A name without a revision means the newest one.
  if (std::ranges::any_of(meant, [](const auto* model) { return IsMain(*model); })) {
    std::erase_if(meant, [](const auto* model) { return !IsMain(*model); });
  }
  return meant;
}

// Returns the models of the cache; none where it has no folder.
std::vector<hub::CachedModel> CachedModels() {
  const auto folder = hub::HubCacheFolder();
  if (!folder) return {};
  return hub::ListCache(hub::HubCache(*folder));
}

// Tells whether a word has the size of a model as one of its parts: qwen3-0.6b,
// SmolLM2-135M-Instruct.
bool HasModelSize(std::string_view word) {
  for (size_t dash = word.find('-'); dash != word.npos; dash = word.find('-', dash + 1)) {
    const std::string_view part = word.substr(dash + 1, word.find('-', dash + 1) - dash - 1);
    const size_t number = std::min(part.find_first_not_of("0123456789."), part.size());
    const std::string unit = LowerAscii(part.substr(number));
    if (number > 0 && (unit == "b" || unit == "m")) return true;
  }
  return false;
}

// Tells whether a text is one word of letters, digits, ".", "-" and "_", as names of models are.
bool IsNameWord(std::string_view text) {
  return !text.empty() && std::ranges::all_of(text, [](char c) {
    return IsAsciiAlnum(c) || c == '.' || c == '-' || c == '_';
  });
}

bool IsModelFolder(const fs::path& path) {
  std::error_code error;
  if (fs::exists(path / "config.json", error)) return true;
  for (const auto& entry : fs::directory_iterator(path, error)) {
    if (entry.path().extension() == ".gguf") return true;
  }
  return false;
}

// Tells whether a text is the path of a model, or written as only a path is.
bool IsModelPath(const std::string& text) {
  std::error_code error;
  if (fs::is_directory(text, error)) return IsModelFolder(text);
  const bool is_word = text.find_first_of(kSpaces) == text.npos;
  const bool is_rooted = text.starts_with('/') || text.starts_with("./") || text.starts_with("../");
  if (is_rooted) return is_word || fs::exists(text, error);
  // A colon comes before the file of a name.
  const bool is_file = is_word && text.find(':') == text.npos;
  return text.ends_with(".gguf") && (is_file || fs::exists(text, error));
}

}  // namespace

std::string CachedNameOf(const hub::CachedModel& model) {
  return hub::RepoRef{model.repo, IsMain(model) ? std::nullopt : std::optional(model.commit),
                      model.label}
      .Text();
}

Result<std::optional<hub::CachedModel>> FindCached(const std::vector<hub::CachedModel>& models,
                                                   std::string_view text) {
  const auto meant = Meant(models, text);
  if (meant.empty()) return std::optional<hub::CachedModel>();
  if (meant.size() == 1) return std::optional(*meant.front());
  std::vector<std::string> names;
  for (const hub::CachedModel* model : meant) names.push_back(CachedNameOf(*model));
  return Fail(Code::kInvalidArgument, "'{}' may mean {}; give one of them", Printable(text),
              fmt::join(names, " or "));
}

Result<std::optional<std::string>> ModelNamed(const std::string& given) {
  if (given.empty()) return std::optional<std::string>();
  if (IsModelPath(given)) return std::optional(given);
  const std::string text(WithoutLatest(given));
  if (text.find_first_of(kSpaces) != text.npos) return std::optional<std::string>();
  if (text == kBundledModel) return std::optional(text);  // --model knows it
  const std::vector<hub::CachedModel> models = CachedModels();
  const auto meant = Meant(models, text);
  const bool is_one_repo =
      !meant.empty() && std::ranges::all_of(meant, [&](const hub::CachedModel* model) {
        return model->repo == meant.front()->repo && IsMain(*model);
      });
  if (meant.size() > 1 && is_one_repo) {  // which of its files: as --model owner/name chooses
    const size_t colon = std::min(text.find(':'), text.size());
    return std::optional(meant.front()->repo + text.substr(colon));
  }
  KV_ASSIGN(const auto found, FindCached(models, text));
  if (found) return std::optional(CachedNameOf(*found));
  // With a revision, say.
  const auto ref = hub::ParseRepoRef(text);
  const bool is_cached = ref && std::ranges::any_of(models, [&](const hub::CachedModel& model) {
                           return model.repo == ref->repo;
                         });
  return is_cached ? std::optional(text) : std::nullopt;
}

Result<std::string> RequireModel(const std::string& text) {
  KV_ASSIGN(const auto named, ModelNamed(text));
  if (named) return *named;
  const bool can_pull = hub::ParseRepoRef(text).has_value();
  return Fail(Code::kNotFound,
              "unknown model '{}'{}: neither a model's file or folder, nor a name that 'kvasir "
              "list' shows; 'kvasir pull {}' fetches one",
              Printable(text), DidYouMean(text), can_pull ? text : "owner/name");
}

std::string DidYouMean(const std::string& text) {
  std::vector<std::string> known = {std::string(kBundledModel)}, others;
  const std::string base = LowerAscii(text.substr(0, text.find(':')));
  for (const hub::CachedModel& model : CachedModels()) {
    const std::vector<std::string> aliases = AliasesOf(model);
    known.insert(known.end(), aliases.begin(), aliases.end());
    if (std::ranges::find(aliases, base) != aliases.end()) others.push_back(CachedNameOf(model));
  }
  if (!others.empty()) {
    return fmt::format(" (of it the Hugging Face cache has {})", fmt::join(others, ", "));
  }
  const auto nearest = Nearest(LowerAscii(text), known);
  return nearest ? fmt::format(" (did you mean {}?)", *nearest) : "";
}

bool IsFolderWithoutModel(const std::string& text) {
  std::error_code error;
  return fs::is_directory(text, error) && !IsModelFolder(text);
}

bool MayBeModel(const std::string& text) {
  constexpr std::string_view kFamilies[] = {"llama", "qwen",     "gemma",   "mistral", "mixtral",
                                            "phi",   "deepseek", "granite", "smollm",  "gpt-"};
  if (!IsNameWord(text)) return false;
  const std::string word = LowerAscii(text);
  return (std::ranges::any_of(word, IsAsciiDigit) && std::ranges::any_of(word, IsAsciiLetter)) ||
         std::ranges::any_of(kFamilies, [&](auto family) { return word.starts_with(family); }) ||
         !DidYouMean(text).empty();
}

bool IsLikeModel(const std::string& text) {
  if (hub::ParseRepoRef(text)) return true;
  if (HasModelSize(text) && IsNameWord(text)) return true;
  const size_t colon = text.find(':');
  if (colon == text.npos || colon == 0 || colon + 1 == text.size()) return false;
  const std::string_view name = std::string_view(text).substr(0, colon);
  const std::string_view tag = std::string_view(text).substr(colon + 1);
  return !IsAsciiDigit(text[0]) && IsNameWord(name) && IsNameWord(tag);
}

Result<Args> WithModelOperand(const Args& given) {
  const std::vector<std::string> operands = given.List(kOperands);
  if (operands.empty()) return given;
  for (const char* flag : {"model", "hf-repo"}) {
    if (!given.Has(flag)) continue;
    return Fail(Code::kInvalidArgument, "'{}' and --{} both name a model; give one of them",
                Printable(operands.front()), flag);
  }
  KV_ASSIGN(std::string model, RequireModel(operands.front()));
  Args args = given;
  args.Set("model", {std::move(model)});
  return args;
}

}  // namespace kvasir::cli
