// Files that `kvasir eval` reads, checked. Errors name the flag and the file.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kvasir/status.h"
#include "kvasir/types.h"

namespace kvasir::eval {

// Reads at most 64 MiB.
Result<std::string> ReadWholeFile(const std::string& flag, const std::string& path);

// Reads the start of the file of --text, enough for so many tokens: UTF-8, not empty, not binary.
Result<std::string> ReadTextStart(const std::string& path, uint64_t tokens);

// Returns the token ids as a JSON array or separated by white space. place: of the text, for
// messages.
Result<std::vector<TokenId>> ReadIds(const std::string& place, std::string_view text,
                                     uint32_t vocab_size);

}  // namespace kvasir::eval
