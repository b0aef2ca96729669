// kvasir backup and restore: sessions, stored responses and the secret in one sealed file.
#include "kvasir/backup.h"

#include <fmt/format.h>

#include <ctime>
#include <filesystem>
#include <optional>
#include <string_view>

#include "base/result.h"
#include "base/secret.h"
#include "base/user_folders.h"
#include "base/wipe.h"
#include "cli/command.h"
#include "cli/engine_flags.h"
#include "cli/interrupt.h"
#include "cli/passphrase.h"
#include "cli/progress.h"
#include "cli/state_flags.h"
#include "kvasir/disk.h"

namespace kvasir::cli {
namespace {

// A passphrase that is zeroed when it ends.
struct HeldPassphrase {
  ~HeldPassphrase() { Wipe(&text); }
  std::string text;
};

// Returns the file of the secret. `may_be_new`: that of --secret-file need not be there yet.
Result<std::string> SecretPathOf(const Args& args, bool may_be_new) {
  std::error_code error;
  const std::string file = args.Text("secret-file").value_or("");
  if (may_be_new && !file.empty() && !std::filesystem::exists(file, error)) {
    const std::filesystem::path folder = std::filesystem::absolute(file, error).parent_path();
    if (std::filesystem::is_directory(folder, error)) return file;
    return FailField(Code::kInvalidArgument, "secret-file", "there is no folder {}",
                     folder.string());
  }
  KV_ASSIGN(const SecretPlace place, ReadStateFlags(args));
  if (place.file) return *place.file;
  const std::filesystem::path state = StateDir(place.state_dir);
  if (may_be_new && !state.empty()) KV_TRY(CheckSecretFolder(state.string()));  // as serve does
  if (!state.empty()) return (state / "secret").string();
  return Fail(Code::kInvalidArgument, "the state folder is unknown; name it with --state-dir DIR");
}

// Returns where a server with these flags keeps its sessions and its secret.
Result<BackupPlace> PlaceOf(const Args& args, const std::optional<std::string>& word,
                            bool may_be_new) {
  KV_ASSIGN(const std::optional<std::string> place, ReadDiskFolder(args, word));
  if (!place) {
    return Fail(Code::kInvalidArgument, "the cache folder is unknown; name the folder of --disk");
  }
  BackupPlace where{.folder = *place, .secret_path = {}};
  KV_ASSIGN(where.secret_path, SecretPathOf(args, may_be_new));
  KV_ASSIGN(where.cap_bytes, args.Bytes("disk-cap", where.cap_bytes));
  return where;
}

BackupSecret SecretOf(const Args& args) {
  return args.Has("without-secret") ? BackupSecret::kWithout : BackupSecret::kWith;
}

std::string FiguresText(const BackupFigures& figures) {
  return fmt::format("{}, {}, {} of text and ids, {}", CountText(figures.sessions, "session"),
                     CountText(figures.responses, "stored response"), FormatBytes(figures.bytes),
                     figures.has_secret ? "the secret" : "without the secret");
}

// Returns what shows the progress on `line`, which must outlive it.
BackupProgress ShownOn(Progress& line) {
  return [&line](std::string_view what, uint64_t done, uint64_t rows) {
    line.Show(fmt::format("{}: {} of {} sessions and stored responses", what, done, rows));
  };
}

Result<int> RunBackup(const Args& args) {
  ExitOnInterrupt();
  const std::vector<std::string> words = args.List(kOperands);
  const auto to = args.Text("to");
  if (!to || to->empty()) {
    return FailField(Code::kInvalidArgument, "to", "name the file to write: --to FILE");
  }
  std::error_code error;
  const std::filesystem::path folder = std::filesystem::path(*to).parent_path();
  if (!folder.empty() && !std::filesystem::is_directory(folder, error)) {
    return FailField(Code::kInvalidArgument, "to", "there is no folder {}", folder.string());
  }
  KV_ASSIGN(const BackupPlace from,
            PlaceOf(args, words.empty() ? std::nullopt : std::optional(words.front()),
                    /*may_be_new=*/false));
  HeldPassphrase passphrase;
  KV_ASSIGN(passphrase.text, ReadPassphrase(args, Passphrase::kNew));
  Progress progress;
  KV_ASSIGN(const BackupFigures figures,
            WriteBackup(from, *to, passphrase.text, SecretOf(args), ShownOn(progress)));
  progress.Clear();
  fmt::print("{}: {}\n", *to, FiguresText(figures));
  const std::string left_out = LeftOutText(figures);
  if (left_out.empty()) return kExitDone;
  fmt::print(stderr, "kvasir backup: {} left out; the last one: {}\n", left_out, figures.why);
  return kExitFailed;
}

Result<int> RunRestore(const Args& args) {
  ExitOnInterrupt();
  const std::vector<std::string> words = args.List(kOperands);
  if (words.empty()) {
    return Fail(Code::kInvalidArgument, "name the file that 'kvasir backup' wrote");
  }
  KV_ASSIGN(const BackupPlace to, PlaceOf(args, {}, /*may_be_new=*/true));
  HeldPassphrase passphrase;
  KV_ASSIGN(passphrase.text, ReadPassphrase(args, Passphrase::kKnown));
  Progress progress;
  KV_ASSIGN(const BackupFigures figures,
            RestoreBackup(words.front(), to, passphrase.text, SecretOf(args), ShownOn(progress)));
  progress.Clear();
  const auto made = static_cast<std::time_t>(figures.made_s);
  std::tm parts{};
  gmtime_r(&made, &parts);
  char when[32];
  const size_t size = std::strftime(when, sizeof(when), "%Y-%m-%dT%H:%M:%SZ", &parts);
  fmt::print("{}: {}, as of {}\n", to.folder, FiguresText(figures), std::string_view(when, size));
  return kExitDone;
}

std::vector<Flag> BackupFlags() {
  return {
      {"disk", "DIR", "folder of serve --disk (default: kv in the cache folder)"},
      PassphraseFlag(),
      {"disk-cap", "SIZE", "limit of everything in the folder, as serve has it (default 20GiB)"}};
}

}  // namespace

Command BackupCommand() {
  return {"backup",
          "writes sessions, stored responses and the secret into one sealed file",
          "backup --disk kv --to kvasir.backup",
          Join({{{"to", "FILE", "the new file"},
                 {"without-secret", "",
                  "leaves the server's secret out: the sessions then take the secret of where "
                  "they are restored",
                  FlagKind::kSwitch}},
                BackupFlags(),
                StateFlags(),
                CacheDirFlags()}),
          RunBackup,
          "The server may run. Blocks of the cache are not in it: they are computed again.\n",
          1,
          {},
          {},
          "[DIR]"};
}

Command RestoreCommand() {
  return {
      "restore",
      "adds what a backup has: all of it, or nothing",
      "restore kvasir.backup",
      Join({{{"without-secret", "",
              "takes the sessions alone, sealed under the secret that is here", FlagKind::kSwitch}},
            BackupFlags(),
            StateFlags(),
            CacheDirFlags()}),
      RunRestore,
      "It takes the file that 'kvasir backup' wrote. Stop the server first.\n",
      1,
      {},
      {},
      "FILE"};
}

}  // namespace kvasir::cli
