#include "hub/cache_removal.h"

#include <algorithm>
#include <set>

#include "base/result.h"
#include "base/system_error.h"
#include "hub/cache_listing.h"
#include "hub/file_choice.h"

namespace kvasir::hub {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> EntriesIn(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    names.push_back(at->path().filename().string());
  }
  return names;
}

tl::unexpected<Error> NotCached(const HubCache& cache, const RepoRef& what) {
  return Fail(Code::kNotFound, "the Hugging Face cache ({}) has no {}; 'kvasir models' lists it",
              cache.root().string(), what.Text());
}

// Returns what goes with the model of these files: the text files of the snapshot stay while
// another model may read them, and go with the last one.
std::vector<std::string> Removable(const std::vector<std::string>& files,
                                   std::vector<std::string> chosen) {
  std::vector<std::string> rest;
  std::ranges::copy_if(files, std::back_inserter(rest), [&](const std::string& file) {
    return std::ranges::find(chosen, file) == chosen.end();
  });
  if (!ModelsAmong(rest).empty()) {
    std::erase_if(chosen, IsTextFile);
  } else if (std::ranges::all_of(rest, IsTextFile)) {
    return files;
  }
  return chosen;
}

// One removal from a repository whose lock is held.
class Remover {
 public:
  Remover(const HubCache& cache, const RepoRef& ref, const std::function<void()>& wait)
      : cache_(cache), ref_(ref), wait_(wait), repo_(cache.Repo(ref.repo)) {}

  Result<Removed> Run() {
    KV_ASSIGN(const std::vector<std::string> commits, Commits());
    for (const std::string& commit : commits) KV_TRY(RemoveFiles(commit));
    if (ref_.choice && removed_.num_files == 0) {
      return NotCached(cache_, ref_);
    }
    for (const std::string& blob : unlinked_) KV_TRY(RemoveBlob(blob));
    if (FoldersIn(repo_ / "snapshots").empty()) KV_TRY(RemoveRepo());
    return removed_;
  }

 private:
  Result<std::vector<std::string>> Commits() const {
    std::vector<std::string> commits;
    if (!ref_.revision) {
      commits = FoldersIn(repo_ / "snapshots");
      std::erase_if(commits, [](const std::string& name) { return !IsCommit(name); });
    } else if (const auto commit = cache_.CommitOf(ref_)) {
      commits = {*commit};
    }
    if (!commits.empty() || (!ref_.revision && fs::is_directory(repo_))) return commits;
    return NotCached(cache_, {ref_.repo, ref_.revision, {}});
  }

  Status Remove(const fs::path& path) {
    std::error_code error;
    fs::remove_all(path, error);
    if (error) return FailErrno(error.value(), "cannot remove {}", path.string());
    return {};
  }

  // Counts and removes a link, or the file itself in a cache without links.
  Status RemoveFile(const fs::path& path) {
    std::error_code error;
    const fs::path target = fs::read_symlink(path, error);
    if (!error) {
      unlinked_.insert(target.filename().string());
    } else if (const uint64_t bytes = fs::file_size(path, error); !error) {
      removed_.freed_bytes += bytes;
    }
    ++removed_.num_files;
    return Remove(path);
  }

  Status RemoveFiles(const std::string& commit) {
    const fs::path snapshot = cache_.Snapshot(ref_.repo, commit);
    const std::vector<std::string> files = cache_.FilesOf(ref_.repo, commit);
    std::vector<std::string> chosen = files;
    if (ref_.choice) {
      const auto choice =
          ChooseParts(files, cache_.ShardsOf(ref_.repo, commit), ref_.choice, snapshot.string());
      if (!choice && choice.error().code == Code::kNotFound) return {};
      if (!choice) return tl::unexpected(choice.error());
      chosen = Removable(files, choice->files);
    }
    for (const std::string& file : chosen) KV_TRY(RemoveFile(snapshot / file));
    if (chosen.size() < files.size()) return {};
    KV_TRY(Remove(snapshot));  // with links to blobs that are gone
    for (const CachedRef& ref : RefsOf(cache_, ref_.repo)) {
      if (ref.commit == commit) KV_TRY(Remove(repo_ / "refs" / ref.name));
    }
    return {};
  }

  // Returns whether a snapshot has a link to it. Also sees links that another program has just
  // made.
  bool IsLinked(const std::string& blob) const {
    for (const std::string& commit : FoldersIn(repo_ / "snapshots")) {
      std::error_code error;
      const fs::path folder = repo_ / "snapshots" / commit;
      for (fs::recursive_directory_iterator at(folder, error), end; !error && at != end;
           at.increment(error)) {
        std::error_code no_link;
        const fs::path target = fs::read_symlink(at->path(), no_link);
        if (!no_link && target.filename() == blob) return true;
      }
    }
    return false;
  }

  // `name`: a blob, or the beginning of one (ID.incomplete, ID.UNIQUE.incomplete).
  Status RemoveBlob(const std::string& name) {
    KV_ASSIGN(const auto lock, cache_.Lock(ref_.repo, name.substr(0, name.find('.')), wait_));
    const fs::path path = repo_ / "blobs" / name;
    std::error_code error;
    const bool is_link = fs::is_symlink(path, error);  // into a store that models share
    if (IsLinked(name) || (!fs::exists(path, error) && !is_link)) return {};
    const uint64_t bytes = is_link ? 0 : fs::file_size(path, error);
    KV_TRY(Remove(path));
    removed_.freed_bytes += bytes;
    return {};
  }

  Status RemoveRepo() {
    for (const std::string& name : EntriesIn(repo_ / "blobs")) KV_TRY(RemoveBlob(name));
    return Remove(repo_);
  }

  const HubCache& cache_;
  const RepoRef& ref_;
  const std::function<void()>& wait_;
  const fs::path repo_;
  std::set<std::string> unlinked_;  // names of blobs
  Removed removed_;
};

}  // namespace

Result<Removed> RemoveModel(const HubCache& cache, const RepoRef& ref,
                            const std::function<void()>& wait) {
  std::error_code error;
  if (!fs::is_directory(cache.Repo(ref.repo), error)) {
    return NotCached(cache, {ref.repo, {}, {}});
  }
  KV_ASSIGN(const auto lock, cache.Lock(ref.repo, kRepoLock, wait));
  return Remover(cache, ref, wait).Run();
}

}  // namespace kvasir::hub
