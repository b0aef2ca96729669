#include "base/secret.h"

#include <fcntl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <optional>
#include <span>

#include "base/check.h"
#include "base/descriptor.h"
#include "base/random_bytes.h"
#include "base/result.h"
#include "base/write_at.h"

namespace kvasir {
namespace {

// Always kIoError: kPermissionDenied would say that others know the secret.
tl::unexpected<Error> IoFailure(const char* what, const std::string& path) {
  return Fail(Code::kIoError, "secret: cannot {} {}: {}", what, path, std::strerror(errno));
}

// Absent: there is no such file.
Result<std::optional<Secret>> Read(const std::string& path) {
  const Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (!file) {
    if (errno == ENOENT) return std::optional<Secret>();
    if (errno == ELOOP) return Fail(Code::kCorruption, "secret: {} is a symbolic link", path);
    return IoFailure("open", path);
  }
  struct stat about;
  if (fstat(file.fd(), &about) != 0) return IoFailure("inspect", path);
  if ((about.st_mode & 077) != 0) {
    return Fail(Code::kPermissionDenied,
                "secret: {} has mode {:04o}, others may read it; if nobody has, chmod 600 it, else "
                "delete it",
                path, about.st_mode & 07777);
  }
  if (about.st_uid != geteuid() && about.st_uid != 0) {
    return Fail(Code::kPermissionDenied, "secret: {} belongs to user {}, who knows it; delete it",
                path, about.st_uid);
  }
  Secret secret;
  if (!S_ISREG(about.st_mode) || about.st_size != static_cast<off_t>(secret.size())) {
    return Fail(Code::kCorruption,
                "secret: {} has {} bytes, not {}; restore it, or delete it to make a new one", path,
                about.st_size, secret.size());
  }
  if (read(file.fd(), secret.data(), secret.size()) != static_cast<ssize_t>(secret.size())) {
    return IoFailure("read", path);
  }
  return std::optional(secret);
}

// Who can write to the folder can put a secret of their own there.
Status CheckFolder(const std::string& state_dir) {
  struct stat about;
  if (stat(state_dir.c_str(), &about) != 0) return {};  // not there, or Read says why
  const bool others = (about.st_mode & 022) != 0 && (about.st_mode & S_ISVTX) == 0;
  if (others || (about.st_uid != geteuid() && about.st_uid != 0)) {
    return Fail(Code::kPermissionDenied,
                "secret: others may write to {} (mode {:04o}, user {}); chmod 700 it, or name "
                "another folder by XDG_STATE_HOME",
                state_dir, about.st_mode & 07777, about.st_uid);
  }
  return {};
}

Status WriteAll(const std::string& path, const Secret& secret) {
  const Descriptor file(open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!file) return IoFailure("create", path);
  if (!WriteAllAt(file.fd(), std::as_bytes(std::span(secret)), 0) || fsync(file.fd()) != 0) {
    return IoFailure("write", path);
  }
  return {};
}

}  // namespace

Result<Secret> EphemeralSecret() {
  Secret secret;
  KV_TRY(FillRandom(secret));
  return secret;
}

Result<Secret> LoadOrCreateSecret(const std::string& state_dir) {
  const std::string path = state_dir + "/secret";
  KV_TRY(CheckFolder(state_dir));
  KV_ASSIGN(const std::optional<Secret> present, Read(path));
  if (present) return *present;

  std::error_code error;
  const bool is_new = !std::filesystem::exists(state_dir, error);
  std::filesystem::create_directories(state_dir, error);
  if (is_new) chmod(state_dir.c_str(), 0700);  // the file itself is 0600 in any case
  KV_TRY(CheckFolder(state_dir));

  KV_ASSIGN(const Secret suffix, EphemeralSecret());
  KV_ASSIGN(const Secret made, EphemeralSecret());
  uint64_t unique;
  std::memcpy(&unique, suffix.data(), sizeof(unique));
  const std::string draft = fmt::format("{}/.secret.{:016x}", state_dir, unique);
  const Status written = WriteAll(draft, made);
  // link, unlike rename, fails if another process was first: then theirs is the secret.
  const bool linked = written && link(draft.c_str(), path.c_str()) == 0;
  const int link_error = errno;
  unlink(draft.c_str());
  if (!written) return tl::unexpected(written.error());
  if (!linked && link_error != EEXIST) {
    errno = link_error;
    return IoFailure("create", path);
  }
  if (const Descriptor folder(open(state_dir.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
      folder) {
    fsync(folder.fd());  // the name survives a power loss, where the file system can promise it
  }
  KV_ASSIGN(const std::optional<Secret> created, Read(path));
  if (!created) return Fail(Code::kIoError, "secret: {} vanished while it was made", path);
  return *created;
}

}  // namespace kvasir
