// The id of a request: what its client sent as x-request-id, or a made one.
#pragma once

#include <string>
#include <string_view>

namespace kvasir {

// Tells whether it has 1 to 64 letters, digits, '.', '_' or '-': it goes into a header and the log.
bool IsRequestId(std::string_view id);
// 32 random hex digits; "" when the system has no random numbers: then the request has no id.
std::string MakeRequestId();

}  // namespace kvasir
