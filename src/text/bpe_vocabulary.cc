// Makes a Bpe of a Vocabulary, which was read from a file other than tokenizer.json.
#include <algorithm>

#include "base/result.h"
#include "text/bpe.h"
#include "text/score_merges.h"
#include "text/vocabulary.h"

namespace kvasir {
namespace {

// Ranks each token by its score: 0 for the highest; equal scores have equal ranks.
std::vector<uint32_t> RanksByScore(const std::vector<VocabularyToken>& tokens) {
  std::vector<uint32_t> order(tokens.size());
  for (uint32_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(),
                   [&](uint32_t a, uint32_t b) { return tokens[a].score > tokens[b].score; });
  std::vector<uint32_t> ranks(tokens.size());
  uint32_t rank = 0;
  for (size_t i = 0; i < order.size(); ++i) {
    if (i > 0 && tokens[order[i]].score != tokens[order[i - 1]].score) ++rank;
    ranks[order[i]] = rank;
  }
  return ranks;
}

}  // namespace

Result<Bpe> Bpe::Make(const Vocabulary& vocabulary) {
  Bpe bpe;
  const bool pieces = vocabulary.kind == VocabularyKind::kSentencePiece;
  KV_TRY(CheckVocabulary(vocabulary));
  size_t arena_bytes = 0;
  for (const VocabularyToken& token : vocabulary.tokens) arena_bytes += token.text.size();
  bpe.ReserveTokens(vocabulary.tokens.size(), arena_bytes);
  for (size_t id = 0; id < vocabulary.tokens.size(); ++id) {
    const VocabularyToken& token = vocabulary.tokens[id];
    if (token.text.empty()) continue;
    bpe.AddToken(token.text, static_cast<TokenId>(id));
    if (token.kind == TokenKind::kUnused) bpe.ids_.erase(bpe.texts_[id]);
    if (pieces && token.kind == TokenKind::kUnknown && !bpe.has_unk_) {
      bpe.has_unk_ = true;
      bpe.unk_ = static_cast<TokenId>(id);
    }
  }
  if (vocabulary.num_ids) {
    bpe.num_ids_ = static_cast<TokenId>(*vocabulary.num_ids);
    bpe.max_id_ = static_cast<TokenId>(vocabulary.vocab_size()) - 1;
  }
  bpe.IndexTokens();
  if (vocabulary.merging == Merging::kUnigram) {
    bpe.TakePieces(vocabulary);
  } else if (vocabulary.merges) {
    KV_TRY(bpe.TakeMerges(vocabulary));
  } else {
    KV_TRY(bpe.MergeByScore(vocabulary));
  }
  bpe.byte_fallback_ = bpe.fuse_unk_ = pieces;
  if (!bpe.unigram_) bpe.CollectSeams();
  return bpe;
}

// Takes the normal tokens as pieces.
void Bpe::TakePieces(const Vocabulary& vocabulary) {
  std::vector<Unigram::Piece> pieces;
  for (size_t id = 0; id < vocabulary.tokens.size(); ++id) {
    const VocabularyToken& token = vocabulary.tokens[id];
    if (token.text.empty() || token.kind != TokenKind::kNormal) continue;
    pieces.push_back({texts_[id], token.score, static_cast<TokenId>(id)});
  }
  unigram_.emplace(std::move(pieces));
}

Status Bpe::TakeMerges(const Vocabulary& vocabulary) {
  ReserveMerges(vocabulary.merges->size());
  uint32_t rank = 0;
  for (const std::string& merge : *vocabulary.merges) {
    const auto parts = SplitMerge(merge);
    const auto left = parts ? IdOf(parts->first) : std::nullopt;
    const auto right = parts ? IdOf(parts->second) : std::nullopt;
    const auto joined =
        parts ? IdOf(std::string(parts->first) + std::string(parts->second)) : std::nullopt;
    if (!left || !right || !joined) {
      return Fail(Code::kCorruption,
                  "{}: merge {} is not two tokens that are a token together; put the model's "
                  "tokenizer.json beside the file",
                  vocabulary.file, rank);
    }
    AddMerge(PairOf(*left, *right), rank++, *joined);
  }
  return {};
}

Status Bpe::MergeByScore(const Vocabulary& vocabulary) {
  const size_t num_tokens = vocabulary.tokens.size();
  KV_ASSIGN(const ScoreMerges found, MergesByScore(vocabulary, MaxScoreMerges(num_tokens)));
  const std::vector<uint32_t> ranks = RanksByScore(vocabulary.tokens);
  ReserveMerges(found.merges.size());
  for (const auto& [left, right, joined] : found.merges) {
    AddMerge(PairOf(left, right), ranks[static_cast<size_t>(joined)], joined);
  }
  return {};
}

}  // namespace kvasir
