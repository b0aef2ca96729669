#include "base/atomic_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <system_error>
#include <utility>

#include "base/check.h"
#include "base/random_bytes.h"
#include "base/system_error.h"

namespace kvasir {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = ".kvasir-", kSuffix = ".draft";

fs::path FolderOf(const fs::path& path) {
  return path.has_parent_path() ? path.parent_path() : fs::path(".");
}

// Syncs the folder of a file. That already has its name, so an error is ignored.
void SyncFolderOf(const fs::path& path) {
  const Descriptor folder(open(FolderOf(path).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (folder) fsync(folder.fd());
}

}  // namespace

AtomicFile::AtomicFile(fs::path path, fs::path draft, int fd, const AtomicFileOptions& options)
    : path_(std::move(path)), draft_(std::move(draft)), options_(options), file_(fd) {}

Result<std::unique_ptr<AtomicFile>> AtomicFile::Create(fs::path path,
                                                       const AtomicFileOptions& options) {
  std::error_code unknown;  // then the system says below what is wrong
  if (fs::exists(path, unknown) && !fs::is_regular_file(path, unknown)) {
    return Fail(Code::kInvalidArgument, "cannot write {}: not a regular file", path.string());
  }
  // Random, because process ids are not unique where containers share a folder.
  std::array<uint8_t, 8> unique;
  KV_TRY(FillRandom(unique));
  std::string name(kPrefix);
  for (const uint8_t byte : unique) name += fmt::format("{:02x}", byte);
  fs::path draft = FolderOf(path) / name.append(kSuffix);
  const mode_t mode = options.readers == Readers::kOwner ? 0600 : 0666;
  const int fd = open(draft.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
  if (fd < 0) return FailErrno(errno, "cannot write {}", path.string());
  flock(fd, LOCK_EX | LOCK_NB);  // without the lock, cleanups spare the draft only while it is new
  return std::unique_ptr<AtomicFile>(
      new AtomicFile(std::move(path), std::move(draft), fd, options));
}

AtomicFile::~AtomicFile() {
  if (has_draft_) unlink(draft_.c_str());
}

tl::unexpected<Error> AtomicFile::Failed(std::string_view what, int error) const {
  return FailErrno(error, "cannot {} {}", what, path_.string());
}

Status AtomicFile::Resize(uint64_t bytes) {
  if (ftruncate(file_.fd(), static_cast<off_t>(bytes)) == 0) return {};
  return Failed("write", errno);
}

Status AtomicFile::WriteAt(std::span<const std::byte> bytes, uint64_t offset) {
  if (WriteAllAt(file_.fd(), bytes, offset)) return {};
  return Failed("write", errno);
}

Status AtomicFile::Publish() {
  KV_CHECK(has_draft_);
  const bool synced = options_.durability == Durability::kSynced;
  if (synced && fsync(file_.fd()) != 0) return Failed("write", errno);
  if (options_.if_present == IfPresent::kReplace) {
    if (rename(draft_.c_str(), path_.c_str()) != 0) return Failed("replace", errno);
    has_draft_ = false;
  } else if (link(draft_.c_str(), path_.c_str()) != 0 && errno != EEXIST) {
    return Failed("create", errno);
  }
  if (synced) SyncFolderOf(path_);
  return {};
}

Status PublishDraft(int fd, const fs::path& draft, const fs::path& path) {
  if (fsync(fd) != 0) return FailErrno(errno, "cannot write {}", draft.string());
  if (rename(draft.c_str(), path.c_str()) != 0) {
    return FailErrno(errno, "cannot replace {}", path.string());
  }
  SyncFolderOf(path);
  return {};
}

Status WriteAtomicFile(const fs::path& path, std::string_view bytes,
                       const AtomicFileOptions& options) {
  KV_ASSIGN(const std::unique_ptr<AtomicFile> file, AtomicFile::Create(path, options));
  KV_TRY(file->WriteAt(std::as_bytes(std::span(bytes)), 0));
  return file->Publish();
}

bool WriteAllAt(int fd, std::span<const std::byte> bytes, uint64_t offset) {
  while (!bytes.empty()) {
    const ssize_t n = pwrite(fd, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n == 0) errno = EIO;  // no file does that
    if (n <= 0) return false;
    offset += static_cast<uint64_t>(n);
    bytes = bytes.subspan(static_cast<size_t>(n));
  }
  return true;
}

bool IsDraftName(std::string_view name) {
  return name.starts_with(kPrefix) && name.ends_with(kSuffix);
}

}  // namespace kvasir
