// The server secret: the root of all salts and keys.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>

#include "kvasir/status.h"

namespace kvasir {

using Secret = std::array<uint8_t, 32>;

// Returns the secret in `state_dir`/secret. The first start creates it from the system's random
// numbers (and the folder, 0700). The file is complete and 0600 before it gets its name, so that a
// crash or a second process cannot leave a partial secret or two of them. kPermissionDenied when
// other users can read it or write to the folder, or when another user except root owns it;
// kCorruption when it is not a regular file of 32 bytes; kIoError when the system fails.
Result<Secret> LoadOrCreateSecret(const std::string& state_dir);

// Refuses a folder of state that LoadOrCreateSecret refuses, since others can write to it:
// kPermissionDenied. A missing folder is accepted.
Status CheckSecretFolder(const std::string& state_dir);
// Reads a secret from a file. Errors are those of LoadOrCreateSecret, and kNotFound.
Result<Secret> ReadSecret(const std::string& path);
// Reads the secret of a fleet, of which each machine has a copy. Errors are those of ReadSecret,
// and say what is right for a copy; kCorruption also where all bytes are the same.
Result<Secret> ReadFleetSecret(const std::string& path);
// Makes a file with a new secret, 0600. kInvalidArgument where there is one of this name already.
Status MakeSecret(const std::string& path);

// Makes a secret that ends with the process. kIoError when the system gives no random numbers.
Result<Secret> EphemeralSecret();

}  // namespace kvasir
