#include "text/unigram.h"

#include <algorithm>
#include <limits>
#include <optional>

#include "base/result.h"
#include "base/utf8.h"

namespace kvasir {
namespace {

constexpr float kUnknownPenalty = 10;             // SentencePiece's, below the lowest score
constexpr size_t kMaxCutBytes = size_t{1} << 20;  // of bytes: a cut takes some 24 for each

uint8_t ByteAt(const Unigram::Piece& piece, size_t depth) {
  return static_cast<uint8_t>(piece.text[depth]);
}

// The best cut of what ends at a byte.
struct End {
  float score = 0;
  uint32_t size = 0;  // of the last part; 0: no cut ends here
  const Unigram::Piece* piece = nullptr;
};

}  // namespace

Unigram::Unigram(std::vector<Piece> pieces) : pieces_(std::move(pieces)) {
  std::ranges::sort(pieces_, {}, &Piece::text);
  float lowest = std::numeric_limits<float>::max();
  for (const Piece& piece : pieces_) lowest = std::min(lowest, piece.score);
  unknown_score_ = lowest - kUnknownPenalty;
  const Range all{0, static_cast<uint32_t>(pieces_.size())};
  for (size_t byte = 0; byte < first_byte_.size(); ++byte) {
    first_byte_[byte] = Narrow(all, 0, static_cast<uint8_t>(byte));
  }
}

// Returns the pieces of the range whose byte at `depth` is `byte`. REQUIRES: all are equal before
// it, and a piece that ends there is not in the range.
Unigram::Range Unigram::Narrow(Range range, size_t depth, uint8_t byte) const {
  const auto begin = pieces_.begin() + range.first, end = pieces_.begin() + range.second;
  const auto byte_of = [&](const Piece& piece) { return ByteAt(piece, depth); };
  const auto found = std::ranges::equal_range(begin, end, byte, {}, byte_of);
  return {static_cast<uint32_t>(found.begin() - pieces_.begin()),
          static_cast<uint32_t>(found.end() - pieces_.begin())};
}

Status Unigram::Cut(std::string_view text,
                    const std::function<bool(std::string_view, const Piece*)>& fn) const {
  std::vector<End> ends(1);  // [i]: of begin + i
  std::vector<End> parts;
  size_t begin = 0, reach = 0;  // no part of what is before `begin` can still change
  for (size_t at = 0; at < text.size();) {
    size_t next = at;
    NextChar(text, &next);
    const float before = ends[at - begin].score;
    const auto offer = [&](size_t end, float score, const Piece* piece) {
      if (end - begin >= ends.size()) ends.resize(end - begin + 1);
      End& best = ends[end - begin];
      if (best.size == 0 || score > best.score) {
        best = {score, static_cast<uint32_t>(end - at), piece};
      }
      reach = std::max(reach, end);
    };
    bool is_known = false;
    Range range = first_byte_[static_cast<uint8_t>(text[at])];
    for (size_t end = at + 1; range.first < range.second; ++end) {
      const Piece& first = pieces_[range.first];  // a text comes before those that it begins
      if (first.text.size() == end - at) {
        offer(end, first.score + before, &first);
        is_known |= end == next;
        ++range.first;
      }
      if (end == text.size()) break;
      range = Narrow(range, end - at, static_cast<uint8_t>(text[end]));
    }
    if (!is_known) offer(next, unknown_score_ + before, nullptr);
    at = next;
    if (reach > at) {
      if (at - begin < kMaxCutBytes) continue;
      return Fail(
          Code::kInvalidArgument,
          "tokenizer: the text has {} bytes without a place where no piece goes on; at most "
          "{} are allowed",
          at - begin, kMaxCutBytes);
    }
    parts.clear();
    for (size_t i = at - begin; i > 0; i -= ends[i].size) parts.push_back(ends[i]);
    for (; !parts.empty(); parts.pop_back()) {
      const End& part = parts.back();
      if (!fn(text.substr(begin, part.size), part.piece)) return {};
      begin += part.size;
    }
    const End last{ends.back().score, 0, nullptr};
    ends.assign(1, last);
  }
  return {};
}

}  // namespace kvasir
