// FileWatch: checks that the files of a served model have not changed since they were loaded.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/mapped_file.h"
#include "base/mutex.h"
#include "kvasir/status.h"

namespace kvasir {

// kModelChanged, naming the file, when one of them was changed after it was opened.
Status CheckWhileLoading(std::span<const std::shared_ptr<const MappedFile>> files);

// A file has changed when its size or time (mtime, ctime) differs from when it was opened, or when
// a page of it cannot be read. This error is permanent, because the mapped bytes are lost. A path
// that leads to another file was replaced by renaming: the old bytes are still mapped, and this is
// not an error. A path that does not exist is an error until it exists again (docs/decisions/0008).
// Thread-safe.
class FileWatch {
 public:
  enum class Path { kMustStay, kMayGo };  // an image may be removed to make room for others
  enum class Reads { kInEachStep, kWhileLoading };  // how long its bytes are read

  // Adds a file. REQUIRES: called before the first check.
  void Add(std::shared_ptr<const MappedFile> file, Path path, Reads reads);
  // Sets what is called once for each event, with what happened and what to do, on the thread of a
  // check.
  void set_on_change(std::function<void(const std::string&)> on_change) {
    on_change_ = std::move(on_change);
  }

  // kModelChanged, naming the file; kUnavailable when the system cannot say now. One system call
  // for each file that steps read.
  Status CheckStep();
  // Checks like the above, for all files and their paths: two system calls each.
  Status CheckAll();
  // Returns the result of CheckAll, at most kLately old. One caller checks at a time, and only that
  // one can wait for the disk; the others get the last result.
  Status CheckLately();
  static constexpr std::chrono::milliseconds kLately{100};

 private:
  struct Watched {
    std::shared_ptr<const MappedFile> file;
    Path path;
    Reads reads;
    FileStamp stamp;      // of the loaded bytes; only links and ctime may change
    bool at_path;         // the path led to it when `stamp` was taken
    uint64_t path_inode;  // of the path's file at the last message about it
  };

  Status CheckBytes(Watched& watched) KV_REQUIRES(mutex_);
  std::optional<Error> CheckPath(Watched& watched) KV_REQUIRES(mutex_);
  void Tell(std::string text) KV_REQUIRES(mutex_);
  Status Finish(std::optional<Error> error);

  std::function<void(const std::string&)> on_change_;
  Mutex mutex_;
  std::vector<Watched> files_ KV_GUARDED_BY(mutex_);
  std::optional<Error> changed_ KV_GUARDED_BY(mutex_);  // the first change; permanent
  std::string gone_ KV_GUARDED_BY(mutex_);  // the last message about a path; "" at first
  std::vector<std::string> news_ KV_GUARDED_BY(mutex_);
  Mutex lately_mutex_;
  bool looking_ KV_GUARDED_BY(lately_mutex_) = false;
  Status lately_ KV_GUARDED_BY(lately_mutex_);
  uint64_t looked_at_ns_ KV_GUARDED_BY(lately_mutex_) = 0;
};

}  // namespace kvasir
