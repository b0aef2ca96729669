#include "tier/storage.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <memory>
#include <system_error>
#include <thread>

#include "base/clock.h"
#include "base/hex.h"
#include "base/random_bytes.h"

namespace kvasir {
namespace {

constexpr std::string_view kDraftSuffix = ".draft";
constexpr size_t kMaxPieces = 512;  // below IOV_MAX, and few enough for the stack
constexpr std::array<std::byte, 64 * 1024> kZeros{};

int Fd(FileId file) { return static_cast<int>(file); }

// Makes a call again that a signal interrupted.
template <typename Call>
auto Retried(Call&& call) {
  for (;;) {
    const auto result = call();
    if (result >= 0 || errno != EINTR) return result;
  }
}
IoStatus StatusOf(int result) {
  if (result == 0) return {};
  return IoFailed(errno);
}
IoResult<FileId> Opened(int fd) {
  if (fd < 0) return IoFailed(errno);
  return FileId{fd};
}

FileFacts FactsFrom(const struct stat& about) {
  FileFacts facts;
  if (S_ISREG(about.st_mode)) facts.kind = FileFacts::Kind::kFile;
  if (S_ISDIR(about.st_mode)) facts.kind = FileFacts::Kind::kFolder;
  facts.bytes = static_cast<uint64_t>(about.st_size);
  facts.blocks_bytes = static_cast<uint64_t>(about.st_blocks) * 512;
  facts.changed_unix_s = about.st_mtim.tv_sec;
  facts.is_private = (about.st_mode & 022) == 0 && (about.st_uid == geteuid() || about.st_uid == 0);
  return facts;
}

constexpr int kMaxDepth = 16;  // of folders below the root; ours are two deep

// Adds what lies below an open folder; the descriptor is closed by the walk.
IoStatus AddTree(int folder, std::string_view whole_prefix, int depth, TreeFacts* tree) {
  const std::unique_ptr<DIR, int (*)(DIR*)> entries(fdopendir(folder), &closedir);
  if (entries == nullptr) {
    const int error = errno;
    close(folder);
    return IoFailed(error);
  }
  while (const dirent* entry = readdir(entries.get())) {
    const std::string_view name = entry->d_name;
    if (name == "." || name == "..") continue;
    struct stat about;
    if (fstatat(dirfd(entries.get()), entry->d_name, &about, AT_SYMLINK_NOFOLLOW) != 0) {
      if (errno == ENOENT) continue;  // another process removed it
      return IoFailed(errno);
    }
    const FileFacts facts = FactsFrom(about);
    if (name.starts_with(whole_prefix) && facts.kind == FileFacts::Kind::kFile) {
      tree->whole_bytes += std::max(facts.bytes, facts.blocks_bytes);
    } else {
      tree->other_bytes += facts.blocks_bytes;
    }
    if (facts.kind != FileFacts::Kind::kFolder || depth == 0) continue;
    const int inner = openat(dirfd(entries.get()), entry->d_name,
                             O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (inner < 0) continue;  // a foreign folder that may not be read
    if (const IoStatus added = AddTree(inner, whole_prefix, depth - 1, tree); !added) return added;
  }
  return {};
}

// Tells whether it is a local file system whose fdatasync is a promise, by statfs(2)'s numbers.
bool IsDurable(int64_t type) {
  constexpr int64_t kKnown[] = {0xEF53,     0x58465342, 0x9123683E, 0xF2F52010,
                                0x2FC12FC1, 0xCA451A4E, 0x3153464A};  // ext, XFS, Btrfs, F2FS, ZFS,
                                                                      // bcachefs, JFS
  return std::ranges::find(kKnown, type & 0xFFFFFFFF) != std::end(kKnown);
}

// Returns a random name, because servers that share a folder may write the same file at once.
IoResult<std::string> DraftOf(Storage& storage, const std::string& name) {
  std::array<uint8_t, 8> unique;
  if (!storage.FillRandom(unique)) return IoFailed(EIO);
  return "." + name + "." + ToHex(unique) + std::string(kDraftSuffix);
}

}  // namespace

IoStatus ReadAll(Storage& storage, FileId file, std::span<std::byte> bytes, uint64_t offset) {
  std::span<std::byte> one[] = {bytes};
  return ReadAll(storage, file, one, offset);
}

IoStatus ReadAll(Storage& storage, FileId file, std::span<std::span<std::byte>> pieces,
                 uint64_t offset) {
  while (!pieces.empty()) {
    if (pieces.front().empty()) {
      pieces = pieces.subspan(1);
      continue;
    }
    const IoResult<uint64_t> count =
        storage.ReadSome(file, pieces.first(std::min(pieces.size(), kMaxPieces)), offset);
    if (!count && count.error() == EINTR) continue;
    if (!count) return IoFailed(count.error());
    if (*count == 0) return IoFailed(EIO);
    offset += *count;
    uint64_t left = *count;
    while (left > 0) {
      const uint64_t step = std::min<uint64_t>(left, pieces.front().size());
      pieces.front() = pieces.front().subspan(step);
      left -= step;
      if (pieces.front().empty()) pieces = pieces.subspan(1);
    }
  }
  return {};
}

IoStatus WriteAll(Storage& storage, FileId file, std::span<const std::byte> bytes,
                  uint64_t offset) {
  while (!bytes.empty()) {
    const IoResult<uint64_t> count = storage.WriteSome(file, bytes, offset);
    if (!count && count.error() == EINTR) continue;
    if (!count) return IoFailed(count.error());
    if (*count == 0) return IoFailed(EIO);
    offset += *count;
    bytes = bytes.subspan(*count);
  }
  return {};
}

namespace {
IoStatus WriteZeros(Storage& storage, FileId file, uint64_t offset, uint64_t bytes) {
  while (bytes > 0) {
    const uint64_t step = std::min<uint64_t>(bytes, kZeros.size());
    if (const IoStatus done = WriteAll(storage, file, std::span(kZeros).first(step), offset);
        !done) {
      return done;
    }
    offset += step;
    bytes -= step;
  }
  return {};
}
}  // namespace

IoStatus EraseBytes(Storage& storage, FileId file, uint64_t offset, uint64_t bytes) {
  const IoStatus punched = storage.PunchHole(file, offset, bytes);
  if (punched || punched.error() != EOPNOTSUPP) return punched;
  return WriteZeros(storage, file, offset, bytes);
}

IoStatus AllocateBytes(Storage& storage, FileId file, uint64_t bytes) {
  const IoStatus allocated = storage.Allocate(file, bytes);
  if (allocated || allocated.error() != EOPNOTSUPP) return allocated;
  return WriteZeros(storage, file, 0, bytes);
}

IoResult<std::string> ReadSmallFile(Storage& storage, FileId folder, const std::string& name,
                                    uint64_t max_bytes) {
  const IoResult<OpenedFile> file = Own(storage, storage.OpenFile(folder, name, OpenMode::kRead));
  if (!file) return IoFailed(file.error());
  const IoResult<FileFacts> facts = storage.FactsOf(file->id());
  if (!facts) return IoFailed(facts.error());
  if (facts->kind != FileFacts::Kind::kFile) return IoFailed(EINVAL);
  if (facts->bytes > max_bytes) return IoFailed(EFBIG);
  std::string text(facts->bytes, '\0');
  const IoStatus read = ReadAll(storage, file->id(), std::as_writable_bytes(std::span(text)), 0);
  if (!read) return IoFailed(read.error());
  return text;
}

bool IsNoFile(int error) {
  constexpr int kKnown[] = {ELOOP, EISDIR, EINVAL, EFBIG, ENXIO};
  return std::ranges::find(kKnown, error) != std::end(kKnown);
}

IoStatus PublishFile(Storage& storage, FileId folder, const std::string& name,
                     std::string_view bytes, FileSync sync) {
  const IoResult<std::string> unique = DraftOf(storage, name);
  if (!unique) return IoFailed(unique.error());
  const std::string& draft = *unique;
  {
    const IoResult<OpenedFile> file =
        Own(storage, storage.OpenFile(folder, draft, OpenMode::kCreate));
    if (!file) return IoFailed(file.error());
    IoStatus done = WriteAll(storage, file->id(), std::as_bytes(std::span(bytes)), 0);
    if (done && sync == FileSync::kSynced) done = storage.SyncData(file->id());
    if (!done) {
      (void)storage.Unlink(folder, draft);
      return done;
    }
  }
  if (const IoStatus renamed = storage.Rename(folder, draft, name); !renamed) return renamed;
  if (sync == FileSync::kUnsynced) return {};
  return storage.SyncFolder(folder);
}

bool IsTierDraft(std::string_view name) {
  return name.starts_with(".") && name.ends_with(kDraftSuffix);
}

IoResult<FileId> RealStorage::OpenRoot(const std::string& path) {
  constexpr int kFlags = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
  int fd = open(path.c_str(), kFlags);
  if (fd < 0 && errno == ENOENT) {
    std::error_code error;
    const std::filesystem::path parent = std::filesystem::path(path).parent_path();
    if (!parent.empty()) std::filesystem::create_directories(parent, error);
    if (mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) return IoFailed(errno);
    fd = open(path.c_str(), kFlags);
  }
  // For a link the kernel says ENOTDIR here; the caller shall know which it is.
  struct stat about;
  if (fd < 0 && errno == ENOTDIR && lstat(path.c_str(), &about) == 0 && S_ISLNK(about.st_mode)) {
    return IoFailed(ELOOP);
  }
  return Opened(fd);
}

bool RealStorage::IsAt(FileId folder, const std::string& path) {
  struct stat open, named;
  return fstat(Fd(folder), &open) == 0 && stat(path.c_str(), &named) == 0 &&
         open.st_dev == named.st_dev && open.st_ino == named.st_ino;
}

IoResult<FileId> RealStorage::OpenFolder(FileId folder, const std::string& name) {
  return Opened(openat(Fd(folder), name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
}

IoStatus RealStorage::MakeFolder(FileId folder, const std::string& name) {
  return StatusOf(mkdirat(Fd(folder), name.c_str(), 0700));
}

IoResult<FileId> RealStorage::OpenFile(FileId folder, const std::string& name, OpenMode mode) {
  int flags = O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK | (mode == OpenMode::kRead ? O_RDONLY : O_RDWR);
  if (mode == OpenMode::kCreate) flags |= O_CREAT | O_EXCL;
  if (mode == OpenMode::kWriteOrNew) flags |= O_CREAT;
  return Opened(Retried([&] { return openat(Fd(folder), name.c_str(), flags, 0600); }));
}

void RealStorage::Close(FileId file) { close(Fd(file)); }

IoResult<uint64_t> RealStorage::ReadSome(FileId file, std::span<const std::span<std::byte>> pieces,
                                         uint64_t offset) {
  iovec places[kMaxPieces];
  const size_t count = std::min(pieces.size(), kMaxPieces);
  for (size_t i = 0; i < count; ++i) places[i] = {pieces[i].data(), pieces[i].size()};
  const ssize_t n = preadv(Fd(file), places, static_cast<int>(count), static_cast<off_t>(offset));
  if (n < 0) return IoFailed(errno);
  return static_cast<uint64_t>(n);
}

IoResult<uint64_t> RealStorage::WriteSome(FileId file, std::span<const std::byte> bytes,
                                          uint64_t offset) {
  const ssize_t n = pwrite(Fd(file), bytes.data(), bytes.size(), static_cast<off_t>(offset));
  if (n < 0) return IoFailed(errno);
  return static_cast<uint64_t>(n);
}

IoStatus RealStorage::SyncData(FileId file) { return StatusOf(fdatasync(Fd(file))); }
IoStatus RealStorage::SyncFolder(FileId folder) { return StatusOf(fsync(Fd(folder))); }

IoStatus RealStorage::Allocate(FileId file, uint64_t bytes) {
  const int done = Retried([&] { return fallocate(Fd(file), 0, 0, static_cast<off_t>(bytes)); });
  if (done != 0 && errno == ENOSYS) return IoFailed(EOPNOTSUPP);
  return StatusOf(done);
}

IoStatus RealStorage::PunchHole(FileId file, uint64_t offset, uint64_t bytes) {
  const int done = Retried([&] {
    return fallocate(Fd(file), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                     static_cast<off_t>(offset), static_cast<off_t>(bytes));
  });
  if (done != 0 && errno == ENOSYS) return IoFailed(EOPNOTSUPP);
  return StatusOf(done);
}

IoStatus RealStorage::Rename(FileId folder, const std::string& from, const std::string& to) {
  return StatusOf(renameat(Fd(folder), from.c_str(), Fd(folder), to.c_str()));
}
IoStatus RealStorage::Unlink(FileId folder, const std::string& name) {
  return StatusOf(unlinkat(Fd(folder), name.c_str(), 0));
}

IoResult<std::vector<std::string>> RealStorage::List(FileId folder) {
  // A descriptor with a place in the folder that no other caller moves.
  const int fd = openat(Fd(folder), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return IoFailed(errno);
  const std::unique_ptr<DIR, int (*)(DIR*)> entries(fdopendir(fd), &closedir);
  if (entries == nullptr) {
    const int error = errno;
    close(fd);
    return IoFailed(error);
  }
  std::vector<std::string> names;
  errno = 0;
  while (const dirent* entry = readdir(entries.get())) {
    const std::string_view name = entry->d_name;
    if (name != "." && name != "..") names.emplace_back(name);
    errno = 0;
  }
  if (errno != 0) return IoFailed(errno);
  return names;
}

IoResult<FileFacts> RealStorage::FactsOf(FileId file) {
  struct stat about;
  if (fstat(Fd(file), &about) != 0) return IoFailed(errno);
  return FactsFrom(about);
}
IoResult<FileFacts> RealStorage::FactsOf(FileId folder, const std::string& name) {
  struct stat about;
  if (fstatat(Fd(folder), name.c_str(), &about, AT_SYMLINK_NOFOLLOW) != 0) return IoFailed(errno);
  return FactsFrom(about);
}

IoResult<TreeFacts> RealStorage::TreeBytes(FileId folder, std::string_view whole_prefix) {
  const IoResult<FileFacts> facts = FactsOf(folder);
  if (!facts) return IoFailed(facts.error());
  const int fd = openat(Fd(folder), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return IoFailed(errno);
  TreeFacts tree{.other_bytes = facts->blocks_bytes};
  if (const IoStatus added = AddTree(fd, whole_prefix, kMaxDepth, &tree); !added) {
    return IoFailed(added.error());
  }
  return tree;
}

IoResult<SpaceFacts> RealStorage::Space(FileId folder) {
  struct statfs about;
  if (Retried([&] { return fstatfs(Fd(folder), &about); }) != 0) return IoFailed(errno);
  const auto block = static_cast<uint64_t>(about.f_bsize);
  return SpaceFacts{.free_bytes = about.f_bavail * block,
                    .total_bytes = about.f_blocks * block,
                    .is_durable = IsDurable(about.f_type)};
}

IoResult<bool> RealStorage::TryLock(FileId file) {
  if (Retried([&] { return flock(Fd(file), LOCK_EX | LOCK_NB); }) == 0) return true;
  if (errno == EWOULDBLOCK) return false;
  return IoFailed(errno);
}

IoResult<bool> RealStorage::IsLocked(FileId file) {
  if (Retried([&] { return flock(Fd(file), LOCK_SH | LOCK_NB); }) == 0) return false;
  if (errno == EWOULDBLOCK) return true;
  return IoFailed(errno);
}

bool Storage::IsAt(FileId, const std::string&) { return true; }

void Storage::Pause(uint64_t milliseconds) {
  std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
}

int64_t RealStorage::UnixS() { return kvasir::UnixS(); }
uint64_t RealStorage::MonotonicNs() { return kvasir::MonotonicNs(); }
bool RealStorage::FillRandom(std::span<uint8_t> bytes) {
  return kvasir::FillRandom(bytes).has_value();
}

}  // namespace kvasir
