#include "base/secret.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
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

// Fails with kIoError, always: kPermissionDenied would mean that other users know the secret.
tl::unexpected<Error> IoFailure(const char* what, const std::string& path) {
  return Fail(Code::kIoError, "secret: cannot {} {}: {}", what, path, std::strerror(errno));
}

// What to do about a file that has no secret, or one that others know.
struct Advice {
  const char *wrong_kind, *known, *damaged;
};
constexpr Advice kOfServer = {"move it away to make a new secret", "delete it",
                              "restore it, or delete it to make a new one"};
constexpr Advice kOfNamed = {"name another one", "make another one",
                             "restore it, or name another one"};
constexpr const char* kFleetsCopy =
    "copy it from another machine of the fleet, since a new one would begin another fleet";
constexpr Advice kOfFleet = {
    kFleetsCopy, "make a new one with 'kvasir key fleet FILE' for all machines of the fleet",
    kFleetsCopy};

// Absent when the file does not exist.
Result<std::optional<Secret>> Read(const std::string& path, const Advice& advice) {
  const Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (!file) {
    if (errno == ENOENT) return std::optional<Secret>();
    if (errno == ELOOP) return Fail(Code::kCorruption, "secret: {} is a symbolic link", path);
    return IoFailure("open", path);
  }
  struct stat about;
  if (fstat(file.fd(), &about) != 0) return IoFailure("inspect", path);
  if (!S_ISREG(about.st_mode)) {
    return Fail(Code::kCorruption, "secret: {} is {}, not a file; {}", path,
                S_ISDIR(about.st_mode) ? "a folder" : "a pipe or a device", advice.wrong_kind);
  }
  // systemd's credentials belong to root and have mode 0440: an ACL lets the service read them.
  const bool is_credential = (about.st_mode & 077) == 040 && about.st_uid == 0 && about.st_gid == 0;
  if ((about.st_mode & 077) != 0 && !is_credential) {
    return Fail(Code::kPermissionDenied,
                "secret: {} has mode {:04o}, so other users can read it; {}, or chmod 600 it "
                "if no other user has read it",
                path, about.st_mode & 07777, advice.known);
  }
  if (about.st_uid != geteuid() && about.st_uid != 0) {
    return Fail(Code::kPermissionDenied, "secret: {} belongs to user {}, who knows it; {}", path,
                about.st_uid, advice.known);
  }
  Secret secret;
  if (about.st_size != static_cast<off_t>(secret.size())) {
    return Fail(Code::kCorruption, "secret: {} has {} bytes, not {}; {}", path, about.st_size,
                secret.size(), advice.damaged);
  }
  if (read(file.fd(), secret.data(), secret.size()) != static_cast<ssize_t>(secret.size())) {
    return IoFailure("read", path);
  }
  return std::optional(secret);
}

}  // namespace

Status CheckSecretFolder(const std::string& state_dir) {
  struct stat about;
  if (stat(state_dir.c_str(), &about) != 0) return {};  // missing, or Read reports the reason
  const bool others = (about.st_mode & 022) != 0 && (about.st_mode & S_ISVTX) == 0;
  if (others || (about.st_uid != geteuid() && about.st_uid != 0)) {
    return Fail(Code::kPermissionDenied,
                "secret: other users can write to {} (mode {:04o}, user {}); chmod 700 it, or name "
                "another folder with --state-dir or XDG_STATE_HOME",
                state_dir, about.st_mode & 07777, about.st_uid);
  }
  return {};
}

Result<Secret> EphemeralSecret() {
  Secret secret;
  KV_TRY(FillRandom(secret));
  return secret;
}

Result<Secret> ReadSecret(const std::string& path) {
  KV_ASSIGN(const std::optional<Secret> present, Read(path, kOfNamed));
  if (!present) return Fail(Code::kNotFound, "secret: the file {} does not exist", path);
  return *present;
}

Result<Secret> ReadFleetSecret(const std::string& path) {
  KV_ASSIGN(const std::optional<Secret> present, Read(path, kOfFleet));
  if (!present) {
    return Fail(Code::kNotFound,
                "secret: the file {} does not exist; copy it from another machine of the fleet; "
                "'kvasir key fleet FILE' makes one for a new fleet",
                path);
  }
  const uint8_t first = present->front();
  if (std::ranges::all_of(*present, [&](uint8_t byte) { return byte == first; })) {
    return Fail(Code::kCorruption,
                "secret: {} has the byte {:#04x} {} times, so anyone can guess it; {}; 'kvasir key "
                "fleet FILE' makes a secret of random bytes",
                path, first, present->size(), kFleetsCopy);
  }
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
  KV_TRY(CheckSecretFolder(state_dir));
  KV_ASSIGN(const std::optional<Secret> present, Read(path, kOfServer));
  if (present) return *present;

  std::error_code error;
  const bool is_new = !std::filesystem::exists(state_dir, error);
  std::filesystem::create_directories(state_dir, error);
  if (is_new) chmod(state_dir.c_str(), 0700);  // the file itself is 0600 in any case
  KV_TRY(CheckSecretFolder(state_dir));

  KV_ASSIGN(const Secret made, EphemeralSecret());
  const std::string_view bytes(reinterpret_cast<const char*>(made.data()), made.size());
  const Status written = WriteAtomicFile(path, bytes, {.if_present = IfPresent::kKeep});
  if (!written) {
    return Fail(Code::kIoError,
                "secret: {}; name another folder with XDG_STATE_HOME, or with serve --state-dir",
                written.error().message);
  }
  // If another process was first, its secret counts.
  KV_ASSIGN(const std::optional<Secret> created, Read(path, kOfServer));
  if (!created)
    return Fail(Code::kIoError, "secret: {} disappeared while it was being created", path);
  return *created;
}

}  // namespace kvasir
