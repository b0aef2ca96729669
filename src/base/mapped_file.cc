#include "base/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>

#include "base/descriptor.h"
#include "base/system_error.h"

namespace kvasir {
namespace {

tl::unexpected<Error> Failed(const char* what, const std::filesystem::path& path) {
  return FailErrno(errno, "{}: cannot {}", path.string(), what);
}

Result<FileStamp> FromStat(const std::filesystem::path& path, const struct stat& s) {
  if (!S_ISREG(s.st_mode)) {
    return Fail(Code::kInvalidArgument, "{}: is no regular file", path.string());
  }
  constexpr int64_t kSecondNs = 1'000'000'000;
  return FileStamp{.device = s.st_dev,
                   .inode = s.st_ino,
                   .size_bytes = static_cast<uint64_t>(s.st_size),
                   .mtime_ns = s.st_mtim.tv_sec * kSecondNs + s.st_mtim.tv_nsec,
                   .ctime_ns = s.st_ctim.tv_sec * kSecondNs + s.st_ctim.tv_nsec};
}

}  // namespace

Result<FileStamp> StampOf(const std::filesystem::path& path) {
  struct stat s;
  if (stat(path.c_str(), &s) != 0) return Failed("open", path);
  return FromStat(path, s);
}

Result<std::shared_ptr<const MappedFile>> MappedFile::Open(const std::filesystem::path& path) {
  // O_NONBLOCK: opening a FIFO must not wait for a writer; it means nothing for regular files.
  const Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file) return Failed("open", path);
  struct stat s;
  if (fstat(file.fd(), &s) != 0) return Failed("open", path);
  KV_ASSIGN(const FileStamp stamp, FromStat(path, s));
  const std::byte* data = nullptr;
  if (stamp.size_bytes > 0) {
    void* mapped = mmap(nullptr, stamp.size_bytes, PROT_READ, MAP_SHARED, file.fd(), 0);
    if (mapped == MAP_FAILED) return Failed("map", path);
    data = static_cast<const std::byte*>(mapped);
  }
  return std::shared_ptr<const MappedFile>(new MappedFile(path, stamp, data));
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) munmap(const_cast<std::byte*>(data_), stamp_.size_bytes);
}

void MappedFile::Drop(std::span<const std::byte> part) const {
  const std::byte* end = data_ + stamp_.size_bytes;
  if (part.empty() || part.data() < data_ || part.data() + part.size() > end) return;
  constexpr uint64_t kPage = 4096;
  const uint64_t begin = static_cast<uint64_t>(part.data() - data_) / kPage * kPage;
  const auto bytes = static_cast<uint64_t>(part.data() + part.size() - data_) - begin;
  madvise(const_cast<std::byte*>(data_ + begin), bytes, MADV_DONTNEED);
}

Result<std::string> ReadTextFile(const std::filesystem::path& path, uint64_t max_bytes) {
  KV_ASSIGN(const auto file, MappedFile::Open(path));
  const auto bytes = file->bytes();
  if (bytes.size() > max_bytes) {
    return Fail(Code::kInvalidArgument, "{}: {} bytes, at most {} are read", path.string(),
                bytes.size(), max_bytes);
  }
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

}  // namespace kvasir
