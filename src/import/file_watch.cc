#include "import/file_watch.h"

#include <utility>

#include "base/clock.h"
#include "base/result.h"

namespace kvasir {
namespace {

bool LeadsTo(const std::filesystem::path& path, const FileStamp& stamp) {
  const Result<FileStamp> now = StampOf(path);
  return now && now->inode == stamp.inode && now->device == stamp.device;
}

tl::unexpected<Error> Unseen(const std::filesystem::path& path, const Error& why) {
  return Fail(Code::kUnavailable, "model: cannot check {}: {}; try again", path.string(),
              why.message);
}

// Returns what happened to the file since it had `stamp` and its path led to it or not. Both follow
// where it only got or lost a name: that moves ctime and no other time. An error: the system does
// not say now.
Result<std::optional<std::string>> ChangeOf(const MappedFile& file, FileStamp& stamp,
                                            bool& at_path) {
  if (file.faulted()) return "has lost a page: it was truncated, or its disk failed";
  const Result<FileStamp> now = file.Now();
  if (!now) return Unseen(file.path(), now.error());
  if (*now == stamp) return std::nullopt;
  if (now->size_bytes != stamp.size_bytes) {
    return fmt::format("went from {} bytes to {}", stamp.size_bytes, now->size_bytes);
  }
  // The bytes may be the same (touch): what was loaded cannot be compared with them any more.
  if (now->mtime_ns != stamp.mtime_ns) {
    return "has a new time of change (it was written to or touched)";
  }
  const bool was_at_path = std::exchange(at_path, LeadsTo(file.path(), *now));
  if (now->links == stamp.links && was_at_path && at_path) {
    return "was changed (its bytes, owner or permissions)";
  }
  stamp = *now;
  return std::nullopt;
}

constexpr const char* kFix =
    "restart the server when the model is complete; to replace a model, rename the new file over "
    "the old one and never write into it";

}  // namespace

Status CheckWhileLoading(std::span<const std::shared_ptr<const MappedFile>> files) {
  for (const auto& file : files) {
    FileStamp stamp = file->stamp();
    bool at_path = true;
    KV_ASSIGN(const auto change, ChangeOf(*file, stamp, at_path));
    if (change) {
      return Fail(Code::kModelChanged,
                  "model changed: {} {} while it was loaded; start again when the file is whole",
                  file->path().string(), *change);
    }
  }
  return {};
}

void FileWatch::Add(std::shared_ptr<const MappedFile> file, Path path, Reads reads) {
  const MutexLock lock(mutex_);
  const FileStamp stamp = file->stamp();
  files_.push_back({std::move(file), path, reads, stamp, true, stamp.inode});
}

Status FileWatch::CheckStep() {
  std::optional<Error> unseen;
  {
    const MutexLock lock(mutex_);
    for (Watched& watched : files_) {
      if (watched.reads != Reads::kInEachStep) continue;
      if (const Status seen = CheckBytes(watched); !seen) unseen = seen.error();
    }
    if (!changed_ && !unseen) return {};
  }
  return Finish(std::move(unseen));
}

Status FileWatch::CheckAll() {
  std::optional<Error> gone, unseen;
  {
    const MutexLock lock(mutex_);
    for (Watched& watched : files_) {
      if (const Status seen = CheckBytes(watched); !seen) unseen = seen.error();
      if (watched.path == Path::kMayGo || changed_) continue;
      if (std::optional<Error> error = CheckPath(watched); error && !gone) gone = std::move(error);
    }
    const bool is_news = gone && gone->code == Code::kModelChanged && gone->message != gone_;
    if (is_news) Tell(gone->message);
    gone_ = gone ? gone->message : "";
    if (!gone && !unseen && !changed_ && news_.empty()) return {};
  }
  return Finish(gone ? std::move(gone) : std::move(unseen));
}

Status FileWatch::CheckLately() {
  {
    const MutexLock lock(lately_mutex_);
    if (looking_ || std::chrono::nanoseconds(MonotonicNs() - looked_at_ns_) < kLately)
      return lately_;
    looking_ = true;
  }
  Status all;
  try {
    all = CheckAll();
  } catch (const std::bad_alloc&) {
    all = Fail(Code::kUnavailable, "model: not enough memory to check its files; try again");
  }
  const MutexLock lock(lately_mutex_);
  looking_ = false;
  looked_at_ns_ = MonotonicNs();
  lately_ = all;
  return all;
}

Status FileWatch::CheckBytes(Watched& watched) {
  if (changed_) return {};
  KV_ASSIGN(const auto change, ChangeOf(*watched.file, watched.stamp, watched.at_path));
  if (!change) return {};
  changed_ =
      Error{Code::kModelChanged, fmt::format("model changed: {} {} while the model is served; {}",
                                             watched.file->path().string(), *change, kFix)};
  Tell(changed_->message);
  return {};
}

std::optional<Error> FileWatch::CheckPath(Watched& watched) {
  // Allocates nothing while all is well: decode steps do not.
  const std::filesystem::path& path = watched.file->path();
  const Result<FileStamp> now = StampOf(watched.file->path());
  if (!now && now.error().code != Code::kNotFound) return Unseen(path, now.error()).value();
  if (!now) {
    return Error{Code::kModelChanged, fmt::format("model changed: {} is gone while the model is "
                                                  "served ({}); put it back, or {}",
                                                  path.string(), now.error().message, kFix)};
  }
  if (now->inode == watched.path_inode) return std::nullopt;
  watched.path_inode = now->inode;
  if (now->inode != watched.stamp.inode) {
    Tell(
        fmt::format("{} was replaced by another file; the one that was loaded is still served: "
                    "restart the server to use the new one",
                    path.string()));
  }
  return std::nullopt;
}

void FileWatch::Tell(std::string text) { news_.push_back(std::move(text)); }

// Tells the news without holding the lock. What changed comes before what is gone.
Status FileWatch::Finish(std::optional<Error> error) {
  std::vector<std::string> news;
  {
    const MutexLock lock(mutex_);
    news.swap(news_);
    if (changed_) error = changed_;
  }
  for (const std::string& text : news) {
    if (on_change_) on_change_(text);
  }
  if (error) return tl::unexpected(std::move(*error));
  return {};
}

}  // namespace kvasir
