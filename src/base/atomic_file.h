// AtomicFile: a file that gets its name only when it is complete.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string_view>

#include "base/descriptor.h"
#include "kvasir/status.h"

namespace kvasir {

// What a power loss may do to a file that was published.
enum class Durability {
  kSynced,       // nothing: bytes and name are on the disk, as far as the file system ensures it
  kRecomputable  // anything: its readers can detect a damaged file and make it again
};
enum class IfPresent { kReplace, kKeep };  // kKeep: the first published file stays
enum class Readers { kOwner, kByUmask };   // the file's mode: 0600, or by the process's umask

struct AtomicFileOptions {
  Durability durability = Durability::kSynced;
  IfPresent if_present = IfPresent::kReplace;
  Readers readers = Readers::kOwner;
};

// Writes a draft beside the file; Publish renames it to the file's name, so other processes see the
// old file or the new one. The draft is locked while it is written, so that a cleanup can
// distinguish it from one that a crash left behind. The destructor removes a draft that was not
// published. Any number of processes may write the same file, each with its own draft. Errors are
// those of CodeOfErrno, "cannot write PATH: why"; kInvalidArgument where PATH is there and is not a
// regular file, which a rename would replace (/dev/null, as root). Not thread-safe.
class AtomicFile {
 public:
  static Result<std::unique_ptr<AtomicFile>> Create(std::filesystem::path path,
                                                    const AtomicFileOptions& options);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  // Sets the file's size before its bytes are written; bytes that are never written are zeros.
  Status Resize(uint64_t bytes);
  Status WriteAt(std::span<const std::byte> bytes, uint64_t offset);
  // Gives the file its name. Success with IfPresent::kKeep means that the file exists, written by
  // this process or another one. After an error the old file is unchanged. REQUIRES: called at most
  // once.
  Status Publish();

 private:
  AtomicFile(std::filesystem::path path, std::filesystem::path draft, int fd,
             const AtomicFileOptions& options);
  tl::unexpected<Error> Failed(std::string_view what, int error) const;

  const std::filesystem::path path_, draft_;
  const AtomicFileOptions options_;
  const Descriptor file_;
  bool has_draft_ = true;
};

// Writes a whole file in one call.
Status WriteAtomicFile(const std::filesystem::path& path, std::string_view bytes,
                       const AtomicFileOptions& options);

// Gives the whole file `fd`, which its writer called `draft`, the name `path` in the same folder,
// as Publish does with kSynced and kReplace. For drafts that a later process goes on writing.
Status PublishDraft(int fd, const std::filesystem::path& draft, const std::filesystem::path& path);

// Writes `bytes` at `offset` of a file. Continues after a short write or a signal: a disk that
// fills up writes some bytes first and fails only at the next call. False: errno has the reason,
// and some of the bytes may be written.
bool WriteAllAt(int fd, std::span<const std::byte> bytes, uint64_t offset);

// Tells whether a file of this name is a draft, of a running writer or left by a crash.
bool IsDraftName(std::string_view name);

}  // namespace kvasir
