// Vocabulary: the tokens of a file that is no tokenizer.json, such as a GGUF file.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/digest.h"
#include "kvasir/status.h"
#include "kvasir/types.h"

namespace kvasir {

// What a token is, numbered as in SentencePiece and in GGUF files. Never renumber.
enum class TokenKind : uint8_t {
  kNormal = 1,
  kUnknown = 2,  // stands for characters that no token has
  kControl = 3,  // special: BOS, ends of turns
  kUserDefined = 4,
  kUnused = 5,  // never made of a text
  kByte = 6,    // <0xXX>
};

struct VocabularyToken {
  std::string text;  // "": the id has no token
  TokenKind kind = TokenKind::kNormal;
  float score = 0;
  bool rstrip = false;  // swallows the white space after it; of control and user-defined tokens
};

// How a text is taken apart.
enum class VocabularyKind : uint8_t {
  kByteLevel,      // GPT-2's: words by a pattern, then their bytes
  kSentencePiece,  // the whole text, with U+2581 for spaces and <0xXX> for unknown characters
};

// Where kSentencePiece writes a space that the text does not have.
enum class SpacePrefix : uint8_t { kNever, kFirst, kEveryText };  // text between special tokens

struct Vocabulary {
  VocabularyKind kind = VocabularyKind::kByteLevel;
  std::string file;                     // names it in errors
  std::vector<VocabularyToken> tokens;  // by id
  // "a b" by rank. Absent: any two symbols that are a token together merge, the highest score
  // first, the leftmost of equal ones.
  std::optional<std::vector<std::string>> merges;
  std::optional<TokenId> bos, eos;
  std::optional<bool> add_bos, add_eos;  // to raw prompts; absent: what `pre` says, else no
  std::string pre;                       // of kByteLevel: a name of text_patterns.h
  SpacePrefix space_prefix = SpacePrefix::kEveryText;  // of kSentencePiece
  bool collapse_spaces = false;                        // of kSentencePiece: as it was trained

  // Of what is here: texts, merges, and what a list takes for each.
  uint64_t memory_bytes() const;
};

// kCorruption: a token that stands twice, a score that is NaN, a text that is not UTF-8 or too
// long; the message names `file` and the token.
Status CheckVocabulary(const Vocabulary& vocabulary);

// Writes U+2581 in user-defined tokens as the space that it stands for: they are looked for in the
// text as it comes.
void TakeUserTextsAsWritten(Vocabulary* vocabulary);

// Of everything that decides what a text becomes.
Digest DigestOf(const Vocabulary& vocabulary);

}  // namespace kvasir
