#include "base/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <chrono>
#include <thread>

#include "base/clock.h"
#include "base/descriptor.h"
#include "base/system_error.h"

namespace kvasir {
namespace {

tl::unexpected<Error> Failed(const char* what, const std::filesystem::path& path) {
  return FailErrno(errno, "{}: cannot {}", path.string(), what);
}

Result<FileStamp> FromStat(const std::filesystem::path& path, const struct stat& s) {
  if (!S_ISREG(s.st_mode)) {
    return Fail(Code::kInvalidArgument, "{}: is not a regular file", path.string());
  }
  constexpr int64_t kSecondNs = 1'000'000'000;
  return FileStamp{.device = s.st_dev,
                   .inode = s.st_ino,
                   .size_bytes = static_cast<uint64_t>(s.st_size),
                   .mtime_ns = s.st_mtim.tv_sec * kSecondNs + s.st_mtim.tv_nsec,
                   .ctime_ns = s.st_ctim.tv_sec * kSecondNs + s.st_ctim.tv_nsec,
                   .links = s.st_nlink};
}

Result<FileStamp> StampOf(const Descriptor& file, const std::filesystem::path& path) {
  struct stat s;
  if (fstat(file.fd(), &s) != 0) return Failed("open", path);
  return FromStat(path, s);
}

// Opens with O_NONBLOCK: opening a FIFO must not wait for a writer; it has no effect on regular
// files.
int OpenToRead(const std::filesystem::path& path) {
  return open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
}

// Returns how long after the last change another one could still get the same time. Kernels before
// 6.13 stamp files with the time of their last tick, at most 10 ms ago; file systems that count in
// seconds (FAT in 2) have no fraction.
int64_t TickNs(int64_t ctime_ns) {
  return ctime_ns % 1'000'000'000 == 0 ? 2'000'000'000 : 20'000'000;
}

// Returns the stamp after the tick of the file's last change has passed. Gives up waiting for a
// file that is written to all the time.
Result<FileStamp> SettledStamp(const Descriptor& file, const std::filesystem::path& path) {
  constexpr int kMaxWaits = 3;
  for (int waits = 0;; ++waits) {
    KV_ASSIGN(const FileStamp stamp, StampOf(file, path));
    const int64_t age_ns = UnixNs() - stamp.ctime_ns, tick_ns = TickNs(stamp.ctime_ns);
    if (age_ns < 0 || age_ns > tick_ns || waits == kMaxWaits) return stamp;
    std::this_thread::sleep_for(std::chrono::nanoseconds(tick_ns - age_ns + 1'000'000));
  }
}

}  // namespace

Result<bool> Exists(const std::filesystem::path& path) {
  struct stat s;
  if (stat(path.c_str(), &s) == 0) return true;
  if (errno == ENOENT || errno == ENOTDIR) return false;
  return Failed("check", path);
}

Result<FileStamp> StampOf(const std::filesystem::path& path) {
  struct stat s;
  if (stat(path.c_str(), &s) != 0) return Failed("open", path);
  return FromStat(path, s);
}

Result<std::shared_ptr<const MappedFile>> MappedFile::Open(const std::filesystem::path& path) {
  const int fd = OpenToRead(path);
  if (fd < 0) return Failed("open", path);
  const std::shared_ptr<MappedFile> file(new MappedFile(path, fd));
  KV_ASSIGN(file->stamp_, SettledStamp(file->file_, path));
  const uint64_t bytes = file->stamp_.size_bytes;
  if (bytes == 0) return file;
  void* mapped = mmap(nullptr, bytes, PROT_READ, MAP_SHARED, fd, 0);
  if (mapped == MAP_FAILED) return Failed("map", path);
  file->data_ = static_cast<const std::byte*>(mapped);
  file->mapping_ = AddMapping(file->bytes());
  if (!file->mapping_) {
    return Fail(Code::kExhausted, "{}: cannot map the file: too many files are mapped",
                path.string());
  }
  return file;
}

MappedFile::~MappedFile() {
  if (mapping_) RemoveMapping(*mapping_);
  if (data_ != nullptr) munmap(const_cast<std::byte*>(data_), stamp_.size_bytes);
}

Result<FileStamp> MappedFile::Now() const { return StampOf(file_, path_); }

void MappedFile::Drop(std::span<const std::byte> part) const {
  const std::byte* end = data_ + stamp_.size_bytes;
  if (part.empty() || part.data() < data_ || part.data() + part.size() > end) return;
  constexpr uint64_t kPage = 4096;
  const uint64_t begin = static_cast<uint64_t>(part.data() - data_) / kPage * kPage;
  const auto bytes = static_cast<uint64_t>(part.data() + part.size() - data_) - begin;
  madvise(const_cast<std::byte*>(data_ + begin), bytes, MADV_DONTNEED);
}

Result<std::string> ReadTextFile(const std::filesystem::path& path, uint64_t max_bytes) {
  const Descriptor file(OpenToRead(path));
  if (!file) return Failed("open", path);
  KV_ASSIGN(const FileStamp stamp, StampOf(file, path));
  if (stamp.size_bytes > max_bytes) {
    return Fail(Code::kInvalidArgument, "{}: has {} bytes; at most {} are allowed", path.string(),
                stamp.size_bytes, max_bytes);
  }
  std::string text(stamp.size_bytes, '\0');
  for (size_t done = 0; done < text.size();) {
    const ssize_t got =
        pread(file.fd(), text.data() + done, text.size() - done, static_cast<off_t>(done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return Failed("read", path);
    if (got == 0) {
      return Fail(Code::kIoError, "{}: shrank from {} bytes to {} while it was read", path.string(),
                  text.size(), done);
    }
    done += static_cast<size_t>(got);
  }
  return text;
}

}  // namespace kvasir
