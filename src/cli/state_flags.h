// Where the secret of a command lies, and what systemd's credentials give to a server.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/args.h"
#include "kvasir/secret_place.h"
#include "kvasir/status.h"

namespace kvasir::cli {

// Returns the flags of commands that open what the secret seals: --state-dir, --secret-file.
std::vector<Flag> StateFlags();
// Returns the folder of --state-dir and the file of --secret-file; else of the latter that of
// KVASIR_SECRET_FILE, else the credential `secret`. A file must have a secret: kInvalidArgument,
// and the errors of ReadSecret.
Result<SecretPlace> ReadStateFlags(const Args& args);

// Returns the folder of --cache-dir; absent too where it is empty.
std::optional<std::string> CacheDirOf(const Args& args);
// Returns the folder of a server's sessions and blocks: `word` of the command line, else that of
// --disk, else kv in the cache folder; absent: there is no cache folder. kInvalidArgument: it is
// empty or "none", or a word and --disk are given.
Result<std::optional<std::string>> ReadDiskFolder(const Args& args,
                                                  const std::optional<std::string>& word = {});

// Returns the file of a credential that systemd gives the process: `name` or kvasir_`name` in
// CREDENTIALS_DIRECTORY, as LoadCredential=NAME:FILE and LoadCredential=kvasir:FOLDER name what
// they load. Absent: there is no such credential.
std::optional<std::string> CredentialFile(const std::string& name);
// Gives flags of access that were not given what the credentials have: `keys` is the file of
// --keys, `api-keys` that of --api-key-file, `tls-cert` and `tls-key` those of these flags,
// `admin-key` has the text of --admin-key.
Status TakeCredentials(Args* args);

}  // namespace kvasir::cli
