// AtomicFile: a file that appears under its name when it is whole, or not at all.
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
  kSynced,       // nothing: bytes and name are on the disk, where the file system can promise it
  kRecomputable  // anything: its readers can tell a torn file, and make it again
};
enum class IfPresent { kReplace, kKeep };  // kKeep: who published first is right
enum class Readers { kOwner, kByUmask };   // the file's mode: 0600, or as the process makes files

struct AtomicFileOptions {
  Durability durability = Durability::kSynced;
  IfPresent if_present = IfPresent::kReplace;
  Readers readers = Readers::kOwner;
};

// Writes a draft beside the file, which Publish gives the file's name: other processes see the old
// file or the new one. The draft's lock is held while it is written, so that who cleans up can tell
// it from what a crash left behind; the destructor removes it if it was not published. Any number
// of processes may write the same file: each has a draft of its own.
// Errors are those of CodeOfErrno, "cannot write PATH: why"; kInvalidArgument where PATH is there
// and is not a regular file, which a rename would replace (/dev/null, as root). Not thread-safe.
class AtomicFile {
 public:
  static Result<std::unique_ptr<AtomicFile>> Create(std::filesystem::path path,
                                                    const AtomicFileOptions& options);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  // Gives the file its size before its bytes: those that are not written are zeros.
  Status Resize(uint64_t bytes);
  Status WriteAt(std::span<const std::byte> bytes, uint64_t offset);
  // Success with IfPresent::kKeep: the file is there, this one or another's. An error leaves what
  // was there as it was. REQUIRES: called once at most.
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

// All of it in one call.
Status WriteAtomicFile(const std::filesystem::path& path, std::string_view bytes,
                       const AtomicFileOptions& options);

// Writes `bytes` from `offset` of a file on, and goes on where a call writes fewer or a signal
// comes: a disk that fills up writes some first, and says why with the next call only. False: errno
// says why, and some of them may be written.
bool WriteAllAt(int fd, std::span<const std::byte> bytes, uint64_t offset);

// Whether a file of this name is a draft, of a writer or of a crash.
bool IsDraftName(std::string_view name);

}  // namespace kvasir
