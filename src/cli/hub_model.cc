#include "cli/hub_model.h"

#include <cstdlib>

#include "base/file_name.h"
#include "base/log.h"
#include "base/mapped_file.h"
#include "base/result.h"
#include "hub/hub_cache.h"
#include "hub/hub_settings.h"

namespace kvasir::cli {
namespace {

// What the user named; absent: nothing, so that the bundled model is meant.
std::optional<std::string> NamedModel(const EngineOptions& options) {
  if (options.model) return options.model;
  const char* value = std::getenv("KVASIR_MODEL");
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);
}

}  // namespace

Status FindInHubCache(ModelUse use, EngineOptions* options) {
  const std::optional<std::string> named = NamedModel(*options);
  const auto ref = named ? hub::ParseRepoRef(*named) : std::nullopt;
  if (!ref) return {};
  KV_ASSIGN(const bool is_path, Exists(*named));
  if (is_path) return {};
  KV_ASSIGN(const std::filesystem::path cache, hub::HubCacheFolder());
  const Result<hub::FoundModel> found = hub::HubCache(cache).Find(*ref);
  const char* field = options->model ? "model" : "KVASIR_MODEL";
  if (!found) {
    const Error& error = found.error();
    const bool is_missing = error.code == Code::kNotFound;
    return FailField(error.code, field, "{}{}",
                     is_missing ? "no file or folder " + *named + ", and " : "", error.message);
  }
  if (use == ModelUse::kRun && !found->missing.empty()) {
    return FailField(Code::kNotFound, field,
                     "{} is incomplete in the Hugging Face cache: {} lacks {}; 'kvasir pull {}' "
                     "fetches the rest",
                     *named, found->path.string(), hub::TextOf(found->missing), *named);
  }
  options->model = found->path.string();
  options->model_name = hub::RepoRef{ref->repo, {}, ref->choice}.Text();
  return {};
}

std::string FileCount(size_t count) {
  return fmt::format("{} {}", count, count == 1 ? "file" : "files");
}

Result<hub::RepoRef> RequireRepoRef(std::string_view text) {
  if (std::optional<hub::RepoRef> ref = hub::ParseRepoRef(text)) {
    const std::string choice = ref->choice.value_or("");
    const size_t at = choice.find('@');
    // A file's name may have an @.
    if (at == choice.npos || choice.ends_with(".gguf")) return std::move(*ref);
    return Fail(Code::kInvalidArgument, "'{}': the revision comes first: {}@{}:{}", Printable(text),
                ref->repo, Printable(choice.substr(at + 1)), Printable(choice.substr(0, at)));
  }
  return Fail(Code::kInvalidArgument,
              "'{}' is not the name of a model; give {}, such as Qwen/Qwen3-0.6B-GGUF:Q8_0",
              Printable(text), hub::kRepoForm);
}

std::function<void()> WaitNotice(const hub::RepoRef& ref) {
  return [text = ref.repo + ": another process fetches or removes files; waiting for it"] {
    Log(LogLevel::kInfo, text);
  };
}

}  // namespace kvasir::cli
