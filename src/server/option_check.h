// Checks ServerOptions before the model is loaded.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "kvasir/status.h"
#include "server/server.h"

namespace kvasir {

// Says what is wrong with a key, without showing it ("has a space at byte 3"): a key has 1 to
// kMaxKeyBytes visible ASCII characters and no spaces, so that a header can carry it.
inline constexpr size_t kMaxKeyBytes = 1024;
std::optional<std::string> KeyFault(std::string_view key);

// kInvalidArgument when a value cannot be used; the error names its field in the singular
// ("cors_origin") and never shows a key.
Status CheckOptions(const ServerOptions& options);

}  // namespace kvasir
