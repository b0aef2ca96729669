// Backups: what lines a file of them has (docs/formats/backup.md), and where they come from and go.
#include "kvasir/backup.h"

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/hex.h"
#include "base/result.h"
#include "base/secret.h"
#include "base/sizes.h"
#include "base/wipe.h"
#include "kvasir/session_file.h"
#include "session/rows_copy.h"
#include "session/sealed_rows.h"
#include "session/sealed_stream.h"

namespace kvasir {
namespace {

constexpr uint64_t kBackupVersion = 1;  // never renumber

// A line; zeroed when it ends.
struct BackupLine {
  ~BackupLine() { Wipe(&text); }
  std::string text;
};

void CountRow(std::string_view id, uint64_t bytes, BackupFigures* figures) {
  ++(KindOfId(id) == SessionKind::kResponse ? figures->responses : figures->sessions);
  figures->bytes += bytes;
}

// The first line.
struct BackupManifest {
  uint64_t rows = 0, bytes = 0;
  int64_t made_s = 0;  // since 1970
  std::optional<Secret> secret;
};

std::string ToLine(const BackupManifest& manifest) {
  nlohmann::ordered_json json = {{"kvasir_backup", kBackupVersion},
                                 {"made", manifest.made_s},
                                 {"rows", manifest.rows},
                                 {"bytes", manifest.bytes}};
  if (manifest.secret) json["secret"] = ToHex(*manifest.secret);
  return json.dump();
}

Result<BackupManifest> ManifestOf(const std::string& line, const std::string& path) {
  const auto json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  const auto number = [&](const char* name) -> std::optional<uint64_t> {
    const auto found = json.is_object() ? json.find(name) : json.end();
    if (!json.is_object() || found == json.end() || !found->is_number_unsigned()) return {};
    return found->get<uint64_t>();
  };
  const auto version = number("kvasir_backup"), rows = number("rows"), bytes = number("bytes");
  const auto made = number("made");
  if (!version || !rows || !bytes || !made || *rows > uint64_t{1} << 32 ||
      *bytes > uint64_t{1} << 48) {
    return Fail(Code::kCorruption, "{} makes no sense: its first line is not that of a backup",
                path);
  }
  if (*version != kBackupVersion) {
    return Fail(Code::kUnsupported, "{} has contents of version {}; this Kvasir reads version {}",
                path, *version, kBackupVersion);
  }
  BackupManifest manifest{.rows = *rows, .bytes = *bytes, .made_s = static_cast<int64_t>(*made)};
  const auto secret = json.find("secret");
  if (secret == json.end()) return manifest;
  manifest.secret = secret->is_string()
                        ? FromHex<sizeof(Secret)>(secret->get<std::string>(), HexCase::kLower)
                        : std::nullopt;
  if (!manifest.secret) return Fail(Code::kCorruption, "{} has a secret of another size", path);
  return manifest;
}

// Tells whether a restore would take the row: it can be unsealed, and is a session of this version.
Status Check(SealedRows& open, const RowFacts& row, const std::string& secret_path) {
  if (row.owner == Digest{}) {
    return Fail(Code::kInvalidArgument,
                "not sealed under the secret in {}; --secret-file or --state-dir names another one",
                secret_path);
  }
  KV_ASSIGN(std::vector<std::byte> plain, open.Get(row.owner, row.id));
  SessionStore store(SessionLimits{.memory_bytes = UINT64_MAX});
  const auto record = ParseSessionRecord(
      store, std::string_view(reinterpret_cast<const char*>(plain.data()), plain.size()));
  Wipe(&plain);
  if (!record) return tl::unexpected(record.error());
  return {};
}

// Returns the rows that a restore would take. The others are counted in `figures`. An error where
// none is left of those that are there.
Result<std::vector<RowFacts>> SoundRows(SealedRows& open, const BackupPlace& from,
                                        const BackupProgress& progress, BackupFigures* figures) {
  KV_ASSIGN(std::vector<RowFacts> rows, open.List());
  const uint64_t all = rows.size();
  uint64_t done = 0;
  Code code = Code::kInvalidArgument;
  std::erase_if(rows, [&](const RowFacts& row) {
    if (progress) progress("reading", ++done, all);
    const Status sound = Check(open, row, from.secret_path);
    if (sound) return false;
    ++(KindOfId(row.id) == SessionKind::kResponse ? figures->left_out_responses
                                                  : figures->left_out_sessions);
    figures->why = sound.error().message;
    if (sound.error().code != Code::kInvalidArgument) code = Code::kCorruption;
    return true;
  });
  if (!rows.empty() || all == 0) return rows;
  return Fail(code, "nothing in {} can be read, and no backup is made: {}; the last one: {}",
              from.folder, LeftOutText(*figures), figures->why);
}

// Adds the rows, which were unsealed before, each as a line of facts and one of its bytes: as many
// as the first line says, or it fails.
Status AddRowsTo(SealedRows& open, const std::vector<RowFacts>& rows,
                 const BackupProgress& progress, SealedWriter* writer, BackupFigures* figures) {
  uint64_t done = 0;
  for (const RowFacts& row : rows) {
    KV_ASSIGN(std::vector<std::byte> plain, open.Get(row.owner, row.id));
    const BackupLine line{std::string(reinterpret_cast<const char*>(plain.data()), plain.size())};
    Wipe(&plain);
    KV_TRY(writer->Add(nlohmann::ordered_json{{"used", row.used_s}}.dump()));
    KV_TRY(writer->Add(line.text));
    CountRow(row.id, line.text.size(), figures);
    if (progress) progress("sealing", ++done, rows.size());
  }
  return {};
}

// Opens the rows to be read, or to be added to while no tier uses the folder. A damaged file is an
// error: it stays where it is.
Result<std::unique_ptr<SealedRows>> OpenRows(const BackupPlace& place, const Secret& secret,
                                             Storage& storage) {
  return SealedRows::Open({.folder = place.folder,
                           .cap_bytes = place.cap_bytes,
                           .secret = secret,
                           .sets_aside = false,
                           .blocks_give_way = true},
                          storage);
}

// Opens the rows, or a copy of them where another process has them open. The copy lies beside the
// backup for the moment that it takes to open it.
Result<std::unique_ptr<SealedRows>> OpenRowsOrCopy(const BackupPlace& place,
                                                   const std::string& backup, const Secret& secret,
                                                   Storage& storage) {
  auto open = OpenRows(place, secret, storage);
  if (open || open.error().code != Code::kUnavailable) return open;
  KV_ASSIGN(const RowsCopy copy, RowsCopy::Make(place.folder, backup + ".rows", storage));
  return OpenRows({.folder = copy.folder(), .cap_bytes = place.cap_bytes, .secret_path = {}},
                  secret, storage);
}

// The folders of a restore that were not there: those that are empty go again unless Keep is
// called.
class NewFolders {
 public:
  NewFolders() = default;
  ~NewFolders() {
    for (const auto& folder : folders_) rmdir(folder.c_str());
  }
  NewFolders(const NewFolders&) = delete;
  NewFolders& operator=(const NewFolders&) = delete;

  // Notes the folder, and those above it, where they are missing.
  void Note(const std::filesystem::path& folder) {
    std::error_code error;
    std::filesystem::path path = std::filesystem::absolute(folder, error).lexically_normal();
    for (; path.has_relative_path() && !std::filesystem::exists(path, error);
         path = path.parent_path()) {
      folders_.push_back(path);
    }
  }
  void Keep() { folders_.clear(); }

 private:
  std::vector<std::filesystem::path> folders_;  // those inside others come first
};

// The secret that restored sessions are sealed under, and its file where that is new: it goes
// again unless Keep is called.
class RestoredSecret {
 public:
  static Result<RestoredSecret> At(const std::string& path, const std::optional<Secret>& given) {
    RestoredSecret restored;
    std::error_code error;
    if (std::filesystem::exists(std::filesystem::symlink_status(path, error))) {
      KV_ASSIGN(restored.secret_, ReadSecret(path));
      if (!given || *given == restored.secret_) return restored;
      return Fail(Code::kInvalidArgument,
                  "{} is another secret than that of the backup; --without-secret takes the "
                  "sessions alone and seals them under it, or move it away first (what it seals "
                  "cannot be unsealed without it)",
                  path);
    }
    const std::filesystem::path folder = std::filesystem::path(path).parent_path();
    const bool is_new = !std::filesystem::exists(folder, error);
    std::filesystem::create_directories(folder, error);
    if (is_new) chmod(folder.c_str(), 0700);
    KV_ASSIGN(restored.secret_, given ? Result<Secret>(*given) : EphemeralSecret());
    const std::string_view bytes(reinterpret_cast<const char*>(restored.secret_.data()),
                                 restored.secret_.size());
    KV_TRY(WriteAtomicFile(path, bytes, {.if_present = IfPresent::kKeep}));
    restored.new_path_ = path;
    // If another process was first, its secret counts.
    KV_ASSIGN(const Secret written, ReadSecret(path));
    if (written == restored.secret_) return restored;
    restored.new_path_.clear();
    return Fail(Code::kUnavailable, "another process made {} meanwhile; try again", path);
  }
  RestoredSecret(RestoredSecret&& other) noexcept
      : secret_(other.secret_), new_path_(std::exchange(other.new_path_, "")) {}
  ~RestoredSecret() {
    std::error_code ignored;
    if (!new_path_.empty()) std::filesystem::remove(new_path_, ignored);
    OPENSSL_cleanse(secret_.data(), secret_.size());
  }

  const Secret& secret() const { return secret_; }
  void Keep() { new_path_.clear(); }

 private:
  RestoredSecret() = default;

  Secret secret_{};
  std::string new_path_;  // empty: it was there, or stays
};

// Reads the rows of a file, for SealedRows::AddAll.
class RestoredRows {
 public:
  // Reads on after the first line. All of these must outlive it.
  RestoredRows(SealedReader& reader, const BackupManifest& manifest, const std::string& path,
               const BackupProgress& progress)
      : reader_(reader), manifest_(manifest), path_(path), progress_(progress) {}

  // Reads all, so that what is wrong with the file is found before anything is changed, and goes
  // back to the first row.
  Status Check() {
    for (;;) {
      KV_ASSIGN(const std::optional<NewRow> row, Next());
      if (!row) break;
    }
    reader_.Rewind();
    KV_ASSIGN(std::optional<std::string> first, reader_.Next());
    if (first) Wipe(&*first);
    count_ = 0;
    figures_ = {};
    doing_ = "adding";
    return {};
  }

  Result<std::optional<NewRow>> Next() {
    Wipe(&line_.text);
    KV_ASSIGN(std::optional<std::string> facts, reader_.Next());
    if (!facts) {
      if (count_ == manifest_.rows) return std::nullopt;
      return Fail(Code::kCorruption, "{} has {} of its {} rows", path_, count_, manifest_.rows);
    }
    KV_ASSIGN(std::optional<std::string> text, reader_.Next());
    const auto json = nlohmann::json::parse(*facts, nullptr, /*allow_exceptions=*/false);
    const auto used = json.is_object() ? json.find("used") : json.end();
    if (!text || !json.is_object() || used == json.end() || !used->is_number_integer()) {
      return Fail(Code::kCorruption, "{} makes no sense after {} rows", path_, count_);
    }
    line_.text = std::move(*text);
    ++count_;
    SessionStore store(SessionLimits{.memory_bytes = UINT64_MAX});
    const auto record = ParseSessionRecord(store, line_.text);
    if (!record) {
      return Fail(Code::kCorruption, "{} makes no sense: row {}: {}", path_, count_,
                  record.error().message);
    }
    CountRow(record->id, line_.text.size(), &figures_);
    if (progress_) progress_(doing_, count_, manifest_.rows);
    return NewRow{.owner = SessionOwnerOf(record->tenant),
                  .id = record->id,
                  .used_s = std::min(UnixS(), used->get<int64_t>() + since_s_),
                  .plain = std::as_bytes(std::span(line_.text))};
  }
  BackupFigures& figures() { return figures_; }

 private:
  SealedReader& reader_;
  const BackupManifest& manifest_;
  const std::string& path_;
  const BackupProgress& progress_;
  // Since the backup. No session was used meanwhile: else it might leave at the first start.
  const int64_t since_s_ = std::max<int64_t>(0, UnixS() - manifest_.made_s);
  std::string_view doing_ = "checking";
  uint64_t count_ = 0;
  BackupLine line_;  // of the row that was given last
  BackupFigures figures_;
};

}  // namespace

std::string LeftOutText(const BackupFigures& figures) {
  const uint64_t sessions = figures.left_out_sessions, responses = figures.left_out_responses;
  return (sessions == 0 ? "" : CountText(sessions, "session")) +
         (sessions == 0 || responses == 0 ? "" : " and ") +
         (responses == 0 ? "" : CountText(responses, "stored response"));
}

Result<BackupFigures> WriteBackup(const BackupPlace& from, const std::string& path,
                                  std::string_view passphrase, BackupSecret secret,
                                  const BackupProgress& progress) {
  if (passphrase.size() < kLeastPassphraseBytes) {
    return Fail(Code::kInvalidArgument,
                "the passphrase has {} bytes; give one of at least {}, such as five random words",
                passphrase.size(), kLeastPassphraseBytes);
  }
  std::error_code error;
  if (!std::filesystem::is_directory(from.folder, error)) {
    return Fail(Code::kNotFound, "there is no folder {}", from.folder);
  }
  KV_ASSIGN(const Secret own, ReadSecret(from.secret_path));
  RealStorage storage;
  std::unique_ptr<SealedRows> open;
  std::vector<RowFacts> rows;
  BackupManifest manifest{.made_s = UnixS()};
  BackupFigures figures{.has_secret = secret == BackupSecret::kWith, .made_s = manifest.made_s};
  if (std::filesystem::exists(from.folder + "/sessions.db", error)) {
    KV_ASSIGN(open, OpenRowsOrCopy(from, path, own, storage));
    KV_ASSIGN(rows, SoundRows(*open, from, progress, &figures));
  }
  manifest.rows = rows.size();
  for (const RowFacts& row : rows) manifest.bytes += row.bytes;
  if (secret == BackupSecret::kWith) manifest.secret = own;
  KV_ASSIGN(SealedWriter writer, SealedWriter::Create(path, passphrase));
  const BackupLine first{ToLine(manifest)};
  KV_TRY(writer.Add(first.text));
  if (open) KV_TRY(AddRowsTo(*open, rows, progress, &writer, &figures));
  KV_TRY(writer.Finish());
  return figures;
}

Result<BackupFigures> RestoreBackup(const std::string& path, const BackupPlace& to,
                                    std::string_view passphrase, BackupSecret secret,
                                    const BackupProgress& progress) {
  KV_ASSIGN(SealedReader reader, SealedReader::Open(path, passphrase));
  KV_ASSIGN(std::optional<std::string> first, reader.Next());
  const BackupLine line{std::move(first).value_or("")};
  KV_ASSIGN(BackupManifest manifest, ManifestOf(line.text, path));
  if (secret == BackupSecret::kWithout) manifest.secret.reset();
  RestoredRows rows(reader, manifest, path, progress);
  KV_TRY(rows.Check());
  NewFolders made;
  made.Note(std::filesystem::path(to.folder) / "keys");
  made.Note(std::filesystem::path(to.secret_path).parent_path());
  KV_ASSIGN(RestoredSecret restored, RestoredSecret::At(to.secret_path, manifest.secret));
  {
    RealStorage storage;
    KV_ASSIGN(const std::unique_ptr<SealedRows> open, OpenRows(to, restored.secret(), storage));
    Status added = open->AddAll(manifest.bytes, manifest.rows, [&rows] { return rows.Next(); });
    if (!added && added.error().code == Code::kInvalidArgument) {
      return Fail(Code::kInvalidArgument, "{} in {}: a backup is added whole or not at all",
                  added.error().message, to.folder);
    }
    if (!added) return tl::unexpected(std::move(added).error());
  }
  restored.Keep();
  made.Keep();
  rows.figures().has_secret = manifest.secret.has_value();
  rows.figures().made_s = manifest.made_s;
  return rows.figures();
}

}  // namespace kvasir
