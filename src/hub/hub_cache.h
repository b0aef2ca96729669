// HubCache: the folder in which Hugging Face's tools and Kvasir keep the models of hubs.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/descriptor.h"
#include "hub/file_choice.h"
#include "hub/repo_ref.h"
#include "kvasir/status.h"

namespace kvasir::hub {

// What a RepoRef leads to.
struct FoundModel {
  std::filesystem::path path;  // the folder of a snapshot, or a GGUF file in it
  std::string commit;
  std::vector<std::string> missing;  // its weights that are not there, in order
};

// Writes "x", "x and 2 more files": what `missing` names. REQUIRES: it is not empty.
std::string TextOf(const std::vector<std::string>& missing);

// The layout of huggingface_hub, which both programs read and write:
//
//   models--OWNER--NAME/blobs/ID            a file's bytes. ID is its SHA-256 or its git SHA-1
//   models--OWNER--NAME/blobs/ID.incomplete the beginning of one
//   models--OWNER--NAME/refs/REVISION       the commit that a branch or tag leads to
//   models--OWNER--NAME/snapshots/COMMIT/FILE  a relative link to a blob
//   .locks/models--OWNER--NAME/ID.lock      locked by flock while a blob is written or removed
//   .locks/models--OWNER--NAME/kvasir.lock  the same, while Kvasir changes the repository
//
// A blob has its name only when it is whole, a link is made only to such a blob, and a ref is
// written last. Names given to the methods must have passed ParseRepoRef, IsSafeFile, IsCommit or
// IsHex. Thread-compatible.
class HubCache {
 public:
  explicit HubCache(std::filesystem::path root) : root_(std::move(root)) {}

  const std::filesystem::path& root() const { return root_; }
  std::filesystem::path Repo(std::string_view repo) const;
  std::filesystem::path Blob(std::string_view repo, std::string_view id) const;
  std::filesystem::path Snapshot(std::string_view repo, std::string_view commit) const;

  // Returns the commit of ref's revision, if the cache holds a snapshot of it.
  std::optional<std::string> CommitOf(const RepoRef& ref) const;
  // Returns the files of a snapshot whose bytes are there, relative, in order of their names.
  std::vector<std::string> FilesOf(std::string_view repo, std::string_view commit) const;
  // Returns what the index of a snapshot names (ReadShardNames); nothing where it has no index, or
  // one that is damaged.
  std::vector<std::string> ShardsOf(std::string_view repo, std::string_view commit) const;
  // kNotFound: the cache does not hold it; the message names the command that fetches it.
  // kInvalidArgument: it holds several models that ref may mean. A snapshot with a config.json and
  // without all of its weights is found as a folder: `missing` names them.
  Result<FoundModel> Find(const RepoRef& ref) const;

  // Waits for the lock `name` of a repository, which its holder frees by destroying it. on_wait is
  // called before waiting.
  Result<std::unique_ptr<const Descriptor>> Lock(std::string_view repo, std::string_view name,
                                                 const std::function<void()>& on_wait) const;
  // Makes `file` of a snapshot a link to a blob. REQUIRES: the caller holds kRepoLock.
  Status Link(const RepoRef& ref, std::string_view commit, std::string_view file,
              std::string_view id) const;
  // Makes ref's revision lead to `commit`, except where it is the commit. REQUIRES: as Link.
  Status WriteRef(const RepoRef& ref, std::string_view commit) const;

 private:
  std::filesystem::path root_;
};

inline constexpr std::string_view kRepoLock = "kvasir";
inline constexpr uint64_t kMaxRefBytes = 4096;  // a larger file is not a ref

// Returns "owner/name" for "models--owner--name"; nullopt: `folder` is not the folder of a model.
std::optional<std::string> RepoOfFolder(std::string_view folder);

// Makes a folder and those above it, as mkdir -p. Errors as CodeOfErrno.
Status MakeFolder(const std::filesystem::path& folder);

}  // namespace kvasir::hub
