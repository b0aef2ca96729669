// Vocabulary: the tokens of a file other than tokenizer.json, such as a GGUF file.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/digest.h"
#include "kvasir/status.h"
#include "kvasir/types.h"

namespace kvasir {

// The limit of tokens, and of merges: sixteen times the largest vocabulary known.
inline constexpr size_t kMaxVocabulary = size_t{1} << 22;

// What a token is, numbered as in SentencePiece and in GGUF files. Never renumber.
enum class TokenKind : uint8_t {
  kNormal = 1,
  kUnknown = 2,  // stands for characters without a token
  kControl = 3,  // special: BOS, ends of turns
  kUserDefined = 4,
  kUnused = 5,  // no text becomes it
  kByte = 6,    // <0xXX>
};

struct VocabularyToken {
  std::string text;  // "": the id has no token
  TokenKind kind = TokenKind::kNormal;
  float score = 0;
  bool rstrip = false;  // takes the white space after it; of control and user-defined tokens
};

// How a text is cut into symbols.
enum class VocabularyKind : uint8_t {
  kByteLevel,      // GPT-2's: words by a pattern, then their bytes
  kSentencePiece,  // the whole text, with U+2581 for spaces and <0xXX> for unknown characters
};

// Where kSentencePiece writes a space that the text does not have.
enum class SpacePrefix : uint8_t { kNever, kFirst, kEveryText };  // text between special tokens

// How symbols of kSentencePiece become tokens: by merging pairs (BPE), or as the cut whose scores
// have the largest sum (unigram).
enum class Merging : uint8_t { kPairs, kUnigram };

struct Vocabulary {
  VocabularyKind kind = VocabularyKind::kByteLevel;
  std::string file;                     // names it in errors
  std::vector<VocabularyToken> tokens;  // by id
  // "a b" by rank. Absent: any two symbols that are a token together merge, the highest score
  // first, the leftmost of equal ones.
  std::optional<std::vector<std::string>> merges;
  Merging merging = Merging::kPairs;
  std::optional<TokenId> bos, eos;
  std::optional<bool> add_bos, add_eos;  // to raw prompts; absent: what `pre` says, else no
  std::string pre;                       // of kByteLevel: a name of text_patterns.h
  SpacePrefix space_prefix = SpacePrefix::kEveryText;  // of kSentencePiece
  bool collapse_spaces = false;                        // of kSentencePiece: as it was trained
  std::string charsmap;  // of kSentencePiece: its table of normalisation (Charsmap); "": none
  // Tokens from here on only help merging: what becomes one becomes the unknown token.
  std::optional<size_t> num_ids;
  // By what an encoder's sources are read, where that is another one. Null: this one.
  std::shared_ptr<const Vocabulary> sources;

  uint32_t vocab_size() const;  // largest id of a token + 1
  // Returns the memory of texts and merges, and of the lists that hold them.
  uint64_t memory_bytes() const;
};

// kCorruption: two equal tokens, a score that is NaN, a text that is too long or not UTF-8. The
// message names `file` and the token.
Status CheckVocabulary(const Vocabulary& vocabulary);

// Replaces U+2581 in user-defined tokens by the space that it stands for, because the tokenizer
// searches for them in the text before it replaces spaces.
void TakeUserTextsAsWritten(Vocabulary* vocabulary);

// Returns the digest of every field that affects tokenization.
Digest DigestOf(const Vocabulary& vocabulary);

}  // namespace kvasir
