// Storage: the one way in which the disk tier reaches files, locks, free space, time and random
// numbers, so that a test can simulate all of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <utility>
#include <vector>

namespace kvasir {

// A value, or the errno of the call that failed.
template <typename T>
using IoResult = tl::expected<T, int>;
using IoStatus = tl::expected<void, int>;
inline tl::unexpected<int> IoFailed(int error) { return tl::unexpected(error); }

// An open file or folder.
enum class FileId : int {};

enum class OpenMode : uint8_t {
  kRead,
  kWrite,       // and read
  kCreate,      // to write and read; 0600; EEXIST when the name is taken
  kWriteOrNew,  // to write and read; created, 0600, when it is missing
};

// What a folder or file is.
struct FileFacts {
  enum class Kind : uint8_t { kFile, kFolder, kOther };
  Kind kind = Kind::kOther;
  uint64_t bytes = 0;          // its length
  uint64_t blocks_bytes = 0;   // what it takes of the disk
  int64_t changed_unix_s = 0;  // when its bytes were last written
  bool is_private = false;     // ours or root's, and no other user may write to it
};

struct TreeFacts {
  uint64_t whole_bytes = 0, other_bytes = 0;
};

struct SpaceFacts {
  uint64_t free_bytes = 0, total_bytes = 0;
  bool is_durable = false;  // a local file system that is known to keep what was synced
};

// Names are single names inside an open folder; a symbolic link is never followed (ELOOP). Calls
// continue after EINTR and short writes where it says so. Thread-safe for different files.
class Storage {
 public:
  virtual ~Storage() = default;

  // Opens the folder of this path; created, 0700, with its parents where it is missing.
  virtual IoResult<FileId> OpenRoot(const std::string& path) = 0;
  // Returns whether the path still leads to this open folder.
  virtual bool IsAt(FileId folder, const std::string& path);
  virtual IoResult<FileId> OpenFolder(FileId folder, const std::string& name) = 0;
  virtual IoStatus MakeFolder(FileId folder, const std::string& name) = 0;  // 0700
  virtual IoResult<FileId> OpenFile(FileId folder, const std::string& name, OpenMode mode) = 0;
  virtual void Close(FileId file) = 0;

  // Returns the bytes that one call read or wrote; they may be fewer than asked for. 0: the file's
  // end.
  virtual IoResult<uint64_t> ReadSome(FileId file, std::span<const std::span<std::byte>> pieces,
                                      uint64_t offset) = 0;
  virtual IoResult<uint64_t> WriteSome(FileId file, std::span<const std::byte> bytes,
                                       uint64_t offset) = 0;
  virtual IoStatus SyncData(FileId file) = 0;      // bytes and length
  virtual IoStatus SyncFolder(FileId folder) = 0;  // names
  // Gives [0, bytes) room on the disk; the bytes are zeros. EOPNOTSUPP: not known here.
  virtual IoStatus Allocate(FileId file, uint64_t bytes) = 0;
  // Makes the bytes zeros and gives their room back. EOPNOTSUPP: not known here.
  virtual IoStatus PunchHole(FileId file, uint64_t offset, uint64_t bytes) = 0;

  virtual IoStatus Rename(FileId folder, const std::string& from, const std::string& to) = 0;
  virtual IoStatus Unlink(FileId folder, const std::string& name) = 0;
  // Lists the names, in no order, without "." and "..".
  virtual IoResult<std::vector<std::string>> List(FileId folder) = 0;
  virtual IoResult<FileFacts> FactsOf(FileId file) = 0;
  virtual IoResult<FileFacts> FactsOf(FileId folder, const std::string& name) = 0;
  // Returns what the folder and everything below it take of the disk. Files whose names begin with
  // `whole_prefix` count apart and with their whole length, holes included, since these are filled
  // again.
  virtual IoResult<TreeFacts> TreeBytes(FileId folder, std::string_view whole_prefix) = 0;
  virtual IoResult<SpaceFacts> Space(FileId folder) = 0;

  // Tries to lock the file. False: another process has the lock. It ends when the file is closed.
  virtual IoResult<bool> TryLock(FileId file) = 0;
  // Returns whether another process has the lock. Others who only look do not see this one; who
  // takes the lock at the same moment may be refused, until `file` is closed.
  virtual IoResult<bool> IsLocked(FileId file) {
    const IoResult<bool> locked = TryLock(file);
    if (!locked) return locked;
    return !*locked;
  }
  virtual void Pause(uint64_t milliseconds);

  virtual int64_t UnixS() = 0;
  virtual uint64_t MonotonicNs() = 0;
  virtual bool FillRandom(std::span<uint8_t> bytes) = 0;  // false: the system refuses
};

// Owns an open file or folder, or nothing. Move-only.
class OpenedFile {
 public:
  OpenedFile() = default;
  OpenedFile(Storage& storage, FileId id) : storage_(&storage), id_(id) {}
  OpenedFile(OpenedFile&& other) noexcept
      : storage_(std::exchange(other.storage_, nullptr)), id_(other.id_) {}
  OpenedFile& operator=(OpenedFile&& other) noexcept {
    std::swap(storage_, other.storage_);
    std::swap(id_, other.id_);
    return *this;
  }
  ~OpenedFile() { Close(); }

  explicit operator bool() const { return storage_ != nullptr; }
  FileId id() const { return id_; }
  void Close() {
    if (storage_ != nullptr) std::exchange(storage_, nullptr)->Close(id_);
  }

 private:
  Storage* storage_ = nullptr;
  FileId id_{};
};

inline IoResult<OpenedFile> Own(Storage& storage, IoResult<FileId> opened) {
  if (!opened) return IoFailed(opened.error());
  return OpenedFile(storage, *opened);
}

// Reads exactly these bytes. EIO where the file ends before them.
IoStatus ReadAll(Storage& storage, FileId file, std::span<std::byte> bytes, uint64_t offset);
// Reads into several pieces, one after the other.
IoStatus ReadAll(Storage& storage, FileId file, std::span<std::span<std::byte>> pieces,
                 uint64_t offset);
IoStatus WriteAll(Storage& storage, FileId file, std::span<const std::byte> bytes, uint64_t offset);
// Zeros these bytes, by PunchHole where it is known, else written.
IoStatus EraseBytes(Storage& storage, FileId file, uint64_t offset, uint64_t bytes);
// Makes room for `bytes`, by Allocate where it is known, else zeros are written.
IoStatus AllocateBytes(Storage& storage, FileId file, uint64_t bytes);
// Reads a whole small file, of at most `max_bytes` (EFBIG).
IoResult<std::string> ReadSmallFile(Storage& storage, FileId folder, const std::string& name,
                                    uint64_t max_bytes);
// Returns whether opening or reading a file failed because something of another kind has its name.
bool IsNoFile(int error);
enum class FileSync : uint8_t { kSynced, kUnsynced };
// Writes a file that gets its name when it is complete: draft, sync, rename, sync of the folder.
IoStatus PublishFile(Storage& storage, FileId folder, const std::string& name,
                     std::string_view bytes, FileSync sync);
// Returns whether a file of this name is a draft of PublishFile that a crash may have left.
bool IsTierDraft(std::string_view name);

// The machine's files. Thread-safe.
class RealStorage : public Storage {
 public:
  IoResult<FileId> OpenRoot(const std::string& path) override;
  bool IsAt(FileId folder, const std::string& path) override;
  IoResult<FileId> OpenFolder(FileId folder, const std::string& name) override;
  IoStatus MakeFolder(FileId folder, const std::string& name) override;
  IoResult<FileId> OpenFile(FileId folder, const std::string& name, OpenMode mode) override;
  void Close(FileId file) override;
  IoResult<uint64_t> ReadSome(FileId file, std::span<const std::span<std::byte>> pieces,
                              uint64_t offset) override;
  IoResult<uint64_t> WriteSome(FileId file, std::span<const std::byte> bytes,
                               uint64_t offset) override;
  IoStatus SyncData(FileId file) override;
  IoStatus SyncFolder(FileId folder) override;
  IoStatus Allocate(FileId file, uint64_t bytes) override;
  IoStatus PunchHole(FileId file, uint64_t offset, uint64_t bytes) override;
  IoStatus Rename(FileId folder, const std::string& from, const std::string& to) override;
  IoStatus Unlink(FileId folder, const std::string& name) override;
  IoResult<std::vector<std::string>> List(FileId folder) override;
  IoResult<FileFacts> FactsOf(FileId file) override;
  IoResult<FileFacts> FactsOf(FileId folder, const std::string& name) override;
  IoResult<TreeFacts> TreeBytes(FileId folder, std::string_view whole_prefix) override;
  IoResult<SpaceFacts> Space(FileId folder) override;
  IoResult<bool> TryLock(FileId file) override;
  IoResult<bool> IsLocked(FileId file) override;
  int64_t UnixS() override;
  uint64_t MonotonicNs() override;
  bool FillRandom(std::span<uint8_t> bytes) override;
};

}  // namespace kvasir
