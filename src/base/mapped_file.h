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

// What tells one state of a file from another without reading it.
struct FileStamp {
  uint64_t device = 0, inode = 0, size_bytes = 0;
  int64_t mtime_ns = 0, ctime_ns = 0;
  uint64_t links = 0;  // names that lead to it
  bool operator==(const FileStamp&) const = default;
};

// kInvalidArgument where it is no regular file; else as CodeOfErrno has it.
// Whether there is something at `path`. An error: the system does not say, so that a file that
// cannot be looked at is not taken for one that is absent.
Result<bool> Exists(const std::filesystem::path& path);

Result<FileStamp> StampOf(const std::filesystem::path& path);

// Owns one mapping, unmapped by the destructor. The size is fixed at Open. The bytes stay what they
// were when the file is replaced by renaming another one over it, or removed; they change when it
// is written to in place, and a read of what was cut off raises SIGBUS (base/mapping_faults.h):
// Now() and faulted() tell. Immutable; thread-safe.
class MappedFile {
 public:
  // Errors as StampOf; kExhausted when too many files are mapped. An empty file is an empty span.
  // Every later write moves the stamp: where the file was written within the last tick of the file
  // system's clock, this waits for the next (20 ms; 2 s where it counts in seconds).
  static Result<std::shared_ptr<const MappedFile>> Open(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  // Lets go of the pages that `part` touches: they are read again when they are needed. Bytes that
  // are not of this file are left alone.
  void Drop(std::span<const std::byte> part) const;

  std::span<const std::byte> bytes() const { return {data_, stamp_.size_bytes}; }
  const std::filesystem::path& path() const { return path_; }
  const FileStamp& stamp() const { return stamp_; }  // when it was opened
  // The stamp of the file that is mapped, whatever its path leads to now. Errors as StampOf.
  Result<FileStamp> Now() const;
  // A page could not be read and zeros are in its place: nothing that was computed from the bytes
  // is to be used. Only where CatchMappingFaults was called; else the process has ended.
  bool faulted() const { return mapping_ && MappingFaults(*mapping_) > 0; }

 private:
  MappedFile(std::filesystem::path path, int fd) : path_(std::move(path)), file_(fd) {}

  std::filesystem::path path_;
  Descriptor file_;
  FileStamp stamp_;
  const std::byte* data_ = nullptr;
  std::optional<MappingId> mapping_;  // absent for an empty file
};

// The whole of a small text file. kInvalidArgument beyond max_bytes, kIoError when it is cut
// shorter meanwhile; else as StampOf.
Result<std::string> ReadTextFile(const std::filesystem::path& path, uint64_t max_bytes);

}  // namespace kvasir
