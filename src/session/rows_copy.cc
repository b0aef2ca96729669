// The log of SQLite makes the copy whole: what sessions.db has by half of a checkpoint, the log has
// too. So both must be of the same time. Who stores rows holds the folder's lock, and so does the
// copy. Who erases holds no lock: the copy is made again if a file was written meanwhile.
#include "session/rows_copy.h"

#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <span>
#include <system_error>
#include <vector>

#include "base/result.h"
#include "base/system_error.h"
#include "tier/set_aside.h"
#include "tier/store_files.h"

namespace kvasir {
namespace {

namespace fs = std::filesystem;

constexpr size_t kPieceBytes = 1 << 20;
constexpr uint64_t kTriesNs = 10'000'000'000, kPauseMs = 5;
// Longer than a tick of the clock that stamps files: a later write has a later stamp.
constexpr uint64_t kTickMs = 20;
constexpr std::array<const char*, 2> kSuffixes = {"", "-wal"};

// When a file was written, and its length; zeros: it is missing.
struct Stamp {
  bool operator==(const Stamp&) const = default;
  fs::file_time_type written{};
  uint64_t bytes = 0;
};
using Stamps = std::array<Stamp, kSuffixes.size()>;

std::string NameOf(const char* suffix) { return std::string(kRowsName) + suffix; }

Stamps StampsOf(const fs::path& folder) {
  Stamps stamps;
  for (size_t i = 0; i < stamps.size(); ++i) {
    std::error_code error;
    const fs::path path = folder / NameOf(kSuffixes[i]);
    const auto written = fs::last_write_time(path, error);
    if (!error) stamps[i] = {.written = written, .bytes = fs::file_size(path, error)};
  }
  return stamps;
}

// Copies a file to its end, which another process may move meanwhile. One that is missing has
// nothing to copy.
Status CopyFile(Storage& storage, FileId from, FileId to, const std::string& name) {
  const auto in = Own(storage, storage.OpenFile(from, name, OpenMode::kRead));
  if (!in && in.error() == ENOENT) return {};
  if (!in) return FailErrno(in.error(), "cannot open {}", name);
  const auto out = Own(storage, storage.OpenFile(to, name, OpenMode::kCreate));
  if (!out) return FailErrno(out.error(), "cannot make the copy of {}", name);
  std::vector<std::byte> bytes(kPieceBytes);
  const std::span<std::byte> piece(bytes);
  for (uint64_t at = 0;;) {
    const IoResult<uint64_t> read = storage.ReadSome(in->id(), {&piece, 1}, at);
    if (!read) return FailErrno(read.error(), "cannot read {}", name);
    if (*read == 0) return {};
    const IoStatus written = WriteAll(storage, out->id(), piece.first(*read), at);
    if (!written) return FailErrno(written.error(), "cannot write the copy of {}", name);
    at += *read;
  }
}

// Copies the keys first: an owner who is erased meanwhile then has a key and rows, or neither.
Status CopyFiles(Storage& storage, FileId from, const fs::path& folder) {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {  // of a try before
    fs::remove_all(entry.path(), error);
  }
  const std::string keys(kRowsKeysName);
  const auto to = Own(storage, storage.OpenRoot(folder));
  if (!to) return FailErrno(to.error(), "cannot open {}", folder.string());
  const auto to_keys = OpenOrMake(storage, to->id(), keys);
  if (!to_keys) return FailErrno(to_keys.error(), "cannot make {}/{}", folder.string(), keys);
  const auto from_keys = OpenOrMake(storage, from, keys);
  if (!from_keys) return FailErrno(from_keys.error(), "cannot open {}", keys);
  const IoResult<std::vector<std::string>> names = storage.List(from_keys->id());
  if (!names) return FailErrno(names.error(), "cannot list {}", keys);
  for (const std::string& name : *names) {
    KV_TRY(CopyFile(storage, from_keys->id(), to_keys->id(), name));
  }
  for (const char* suffix : kSuffixes) {
    KV_TRY(CopyFile(storage, from, to->id(), NameOf(suffix)));
  }
  return {};
}

}  // namespace

Result<RowsCopy> RowsCopy::Make(const std::string& from, const std::string& beside,
                                Storage& storage) {
  const auto root = Own(storage, storage.OpenRoot(from));
  if (!root) return FailErrno(root.error(), "cannot open {}", from);
  std::string folder = beside + ".XXXXXX";
  if (mkdtemp(folder.data()) == nullptr) {
    return FailErrno(errno, "cannot make a folder like {}", folder);
  }
  RowsCopy copy(std::move(folder));
  const uint64_t end_ns = storage.MonotonicNs() + kTriesNs;
  while (storage.MonotonicNs() < end_ns) {
    {
      const IoResult<OpenedFile> lock = LockTierFolder(storage, root->id());
      if (!lock && lock.error() != EWOULDBLOCK)
        return FailErrno(lock.error(), "cannot lock {}", from);
      const Stamps before = StampsOf(from);
      if (lock) storage.Pause(kTickMs);
      if (lock && StampsOf(from) == before) {
        KV_TRY(CopyFiles(storage, root->id(), copy.folder()));
        if (StampsOf(from) == before) return copy;
      }
    }
    storage.Pause(kPauseMs);  // without the lock: others store meanwhile
  }
  return Fail(Code::kUnavailable, "the sessions in {} change too often to be copied; try again",
              from);
}

RowsCopy::~RowsCopy() {
  std::error_code error;
  if (!folder_.empty()) fs::remove_all(folder_, error);
}

}  // namespace kvasir
