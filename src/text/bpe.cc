#include "text/bpe.h"

#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <queue>

#include "base/result.h"
#include "base/utf8.h"

namespace kvasir {
namespace {

constexpr char32_t kSmallChars = 0x3100;  // Latin to kana, and the byte-level alphabet
constexpr size_t kShortWord = 32;         // a linear scan beats a heap up to here
constexpr size_t kMaxSymbols = 1 << 20;   // of symbols: merging takes some 60 bytes for each

uint64_t HashOf(uint64_t pair) {
  pair *= 0x9E3779B97F4A7C15ull;  // Fibonacci hashing: the high bits are mixed
  return pair ^ pair >> 32;
}

}  // namespace

void Bpe::ReserveTokens(size_t count, size_t text_bytes) {
  arena_->reserve(text_bytes);  // views into it must not move
  ids_.reserve(count);
}

void Bpe::AddToken(std::string_view text, TokenId id) {
  const size_t begin = arena_->size();
  *arena_ += text;
  const std::string_view view = std::string_view(*arena_).substr(begin);
  ids_.emplace(view, id);
  if (id >= static_cast<TokenId>(texts_.size())) texts_.resize(static_cast<size_t>(id) + 1);
  texts_[static_cast<size_t>(id)] = view;
  max_id_ = std::max(max_id_, id);
}

void Bpe::IndexTokens() {
  small_chars_.assign(kSmallChars, -1);
  for (const auto& [text, id] : ids_) {
    if (text.empty() || text.size() > 4) continue;
    size_t pos = 0;
    const char32_t c = NextChar(text, &pos);
    if (pos != text.size()) continue;
    if (c < kSmallChars) {
      small_chars_[c] = id;
    } else {
      big_chars_[c] = id;
    }
  }
  bytes_.assign(256, -1);
  for (int byte = 0; byte < 256; ++byte) {
    bytes_[static_cast<size_t>(byte)] = IdOf(fmt::format("<0x{:02X}>", byte)).value_or(-1);
  }
}

void Bpe::ReserveMerges(size_t count) {
  const size_t slots = std::bit_ceil(std::max<size_t>(16, count * 2));
  merges_.assign(slots, Merge{});
  merge_mask_ = slots - 1;
}

void Bpe::AddMerge(uint64_t pair, uint32_t rank, TokenId id) {
  uint64_t slot = HashOf(pair) & merge_mask_;
  while (merges_[slot].pair != kNoPair && merges_[slot].pair != pair)
    slot = (slot + 1) & merge_mask_;
  merges_[slot] = {pair, rank, id};  // a pair given twice: the later one counts
}

const Bpe::Merge* Bpe::FindMerge(TokenId left, TokenId right, Special special) const {
  const uint64_t pair = PairOf(left, right);
  for (uint64_t slot = HashOf(pair) & merge_mask_;; slot = (slot + 1) & merge_mask_) {
    const Merge& merge = merges_[slot];
    if (merge.pair == pair) {
      return special == Special::kProtected && IsProtected(merge.id) ? nullptr : &merge;
    }
    if (merge.pair == kNoPair) return nullptr;
  }
}

std::optional<TokenId> Bpe::IdOf(std::string_view token) const {
  const auto it = ids_.find(token);
  return it == ids_.end() ? std::nullopt : std::optional(it->second);
}

std::string_view Bpe::TextOf(TokenId id) const {
  if (id < 0 || static_cast<size_t>(id) >= texts_.size()) return {};
  return texts_[static_cast<size_t>(id)];
}

TokenId Bpe::IdOfChar(char32_t c) const {
  if (c < kSmallChars) return small_chars_[c];
  const auto it = big_chars_.find(c);
  return it == big_chars_.end() ? -1 : it->second;
}

Status Bpe::StartSymbols(std::string_view word, Special special,
                         std::vector<TokenId>* symbols) const {
  const auto usable = [&](TokenId id) {
    return id >= 0 && !(special == Special::kProtected && IsProtected(id));
  };
  bool pending_unk = false;
  for (size_t pos = 0; pos < word.size();) {
    const size_t begin = pos;
    const TokenId id = IdOfChar(NextChar(word, &pos));
    if (usable(id)) {
      if (pending_unk) symbols->push_back(unk_);
      pending_unk = false;
      symbols->push_back(id);
      continue;
    }
    const auto byte_id = [&](char c) { return bytes_[static_cast<uint8_t>(c)]; };
    const std::string_view bytes = word.substr(begin, pos - begin);
    if (byte_fallback_ &&
        std::all_of(bytes.begin(), bytes.end(), [&](char c) { return usable(byte_id(c)); })) {
      // An unknown token still waiting stays so: `tokenizers` writes it after these bytes.
      for (char c : bytes) symbols->push_back(byte_id(c));
      continue;
    }
    if (!has_unk_) continue;
    if (unk_ < 0) {
      return Fail(Code::kCorruption, "tokenizer.json: model.unk_token is not in the vocabulary");
    }
    if (pending_unk && !fuse_unk_) symbols->push_back(unk_);
    pending_unk = true;
  }
  if (pending_unk) symbols->push_back(unk_);
  return {};
}

Status Bpe::Encode(std::string_view word, Special special, size_t max_ids,
                   std::vector<TokenId>* ids) const {
  const size_t begin = ids->size();
  KV_TRY(EncodeWord(word, special, max_ids, ids));
  if (!num_ids_) return {};
  for (TokenId& id : std::span(*ids).subspan(begin)) {
    if (id >= *num_ids_) id = unk_;
  }
  return {};
}

// Cuts a word by score. A character that is not a piece becomes its bytes, else the unknown token;
// a run of such characters becomes one.
Status Bpe::CutByScore(std::string_view word, size_t max_ids, std::vector<TokenId>* ids) const {
  bool after_unknown = false;
  KV_TRY(unigram_->Cut(word, [&](std::string_view part, const Unigram::Piece* piece) {
    const auto is_known = [&](char c) { return bytes_[static_cast<uint8_t>(c)] >= 0; };
    if (piece != nullptr) {
      ids->push_back(piece->id);
    } else if (byte_fallback_ && std::ranges::all_of(part, is_known)) {
      for (const char c : part) ids->push_back(bytes_[static_cast<uint8_t>(c)]);
    } else {
      if (!after_unknown && has_unk_) ids->push_back(unk_);
      after_unknown = true;
      return true;
    }
    after_unknown = false;
    return ids->size() <= max_ids;
  }));
  if (ids->size() > max_ids) return Fail(Code::kExhausted, "more than {} tokens", max_ids);
  return {};
}

Status Bpe::EncodeWord(std::string_view word, Special special, size_t max_ids,
                       std::vector<TokenId>* ids) const {
  if (word.empty()) return {};
  if (unigram_) return CutByScore(word, max_ids, ids);  // its pieces are normal tokens only
  if (ignore_merges_) {
    const auto id = IdOf(word);
    if (id && !(special == Special::kProtected && IsProtected(*id))) {
      ids->push_back(*id);
      return {};
    }
  }
  if (word.size() <= kShortWord) {
    // The symbols are built where they will stay: no allocation per word.
    const size_t begin = ids->size();
    KV_TRY(StartSymbols(word, special, ids));
    MergeShort(std::span(*ids).subspan(begin), special, ids);
    return {};
  }
  std::vector<TokenId> symbols;
  symbols.reserve(word.size());
  KV_TRY(StartSymbols(word, special, &symbols));
  // Two neighbours that no merged token has side by side never merge, so the text can be cut there.
  // This cuts a SentencePiece-style text, which is one word, into short ones.
  size_t begin = 0;
  for (size_t i = 1; i <= symbols.size(); ++i) {
    if (i < symbols.size() && (!has_seams_ || seams_.contains(PairOf(symbols[i - 1], symbols[i]))))
      continue;
    KV_TRY(MergeAny(std::span(symbols).subspan(begin, i - begin), special, ids));
    if (ids->size() > max_ids) return Fail(Code::kExhausted, "more than {} tokens", max_ids);
    begin = i;
  }
  return {};
}

Status Bpe::MergeAny(std::span<const TokenId> symbols, Special special,
                     std::vector<TokenId>* ids) const {
  if (symbols.size() > kMaxSymbols) {
    return Fail(Code::kInvalidArgument,
                "tokenizer: the text has a word of {} characters; at most {} are allowed",
                symbols.size(), kMaxSymbols);
  }
  if (symbols.size() > kShortWord) {
    MergeLong(symbols, special, ids);
    return {};
  }
  const size_t begin = ids->size();
  ids->insert(ids->end(), symbols.begin(), symbols.end());
  MergeShort(std::span(*ids).subspan(begin), special, ids);
  return {};
}

// Collects the pairs of characters' tokens that lie side by side inside the result of some merge.
// Symbols that do not stand for what they spell (bytes, the unknown token) have no seams as long as
// none of them merges.
void Bpe::CollectSeams() {
  std::unordered_set<TokenId> others;
  if (byte_fallback_) others.insert(bytes_.begin(), bytes_.end());
  others.insert(unk_);
  const auto spells = [&others](TokenId id) { return !others.contains(id); };
  has_seams_ = true;
  std::vector<bool> seen(texts_.size(), false);  // several merges may give one token
  for (const Merge& merge : merges_) {
    if (merge.pair == kNoPair) continue;
    if (!spells(static_cast<TokenId>(merge.pair >> 32)) ||
        !spells(static_cast<TokenId>(merge.pair & 0xFFFFFFFF))) {
      has_seams_ = false;
      return;
    }
    if (seen[static_cast<size_t>(merge.id)]) continue;
    seen[static_cast<size_t>(merge.id)] = true;
    const std::string_view text = TextOf(merge.id);
    TokenId last = -1;
    for (size_t pos = 0; pos < text.size();) {
      const TokenId id = IdOfChar(NextChar(text, &pos));
      if (last >= 0 && id >= 0) seams_.insert(PairOf(last, id));
      last = id;
    }
  }
}

// Merges the symbols in place; they are the end of *ids, which shrinks to what is left of them.
void Bpe::MergeShort(std::span<TokenId> symbols, Special special, std::vector<TokenId>* ids) const {
  std::array<const Merge*, kShortWord> merges;  // [i]: of symbols i and i + 1
  size_t count = symbols.size();
  for (size_t i = 0; i + 1 < count; ++i) merges[i] = FindMerge(symbols[i], symbols[i + 1], special);
  while (count > 1) {
    size_t best = count;
    uint32_t best_rank = std::numeric_limits<uint32_t>::max();
    for (size_t i = 0; i + 1 < count; ++i) {
      if (merges[i] != nullptr && merges[i]->rank < best_rank) {
        best = i;
        best_rank = merges[i]->rank;
      }
    }
    if (best == count) break;
    symbols[best] = merges[best]->id;
    for (size_t i = best + 1; i + 1 < count; ++i) symbols[i] = symbols[i + 1];
    for (size_t i = best + 1; i + 2 < count; ++i) merges[i] = merges[i + 1];
    --count;
    if (best > 0) merges[best - 1] = FindMerge(symbols[best - 1], symbols[best], special);
    if (best + 1 < count) merges[best] = FindMerge(symbols[best], symbols[best + 1], special);
  }
  ids->resize(ids->size() - (symbols.size() - count));
}

// Merges with a heap of candidates over a linked list; a candidate is stale when its pair has
// changed.
void Bpe::MergeLong(std::span<const TokenId> symbols, Special special,
                    std::vector<TokenId>* ids) const {
  struct Candidate {
    uint32_t rank;
    int32_t pos;
    TokenId id;
    bool operator<(const Candidate& other) const {  // the top of the heap is the lowest rank
      return rank != other.rank ? rank > other.rank : pos > other.pos;
    }
  };
  constexpr TokenId kGone = -1;
  const auto count = static_cast<int32_t>(symbols.size());
  std::vector<Symbol> list(symbols.size());
  std::priority_queue<Candidate> heap;
  const auto push = [&](int32_t pos) {
    const int32_t next = list[pos].next;
    if (next >= count) return;
    const Merge* merge = FindMerge(list[pos].id, list[next].id, special);
    if (merge != nullptr) heap.push({merge->rank, pos, merge->id});
  };
  for (int32_t i = 0; i < count; ++i) list[i] = {symbols[i], i - 1, i + 1};
  for (int32_t i = 0; i < count; ++i) push(i);
  while (!heap.empty()) {
    const Candidate top = heap.top();
    heap.pop();
    Symbol& left = list[top.pos];
    if (left.id == kGone || left.next >= count) continue;
    Symbol& right = list[left.next];
    const Merge* merge = FindMerge(left.id, right.id, special);
    if (merge == nullptr || merge->id != top.id) continue;
    left.id = top.id;
    left.next = right.next;
    right.id = kGone;
    if (left.next < count) list[left.next].prev = top.pos;
    if (left.prev >= 0) push(left.prev);
    push(top.pos);
  }
  for (int32_t i = 0; i < count; i = list[i].next) ids->push_back(list[i].id);
}

}  // namespace kvasir
