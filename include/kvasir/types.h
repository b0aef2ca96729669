// Plain types that all parts share.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace kvasir {

using TokenId = int32_t;

// Tokens that mark the parts of a prompt whose middle is to be filled in.
struct FimTokens {
  std::optional<TokenId> prefix, suffix, middle;
  std::optional<TokenId> repo, file;  // before a repository's name; before a file's
  std::optional<TokenId> pad;
};

// Ids around the pieces of a text that an encoder reads.
struct SourceFrame {
  std::vector<TokenId> before, after;
};

// The languages of a translation model that was trained for one pair of languages.
struct LanguagePair {
  std::string source, target;  // ISO codes; "": the files do not say
  SourceFrame frame;
};

}  // namespace kvasir
