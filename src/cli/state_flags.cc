#include "cli/state_flags.h"

#include <cstdlib>
#include <filesystem>
#include <utility>

#include "base/result.h"
#include "base/secret.h"
#include "kvasir/disk.h"

namespace kvasir::cli {
namespace {

// Refuses a flag that is given and empty.
Status CheckNotEmpty(const Args& args, const char* flag, const char* takes) {
  if (args.Text(flag) != "") return {};
  return Fail(Code::kInvalidArgument, "{}: is empty; give {}, or leave it out", args.Written(flag),
              takes);
}

}  // namespace

std::vector<Flag> StateFlags() {
  return {{"state-dir", "DIR",
           "folder of the secret under which the disk and sessions are sealed (default: "
           "STATE_DIRECTORY, else XDG_STATE_HOME/kvasir)"},
          {"secret-file", "F",
           "a file of 32 bytes that is the secret instead ('kvasir key secret FILE' makes one; "
           "default: KVASIR_SECRET_FILE, else the credential 'secret' of systemd, else the state "
           "folder's)"}};
}

Result<SecretPlace> ReadStateFlags(const Args& args) {
  KV_TRY(CheckNotEmpty(args, "state-dir", "a folder"));
  KV_TRY(CheckNotEmpty(args, "secret-file", "a file"));
  SecretPlace place{.state_dir = args.Text("state-dir"), .file = args.Text("secret-file")};
  std::string source = args.Written("secret-file");
  const char* variable = std::getenv("KVASIR_SECRET_FILE");
  if (!place.file && variable != nullptr && *variable != '\0') {
    place.file = variable;
    source = "KVASIR_SECRET_FILE";
  }
  if (!place.file) {
    place.file = CredentialFile("secret");
    source = "the credential 'secret'";
  }
  if (!place.file) return place;
  const Result<Secret> secret = ReadSecret(*place.file);
  if (secret) return place;
  const bool is_missing = secret.error().code == Code::kNotFound;
  return Fail(is_missing ? Code::kInvalidArgument : secret.error().code, "{}: {}{}", source,
              secret.error().message, is_missing ? "; 'kvasir key secret FILE' makes one" : "");
}

std::optional<std::string> CacheDirOf(const Args& args) {
  const auto given = args.Text("cache-dir");
  return given && !given->empty() ? given : std::nullopt;
}

Result<std::optional<std::string>> ReadDiskFolder(const Args& args,
                                                  const std::optional<std::string>& word) {
  if (word && args.Has("disk")) {
    return Fail(Code::kInvalidArgument, "give the folder once: as a word, or as --disk DIR");
  }
  const std::optional<std::string> given = word ? word : args.Text("disk");
  const std::string name = word ? "the folder" : args.Written("disk") + ":";
  if (given == "") {
    return Fail(Code::kInvalidArgument, "{} is empty; give a folder, or leave it out", name);
  }
  if (given == "none") {
    return Fail(Code::kInvalidArgument,
                "{} is 'none', which means no disk in serve, run and chat, and this command works "
                "on a folder; give its path, which of a folder of that name is ./none",
                name);
  }
  return given ? given : DefaultDiskFolder(CacheDirOf(args));
}

std::optional<std::string> CredentialFile(const std::string& name) {
  const char* folder = std::getenv("CREDENTIALS_DIRECTORY");
  if (folder == nullptr || *folder != '/') return std::nullopt;
  for (const char* prefix : {"", "kvasir_"}) {
    const std::filesystem::path path = std::filesystem::path(folder) / (prefix + name);
    std::error_code error;
    if (std::filesystem::exists(path, error)) return path.string();
  }
  return std::nullopt;
}

Status TakeCredentials(Args* args) {
  constexpr std::pair<const char*, const char*> kFiles[] = {{"keys", "keys"},
                                                            {"api-key-file", "api-keys"},
                                                            {"tls-cert", "tls-cert"},
                                                            {"tls-key", "tls-key"}};
  for (const auto& [flag, name] : kFiles) {
    const auto path = args->Has(flag) ? std::nullopt : CredentialFile(name);
    if (path) args->Set(flag, {*path});
  }
  const auto path = args->Has("admin-key") ? std::nullopt : CredentialFile("admin-key");
  if (!path) return {};
  KV_ASSIGN(std::string key, ReadFlagFile("admin-key", *path, "a file with the operator's key"));
  while (key.ends_with('\n') || key.ends_with('\r')) key.pop_back();
  args->Set("admin-key", {std::move(key)});
  return {};
}

}  // namespace kvasir::cli
