// MappedFile: a file's bytes, mapped read-only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "base/descriptor.h"
#include "base/mapping_faults.h"
#include "kvasir/status.h"

namespace kvasir {

// Distinguishes the states of a file without reading it.
struct FileStamp {
  uint64_t device = 0, inode = 0, size_bytes = 0;
  int64_t mtime_ns = 0, ctime_ns = 0;
  uint64_t links = 0;  // number of hard links
  bool operator==(const FileStamp&) const = default;
};

// kInvalidArgument when it is not a regular file; other errors as in CodeOfErrno.
// Whether `path` exists. An error when the system cannot say, so that an inaccessible file does not
// count as absent.
Result<bool> Exists(const std::filesystem::path& path);

Result<FileStamp> StampOf(const std::filesystem::path& path);

// Owns one mapping; the destructor unmaps it. The size is fixed at Open. When the file is removed,
// or another file is renamed over it, the bytes stay the same. When it is written to in place, they
// change; when it is truncated, reading the lost part raises SIGBUS (base/mapping_faults.h). Now()
// and faulted() detect both. Immutable; thread-safe.
class MappedFile {
 public:
  // Maps a file. Errors as in StampOf; kExhausted when too many files are mapped. An empty file
  // gives an empty span. Every later write changes the stamp: if the file was written within the
  // last tick of the file system's clock, Open waits for the next tick (20 ms; 2 s if the clock
  // counts seconds).
  static Result<std::shared_ptr<const MappedFile>> Open(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  // Releases the pages of `part` from memory; they are read again when needed. Ignores bytes that
  // are not in this mapping.
  void Drop(std::span<const std::byte> part) const;

  std::span<const std::byte> bytes() const { return {data_, stamp_.size_bytes}; }
  const std::filesystem::path& path() const { return path_; }
  const FileStamp& stamp() const { return stamp_; }  // at Open
  // Returns the current stamp of the mapped file, even if its path leads to another file now.
  // Errors as in StampOf.
  Result<FileStamp> Now() const;
  // True when a page could not be read and zeros replace it: then results computed from the bytes
  // must not be used. Works only after CatchMappingFaults; otherwise such a read ends the process.
  bool faulted() const { return mapping_ && MappingFaults(*mapping_) > 0; }

 private:
  MappedFile(std::filesystem::path path, int fd) : path_(std::move(path)), file_(fd) {}

  std::filesystem::path path_;
  Descriptor file_;
  FileStamp stamp_;
  const std::byte* data_ = nullptr;
  std::optional<MappingId> mapping_;  // absent for an empty file
};

// Reads a small text file. kInvalidArgument when it has more than max_bytes, kIoError when it
// shrinks meanwhile; other errors as in StampOf.
Result<std::string> ReadTextFile(const std::filesystem::path& path, uint64_t max_bytes);

}  // namespace kvasir
