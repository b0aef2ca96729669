// What must hold of ServerOptions before a model is loaded for them.
#pragma once

#include <string_view>

#include "kvasir/status.h"
#include "server/server.h"

namespace kvasir {

// Whether a header can carry it: 1 to kMaxKeyBytes visible ASCII characters, no space among them.
inline constexpr size_t kMaxKeyBytes = 1024;
bool IsKey(std::string_view key);

// kInvalidArgument where a value cannot be used; the message begins with its field, in the singular
// ("cors_origin: ..."). Never shows a key.
Status CheckOptions(const ServerOptions& options);

}  // namespace kvasir
