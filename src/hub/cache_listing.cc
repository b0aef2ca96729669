#include "hub/cache_listing.h"

#include <algorithm>

#include "base/mapped_file.h"
#include "hub/file_choice.h"

namespace kvasir::hub {
namespace {

namespace fs = std::filesystem;

uint64_t BytesOf(const fs::path& snapshot, const std::vector<std::string>& files) {
  uint64_t bytes = 0;
  for (const std::string& file : files) {
    std::error_code error;
    const uint64_t size = fs::file_size(snapshot / file, error);
    if (!error) bytes += size;
  }
  return bytes;
}

}  // namespace

std::vector<std::string> FoldersIn(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    std::error_code ignored;
    if (at->is_directory(ignored)) names.push_back(at->path().filename().string());
  }
  std::ranges::sort(names);
  return names;
}

std::vector<CachedRef> RefsOf(const HubCache& cache, std::string_view repo) {
  const fs::path folder = cache.Repo(repo) / "refs";
  std::vector<CachedRef> refs;
  std::error_code error;
  for (fs::recursive_directory_iterator at(folder, error), end; !error && at != end;
       at.increment(error)) {
    const auto commit = ReadTextFile(at->path(), kMaxRefBytes);
    if (!commit) continue;  // a folder
    refs.push_back({at->path().lexically_relative(folder).generic_string(), *commit});
  }
  std::ranges::sort(refs, {}, &CachedRef::name);
  return refs;
}

std::vector<CachedModel> ListCache(const HubCache& cache) {
  std::vector<CachedModel> models;
  for (const std::string& folder : FoldersIn(cache.root())) {
    const std::optional<std::string> repo = RepoOfFolder(folder);
    if (!repo) continue;
    const std::vector<CachedRef> refs = RefsOf(cache, *repo);
    for (const std::string& commit : FoldersIn(cache.Repo(*repo) / "snapshots")) {
      if (!IsCommit(commit)) continue;
      const fs::path snapshot = cache.Snapshot(*repo, commit);
      for (const FileChoice& choice :
           ModelsAmong(cache.FilesOf(*repo, commit), cache.ShardsOf(*repo, commit))) {
        CachedModel model{*repo, commit, {}, choice.label, snapshot, 0};
        for (const CachedRef& ref : refs) {
          if (ref.commit == commit) model.refs.push_back(ref.name);
        }
        if (!choice.is_folder()) model.path /= choice.label;
        model.bytes = BytesOf(snapshot, choice.files);
        model.files = choice.is_folder() ? 1 : choice.files.size();
        model.parts = choice.parts;
        model.missing = choice.missing;
        models.push_back(std::move(model));
      }
    }
  }
  return models;
}

}  // namespace kvasir::hub
