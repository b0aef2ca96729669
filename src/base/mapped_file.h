// MappedFile: a file's bytes, mapped read-only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>

#include "kvasir/status.h"

namespace kvasir {

// What tells one state of a file from another without reading it.
struct FileStamp {
  uint64_t device = 0, inode = 0, size_bytes = 0;
  int64_t mtime_ns = 0, ctime_ns = 0;
  bool operator==(const FileStamp&) const = default;
};

// kInvalidArgument where it is no regular file; else as CodeOfErrno has it.
Result<FileStamp> StampOf(const std::filesystem::path& path);

// Owns one mapping, unmapped by the destructor. The size is fixed at Open: a file that another
// process cuts shorter later raises SIGBUS when the lost pages are read, which is out of scope for
// weights (replace a model by renaming a new file over it, never in place). Immutable;
// thread-safe.
class MappedFile {
 public:
  // Errors as StampOf. An empty file is an empty span.
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

 private:
  MappedFile(std::filesystem::path path, FileStamp stamp, const std::byte* data)
      : path_(std::move(path)), stamp_(stamp), data_(data) {}

  std::filesystem::path path_;
  FileStamp stamp_;
  const std::byte* data_;
};

// The whole of a small text file. kInvalidArgument beyond max_bytes; else as StampOf.
Result<std::string> ReadTextFile(const std::filesystem::path& path, uint64_t max_bytes);

}  // namespace kvasir
