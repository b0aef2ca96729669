#include "cli/hub_model.h"

#include <cstdlib>

#include "base/clock.h"
#include "base/file_name.h"
#include "base/log.h"
#include "base/mapped_file.h"
#include "base/result.h"
#include "base/sizes.h"
#include "cli/cached_models.h"
#include "cli/interrupt.h"
#include "cli/progress.h"
#include "hub/hub_cache.h"
#include "hub/hub_settings.h"

namespace kvasir::cli {
namespace {

// The share that is done and the speed since the first call.
class PullLine {
 public:
  void Show(const std::string& file, uint64_t done_bytes, uint64_t total_bytes) {
    const uint64_t now_ns = MonotonicNs();
    if (!start_ns_) {
      start_ns_ = now_ns;
      start_bytes_ = done_bytes;
    }
    const double seconds = static_cast<double>(now_ns - *start_ns_) * 1e-9;
    const double new_bytes =
        done_bytes > start_bytes_ ? static_cast<double>(done_bytes - start_bytes_) : 0;
    const auto speed = static_cast<uint64_t>(seconds > 0 ? new_bytes / seconds : 0);
    const double share =
        total_bytes > 0 ? static_cast<double>(done_bytes) / static_cast<double>(total_bytes) : 0;
    progress_.Show(fmt::format("fetching {}: {} of {}, {}/s", file, FormatBytes(done_bytes),
                               FormatBytes(total_bytes), FormatBytes(speed)),
                   share);
  }

 private:
  Progress progress_;
  std::optional<uint64_t> start_ns_;
  uint64_t start_bytes_ = 0;
};

// Returns the model's name for callers: without the revision.
std::string NameOf(const hub::RepoRef& ref) {
  return hub::RepoRef{ref.repo, {}, ref.choice}.Text();
}

// Returns the model that the user named; absent: none is named, so the bundled model is meant.
std::optional<std::string> NamedModel(const EngineOptions& options) {
  if (options.model) return options.model;
  const char* value = std::getenv("KVASIR_MODEL");
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);
}

}  // namespace

Status FetchModel(const std::string& name, EngineOptions* options) {
  const auto fail = [](const Error& error) {
    return FailField(error.code, "hf-repo", "{}", error.text());
  };
  const Result<hub::RepoRef> ref = RequireRepoRef(name);
  if (!ref) return fail(ref.error());
  KV_ASSIGN(const std::filesystem::path cache, hub::HubCacheFolder());
  const Result<hub::FoundModel> found = hub::HubCache(cache).Find(*ref);
  if (found && found->missing.empty()) {
    options->model = found->path.string();
  } else {
    const Result<hub::PulledModel> pulled = PullModel(*ref);
    if (!pulled) return fail(pulled.error());
    options->model = pulled->path.string();
  }
  options->model_name = NameOf(*ref);
  return {};
}

Status FindInHubCache(ModelUse use, EngineOptions* options) {
  const std::optional<std::string> named = NamedModel(*options);
  if (!named || named->empty()) return {};
  const char* field = options->model ? "model" : "KVASIR_MODEL";
  std::optional<hub::RepoRef> ref = hub::ParseRepoRef(*named);
  const Result<bool> is_path = Exists(*named);
  if (ref && !is_path) return tl::unexpected(is_path.error());
  if (!is_path || *is_path) return {};  // the engine says what is wrong with a path
  const auto cache = hub::HubCacheFolder();
  if (ref && !cache) return tl::unexpected(cache.error());
  const auto find = [&]() -> Result<hub::FoundModel> { return hub::HubCache(*cache).Find(*ref); };
  Result<hub::FoundModel> found = ref ? find() : Fail(Code::kNotFound, "it is not in the cache");
  if (!found && found.error().code == Code::kNotFound) {
    // A name that leaves out what 'kvasir run NAME' may leave out, too.
    const Result<std::optional<std::string>> known = ModelNamed(*named);
    if (!known) return FailField(known.error().code, field, "{}", known.error().text());
    const auto meant = *known ? hub::ParseRepoRef(**known) : std::nullopt;
    if (meant && (!ref || meant->repo != ref->repo)) {
      ref = meant;
      found = find();
    } else if (!ref) {
      const std::string nearest = *known ? "" : DidYouMean(*named);
      if (nearest.empty()) return {};
      return FailField(Code::kNotFound, field, "no file or folder {}{}", *named, nearest);
    }
  }
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
  options->model_name = NameOf(*ref);
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

Result<hub::PulledModel> PullModel(const hub::RepoRef& ref) {
  KV_ASSIGN(const hub::HubSettings settings, hub::ReadHubSettings());
  if (!settings.warning.empty()) Log(LogLevel::kWarning, settings.warning);
  ExitOnInterrupt();
  PullLine line;
  return hub::Pull(settings, ref,
                   {[&](const std::string& file, uint64_t done, uint64_t total) {
                      line.Show(Printable(file), done, total);
                    },
                    WaitNotice(ref),
                    [&](const std::string& reason) {
                      Log(LogLevel::kWarning,
                          settings.endpoint + ": " + reason + "; trying again, 4 times at most");
                    }});
}

std::function<void()> WaitNotice(const hub::RepoRef& ref) {
  return [text = ref.repo + ": another process fetches or removes files; waiting for it"] {
    Log(LogLevel::kInfo, text);
  };
}

}  // namespace kvasir::cli
