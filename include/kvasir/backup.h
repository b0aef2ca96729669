// Backups: the sessions, stored responses and secret of a server in one file under a passphrase.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "kvasir/status.h"

namespace kvasir {

// Where a server keeps them.
struct BackupPlace {
  std::string folder;                       // DiskOptions::folder
  uint64_t cap_bytes = uint64_t{20} << 30;  // SessionFileOptions::cap_bytes
  std::string secret_path;                  // the file of the secret
};

enum class BackupSecret : uint8_t { kWith, kWithout };

struct BackupFigures {
  uint64_t sessions = 0, responses = 0;
  uint64_t bytes = 0;  // of their texts and ids
  bool has_secret = false;
  int64_t made_s = 0;  // since 1970
  // Counts of rows that do not open, and why the last of them does not.
  uint64_t left_out_sessions = 0, left_out_responses = 0;
  std::string why;
};

// Returns "6 sessions and 2 stored responses" of those that were left out; "": none was.
std::string LeftOutText(const BackupFigures& figures);

// A function, or none, that is called on the same thread after each row: what is done with the rows
// ("reading", "sealing", "checking", "adding"), and with how many of all it is done.
using BackupProgress = std::function<void(std::string_view what, uint64_t done, uint64_t rows)>;

// A shorter passphrase is refused for a new backup.
inline constexpr size_t kLeastPassphraseBytes = 8;

// Writes all that `from` has into a new file (docs/formats/backup.md), 0600. Takes no blocks: they
// are a cache. A server may have them open: then the file has what was durable when this began, and
// nothing by half; for a moment the files lie beside it a second time, in a folder of that name and
// ".rows.XXXXXX". kNotFound: the folder or the secret is missing; kUnavailable: the sessions change
// too often to be copied; kInvalidArgument: there is a file of that name, the passphrase is too
// short, or the secret opens none of the rows; kCorruption: none of them can be read; other errors
// are those of SessionFile. After an error the file does not exist.
Result<BackupFigures> WriteBackup(const BackupPlace& from, const std::string& path,
                                  std::string_view passphrase, BackupSecret secret,
                                  const BackupProgress& progress = {});

// Adds all that the file has, or after an error nothing. Sessions are sealed anew under the secret
// of `to`: that of the file, which is written where `to` has none; with kWithout, and for a file
// without one, that which `to` has, or a new one. kInvalidArgument: not a backup, the passphrase is
// wrong, another secret is there, or one of the sessions is; kCorruption: the file is damaged, cut
// or was changed; kUnavailable: a server has the sessions of `to`; kUnsupported: of a newer
// version; other errors are those of SessionFile.
Result<BackupFigures> RestoreBackup(const std::string& path, const BackupPlace& to,
                                    std::string_view passphrase, BackupSecret secret,
                                    const BackupProgress& progress = {});

}  // namespace kvasir
