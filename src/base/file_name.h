// Names of files that come from elsewhere: from a hub, or from an index of shards.
#pragma once

#include <string>
#include <string_view>

namespace kvasir {

// Tells whether `file` leads to a place below the folder that it is put into: relative, UTF-8,
// without empty parts, ".", "..", backslashes and control characters, and not too long. Only the
// name is looked at, no link. O(size).
bool IsSafeFile(std::string_view file);

// Returns a name for messages: bytes that a terminal could interpret are replaced by '?'.
std::string Printable(std::string_view name);

}  // namespace kvasir
