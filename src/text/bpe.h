// Byte-pair encoding of one word: the model part of tokenizer.json, or another file's vocabulary,
// whose words may be cut by unigram instead.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "kvasir/status.h"
#include "kvasir/types.h"
#include "text/unigram.h"

namespace kvasir {

struct Vocabulary;

// A word's symbols start as its characters (or their <0xXX> bytes). The adjacent pair of lowest
// rank merges, of equal ones the leftmost, until no pair has a rank. O(n log n) for n characters.
// Immutable after Parse or Make, and Protect; thread-safe.
class Bpe {
 public:
  // Makes it from the value of "model". kUnsupported for another model type or an option we do not
  // have.
  static Result<Bpe> Parse(const nlohmann::json& model);
  // Makes it from any other file. Errors as CheckVocabulary; kCorruption: a part or the result of a
  // merge is not a token, or there are more merges than MaxScoreMerges.
  static Result<Bpe> Make(const Vocabulary& vocabulary);
  // Makes Encode take a word that is a token as that token, without merging.
  void TakeWholeWords() { ignore_merges_ = true; }

  // Protects ids: Encode never yields these ids under Special::kProtected, except the unknown
  // token.
  void Protect(std::vector<bool> ids) { protected_ = std::move(ids); }

  enum class Special { kAllowed, kProtected };
  // Appends the ids of word. kCorruption when an unknown character meets an unk_token that is not
  // in the vocabulary.
  // kExhausted soon after *ids has more than max_ids.
  Status Encode(std::string_view word, Special special, size_t max_ids,
                std::vector<TokenId>* ids) const;

  std::optional<TokenId> IdOf(std::string_view token) const;
  std::string_view TextOf(TokenId id) const;  // "" if the id has no token
  size_t num_tokens() const { return ids_.size(); }
  TokenId max_id() const { return max_id_; }  // -1 without tokens

 private:
  struct Merge {
    uint64_t pair = kNoPair;
    uint32_t rank = 0;
    TokenId id = 0;
  };
  struct Symbol {
    TokenId id;
    int32_t prev, next;
  };
  static constexpr uint64_t kNoPair = ~uint64_t{0};
  static uint64_t PairOf(TokenId left, TokenId right) {
    return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
  }

  Bpe() = default;
  Status ParseOptions(const nlohmann::json& model);
  Status ParseVocab(const nlohmann::json& vocab);
  Status ParseMerges(const nlohmann::json& merges);
  Status TakeMerges(const Vocabulary& vocabulary);
  void TakePieces(const Vocabulary& vocabulary);
  Status MergeByScore(const Vocabulary& vocabulary);
  void ReserveTokens(size_t count, size_t text_bytes);
  void AddToken(std::string_view text, TokenId id);  // REQUIRES: room was reserved
  void IndexTokens();                                // once all are added
  void ReserveMerges(size_t count);
  // Returns the two sides of "a b"; absent when there is no space.
  std::optional<std::pair<std::string_view, std::string_view>> SplitMerge(
      std::string_view merge) const;
  void AddMerge(uint64_t pair, uint32_t rank, TokenId id);
  const Merge* FindMerge(TokenId left, TokenId right, Special special) const;

  TokenId IdOfChar(char32_t c) const;
  bool IsProtected(TokenId id) const {
    return static_cast<size_t>(id) < protected_.size() && protected_[static_cast<size_t>(id)];
  }
  Status EncodeWord(std::string_view word, Special special, size_t max_ids,
                    std::vector<TokenId>* ids) const;
  Status CutByScore(std::string_view word, size_t max_ids, std::vector<TokenId>* ids) const;
  Status StartSymbols(std::string_view word, Special special, std::vector<TokenId>* symbols) const;
  void MergeShort(std::span<TokenId> symbols, Special special, std::vector<TokenId>* ids) const;
  void CollectSeams();
  Status MergeAny(std::span<const TokenId> symbols, Special special,
                  std::vector<TokenId>* ids) const;
  void MergeLong(std::span<const TokenId> symbols, Special special,
                 std::vector<TokenId>* ids) const;

  std::unique_ptr<std::string> arena_ = std::make_unique<std::string>();  // all token texts
  std::unordered_map<std::string_view, TokenId> ids_;                     // views into arena_
  std::vector<std::string_view> texts_;                                   // by id
  std::vector<TokenId> small_chars_;  // by character below U+3100; -1 if none
  std::unordered_map<char32_t, TokenId> big_chars_;
  std::vector<TokenId> bytes_;  // <0xXX> by byte; -1 if none
  std::vector<Merge> merges_;   // open addressing, a power of two
  uint64_t merge_mask_ = 0;
  std::unordered_set<uint64_t> seams_;  // pairs of start symbols that some merged token joins
  bool has_seams_ = false;              // seams_ is complete
  std::optional<Unigram> unigram_;      // of Merging::kUnigram
  std::vector<bool> protected_;
  TokenId max_id_ = -1;
  std::optional<TokenId> num_ids_;  // ids from here on are written as the unknown token
  bool has_unk_ = false;
  TokenId unk_ = -1;
  bool fuse_unk_ = false, byte_fallback_ = false, ignore_merges_ = false;
};

}  // namespace kvasir
