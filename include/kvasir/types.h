// Plain types that all parts share.
#pragma once

#include <cstdint>
#include <optional>

namespace kvasir {

using TokenId = int32_t;

// Tokens that mark the parts of a prompt whose middle is to be filled in.
struct FimTokens {
  std::optional<TokenId> prefix, suffix, middle;
  std::optional<TokenId> repo, file;  // before a repository's name; before a file's
  std::optional<TokenId> pad;
};

}  // namespace kvasir
