// What must hold of ServerOptions before a model is loaded for them.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "kvasir/status.h"
#include "server/server.h"

namespace kvasir {

// What is wrong with a key, without showing it ("has a space at byte 3"): a header carries 1 to
// kMaxKeyBytes visible ASCII characters, no space among them.
inline constexpr size_t kMaxKeyBytes = 1024;
std::optional<std::string> KeyFault(std::string_view key);

// kInvalidArgument where a value cannot be used; the error names its field, in the singular
// ("cors_origin"). Never shows a key.
Status CheckOptions(const ServerOptions& options);

}  // namespace kvasir
