// The server secret: root of all salts and keys.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>

#include "kvasir/status.h"

namespace kvasir {

using Secret = std::array<uint8_t, 32>;

// The secret in `state_dir`/secret. Made from the system's random numbers at first start (the
// folder too, 0700), complete and 0600 before it has its name, so that a crash or a second process
// at the same moment never leaves half a secret or two. kPermissionDenied when others may read it
// or write to the folder, or it is another user's (but root's); kCorruption when it is no regular
// file of 32 bytes, kIoError when the system fails.
Result<Secret> LoadOrCreateSecret(const std::string& state_dir);

// A secret that lives as long as the process. kIoError: the system has no random numbers.
Result<Secret> EphemeralSecret();

}  // namespace kvasir
