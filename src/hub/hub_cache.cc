#include "hub/hub_cache.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>

#include "base/atomic_file.h"
#include "base/file_name.h"
#include "base/mapped_file.h"
#include "base/result.h"
#include "base/system_error.h"
#include "hub/shard_index.h"

namespace kvasir::hub {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "models--";

std::string FolderName(std::string_view repo) {
  const size_t slash = repo.find('/');
  return std::string(kPrefix) + std::string(repo.substr(0, slash)) + "--" +
         std::string(repo.substr(slash + 1));
}

}  // namespace

std::optional<std::string> RepoOfFolder(std::string_view folder) {
  if (!folder.starts_with(kPrefix)) return std::nullopt;
  std::string repo(folder.substr(kPrefix.size()));
  const size_t marks = repo.find("--");
  if (marks == repo.npos) return std::nullopt;
  repo.replace(marks, 2, "/");
  return ParseRepoRef(repo) ? std::optional(repo) : std::nullopt;
}

std::string TextOf(const std::vector<std::string>& missing) {
  const size_t more = missing.size() - 1;
  if (more == 0) return missing.front();
  return fmt::format("{} and {} more file{}", missing.front(), more, more == 1 ? "" : "s");
}

Status MakeFolder(const fs::path& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) return FailErrno(error.value(), "cannot make the folder {}", folder.string());
  return {};
}

fs::path HubCache::Repo(std::string_view repo) const { return root_ / FolderName(repo); }

fs::path HubCache::Blob(std::string_view repo, std::string_view id) const {
  return Repo(repo) / "blobs" / id;
}

fs::path HubCache::Snapshot(std::string_view repo, std::string_view commit) const {
  return Repo(repo) / "snapshots" / commit;
}

std::optional<std::string> HubCache::CommitOf(const RepoRef& ref) const {
  std::error_code error;
  const auto held = [&](const std::string& commit) {
    return IsCommit(commit) && fs::is_directory(Snapshot(ref.repo, commit), error);
  };
  if (held(ref.Revision())) return ref.Revision();
  const auto commit = ReadTextFile(Repo(ref.repo) / "refs" / ref.Revision(), kMaxRefBytes);
  return commit && held(*commit) ? std::optional(*commit) : std::nullopt;
}

std::vector<std::string> HubCache::FilesOf(std::string_view repo, std::string_view commit) const {
  const fs::path folder = Snapshot(repo, commit);
  std::vector<std::string> files;
  std::error_code error;
  for (fs::recursive_directory_iterator at(folder, error), end; !error && at != end;
       at.increment(error)) {
    std::error_code ignored;  // of a link to a blob that is gone
    if (!fs::is_regular_file(at->path(), ignored)) continue;
    std::string name = at->path().lexically_relative(folder).generic_string();
    if (IsSafeFile(name)) files.push_back(std::move(name));
  }
  std::ranges::sort(files);
  return files;
}

std::vector<std::string> HubCache::ShardsOf(std::string_view repo, std::string_view commit) const {
  return ReadShardNames(Snapshot(repo, commit) / kIndexFile).value_or(std::vector<std::string>());
}

Result<FoundModel> HubCache::Find(const RepoRef& ref) const {
  const std::string advice = "'kvasir pull " + ref.Text() + "' fetches it";
  const std::optional<std::string> commit = CommitOf(ref);
  if (!commit) {
    return Fail(Code::kNotFound, "the Hugging Face cache ({}) has no {}: {}", root_.string(),
                RepoRef{ref.repo, ref.revision, {}}.Text(), advice);
  }
  const fs::path snapshot = Snapshot(ref.repo, *commit);
  const std::vector<std::string> files = FilesOf(ref.repo, *commit);
  const bool has_config = std::ranges::find(files, "config.json") != files.end();
  if (!ref.choice && has_config && ModelsAmong(files).empty()) {
    return FoundModel{snapshot, *commit, {std::string(kSingleFile)}};
  }
  const auto chosen = ChooseModel(files, ref.choice, snapshot.string());
  if (!chosen) {
    if (chosen.error().code != Code::kNotFound) return tl::unexpected(chosen.error());
    return Fail(Code::kNotFound, "{}: {}", chosen.error().message, advice);
  }
  if (!chosen->is_folder()) return FoundModel{snapshot / chosen->label, *commit, {}};
  KV_ASSIGN(FileChoice folder, ChooseParts(files, ShardsOf(ref.repo, *commit),
                                           std::string(kFolderChoice), snapshot.string()));
  return FoundModel{snapshot, *commit, std::move(folder.missing)};
}

Result<std::unique_ptr<const Descriptor>> HubCache::Lock(
    std::string_view repo, std::string_view name, const std::function<void()>& on_wait) const {
  const fs::path path = root_ / ".locks" / FolderName(repo) / (std::string(name) + ".lock");
  KV_TRY(MakeFolder(path.parent_path()));
  while (true) {
    auto file = std::make_unique<const Descriptor>(
        open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0664));
    if (!*file) return FailErrno(errno, "cannot open the lock {}", path.string());
    if (flock(file->fd(), LOCK_EX | LOCK_NB) != 0) {
      if (errno == EWOULDBLOCK) on_wait();
      while (flock(file->fd(), LOCK_EX) != 0) {
        if (errno != EINTR) return FailErrno(errno, "cannot lock {}", path.string());
      }
    }
    // Its last holder may have removed the file: then others lock a new one.
    struct stat about;
    if (fstat(file->fd(), &about) == 0 && about.st_nlink > 0) return file;
  }
}

Status HubCache::Link(const RepoRef& ref, std::string_view commit, std::string_view file,
                      std::string_view id) const {
  const fs::path link = Snapshot(ref.repo, commit) / file;
  const fs::path target = Blob(ref.repo, id).lexically_relative(link.parent_path());
  std::error_code error;
  if (fs::read_symlink(link, error) == target && !error) return {};
  KV_TRY(MakeFolder(link.parent_path()));
  fs::remove(link, error);
  fs::create_symlink(target, link, error);
  if (error) return FailErrno(error.value(), "cannot make the link {}", link.string());
  return {};
}

Status HubCache::WriteRef(const RepoRef& ref, std::string_view commit) const {
  if (ref.Revision() == commit) return {};
  const fs::path path = Repo(ref.repo) / "refs" / ref.Revision();
  KV_TRY(MakeFolder(path.parent_path()));
  return WriteAtomicFile(path, commit, {.readers = Readers::kByUmask});
}

}  // namespace kvasir::hub
