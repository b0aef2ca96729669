#include "base/secret.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <optional>
#include <string_view>

#include "base/atomic_file.h"
#include "base/descriptor.h"
#include "base/random_bytes.h"
#include "base/result.h"

namespace kvasir {
namespace {

// Always kIoError: kPermissionDenied would mean that other users know the secret.
tl::unexpected<Error> IoFailure(const char* what, const std::string& path) {
  return Fail(Code::kIoError, "secret: cannot {} {}: {}", what, path, std::strerror(errno));
}

// Absent when the file does not exist.
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
    return Fail(
        Code::kPermissionDenied,
        "secret: {} has mode {:04o}, so other users can read it; delete it, or chmod 600 it "
        "if no other user has read it",
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

// Users who can write to the folder could replace the secret.
Status CheckFolder(const std::string& state_dir) {
  struct stat about;
  if (stat(state_dir.c_str(), &about) != 0) return {};  // missing, or Read reports the reason
  const bool others = (about.st_mode & 022) != 0 && (about.st_mode & S_ISVTX) == 0;
  if (others || (about.st_uid != geteuid() && about.st_uid != 0)) {
    return Fail(Code::kPermissionDenied,
                "secret: other users can write to {} (mode {:04o}, user {}); chmod 700 it, or set "
                "XDG_STATE_HOME to another folder",
                state_dir, about.st_mode & 07777, about.st_uid);
  }
  return {};
}

}  // namespace

Result<Secret> EphemeralSecret() {
  Secret secret;
  KV_TRY(FillRandom(secret));
  return secret;
}

Result<Secret> ReadSecret(const std::string& path) {
  KV_ASSIGN(const std::optional<Secret> present, Read(path));
  if (!present) return Fail(Code::kNotFound, "secret: the file {} does not exist", path);
  return *present;
}

Status MakeSecret(const std::string& path) {
  std::error_code error;
  if (std::filesystem::exists(path, error)) {
    return Fail(Code::kInvalidArgument, "{} is there already; a secret that is replaced is lost",
                path);
  }
  KV_ASSIGN(const Secret made, EphemeralSecret());
  const std::string_view bytes(reinterpret_cast<const char*>(made.data()), made.size());
  const Status written = WriteAtomicFile(path, bytes, {.if_present = IfPresent::kKeep});
  if (!written) return Fail(Code::kIoError, "secret: {}", written.error().message);
  return {};
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

  KV_ASSIGN(const Secret made, EphemeralSecret());
  const std::string_view bytes(reinterpret_cast<const char*>(made.data()), made.size());
  const Status written = WriteAtomicFile(path, bytes, {.if_present = IfPresent::kKeep});
  if (!written) return Fail(Code::kIoError, "secret: {}", written.error().message);
  // If another process was first, its secret counts.
  KV_ASSIGN(const std::optional<Secret> created, Read(path));
  if (!created)
    return Fail(Code::kIoError, "secret: {} disappeared while it was being created", path);
  return *created;
}

}  // namespace kvasir
