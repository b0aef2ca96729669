#include "sampling/beam_search.h"

#include <algorithm>
#include <limits>

#include "base/check.h"
#include "sampling/logit_scan.h"
#include "simd/math.h"

namespace kvasir {
namespace {

constexpr float kImpossible = -std::numeric_limits<float>::infinity();

}  // namespace

void LogitRow::Reserve(uint32_t num_logits) { block_max_.reserve(LogitBlocks(num_logits)); }

uint64_t LogitRow::BytesFor(uint32_t num_logits) { return LogitBlocks(num_logits) * sizeof(float); }

bool LogitRow::Read(std::span<const float> logits, ExpSum exp_sum) {
  KV_CHECK(!logits.empty());
  logits_ = logits;
  const auto size = static_cast<uint32_t>(logits.size());
  block_max_.resize(LogitBlocks(size));
  finite_ = MaxOfBlocks(logits, block_max_.data());
  if (!finite_) return false;
  max_ = *std::ranges::max_element(block_max_);
  log_sum_ = static_cast<float>(Log(double{exp_sum(logits.data(), size, max_)}));
  return true;
}

BeamSearch::BeamSearch(const BeamOptions& options)
    : options_(options),
      stride_(options.max_tokens + 1),
      num_kept_(std::max<uint32_t>(2, 1 + static_cast<uint32_t>(options.ends.size())) *
                options.beams) {
  KV_CHECK(options.beams > 0 && options.hypotheses <= options.beams && options.max_tokens > 0 &&
           options.repetition_penalty > 0);
  const size_t beams = options.beams;
  for (auto& tokens : tokens_) tokens.resize(beams * stride_);
  finished_tokens_.resize((beams + 1) * stride_);
  beams_.reserve(beams);
  kept_.reserve(num_kept_);
  finished_.reserve(beams + 1);
  changed_.reserve(2 * size_t{stride_} + options.ends.size());
  beams_.push_back({.parent = 0, .token = options.start, .sum = 0});
  tokens_[0][0] = options.start;
}

uint64_t BeamSearch::BytesFor(uint32_t beams, uint32_t max_tokens) {
  return (3 * uint64_t{beams} + 1) * (uint64_t{max_tokens} + 1) * sizeof(TokenId) +
         beams * (sizeof(Beam) + 2 * sizeof(Candidate) + sizeof(Finished));
}

bool BeamSearch::Better(const Candidate& a, const Candidate& b) {
  if (a.sum != b.sum) return a.sum > b.sum;
  return a.beam != b.beam ? a.beam < b.beam : a.id < b.id;
}

std::span<const TokenId> BeamSearch::tokens(uint32_t beam) const {
  return std::span(tokens_[side_]).subspan(size_t{beam} * stride_, length_ + 1);
}

bool BeamSearch::IsEnd(TokenId id) const {
  return std::ranges::find(options_.ends, id) != options_.ends.end();
}

float BeamSearch::ScoreOf(float sum, uint32_t length) const {
  const float score = sum / static_cast<float>(Exp(double{options_.length_penalty} * Log(length)));
  return std::max(score, std::numeric_limits<float>::lowest());  // JSON has no infinity
}

// Keeps a candidate if it is among the best num_kept_.
void BeamSearch::Offer(const Candidate& candidate) {
  if (candidate.sum == kImpossible) return;
  if (kept_.size() == num_kept_) {
    if (!Better(candidate, kept_.front())) return;
    std::ranges::pop_heap(kept_, Better);
    kept_.pop_back();
  }
  kept_.push_back(candidate);
  std::ranges::push_heap(kept_, Better);
}

void BeamSearch::Change(TokenId id, const LogitRow& row) {
  if (static_cast<size_t>(id) >= row.logits().size() || id < 0) return;
  const float p = row.LogProbability(row.logits()[static_cast<size_t>(id)]);
  const float penalty = options_.repetition_penalty;
  changed_.push_back({id, p < 0 ? p * penalty : p / penalty});
}

// Finds the tokens of a beam that repetition_penalty, no_repeat_ngram_size or min_tokens change, by
// id.
void BeamSearch::FindChanged(uint32_t beam, const LogitRow& row) {
  changed_.clear();
  const std::span<const TokenId> said = tokens(beam);
  if (options_.repetition_penalty != 1) {
    for (const TokenId id : said) Change(id, row);
  }
  ForEachRepeat(said, options_.no_repeat_ngram_size, [&](TokenId id) {
    changed_.push_back({id, kImpossible});
  });
  if (length_ < options_.min_tokens) {
    for (const TokenId id : options_.ends) changed_.push_back({id, kImpossible});
  }
  // A forbidden token stays so, whatever else changes it.
  std::ranges::sort(changed_, [](const Changed& a, const Changed& b) {
    return a.id != b.id ? a.id < b.id : a.log_probability < b.log_probability;
  });
  const auto rest = std::ranges::unique(changed_, {}, &Changed::id);
  changed_.erase(rest.begin(), rest.end());
}

void BeamSearch::CollectRow(uint32_t beam, const LogitRow& row) {
  const float sum = beams_[beam].sum;
  FindChanged(beam, row);
  for (const Changed& one : changed_) Offer({sum + one.log_probability, beam, one.id});
  const std::span<const float> logits = row.logits();
  for (size_t begin = 0; begin < logits.size(); begin += kLogitBlock) {
    // What a block has at best; rounding keeps the order of logits.
    const float most = sum + row.LogProbability(row.block_max(begin / kLogitBlock));
    const auto full = [&] { return kept_.size() == num_kept_; };
    if (full() && !Better({most, beam, static_cast<TokenId>(begin)}, kept_.front())) continue;
    const size_t end = std::min(begin + kLogitBlock, logits.size());
    for (size_t i = begin; i < end; ++i) {
      const Candidate candidate{sum + row.LogProbability(logits[i]), beam, static_cast<TokenId>(i)};
      if (full() && !Better(candidate, kept_.front())) continue;
      if (!std::ranges::binary_search(changed_, candidate.id, {}, &Changed::id)) Offer(candidate);
    }
  }
}

void BeamSearch::Advance(std::span<const LogitRow> rows) {
  KV_CHECK(!done_ && (!NeedsRows() || rows.size() == beams_.size()));
  kept_.clear();
  if (NeedsRows()) {
    for (uint32_t beam = 0; beam < beams_.size(); ++beam) CollectRow(beam, rows[beam]);
  } else {
    kept_.push_back({0, 0, *options_.forced});
  }
  std::ranges::sort(kept_, Better);
  ++length_;
  const bool last = length_ == options_.max_tokens;
  // Only what is among the best `beams` may end; the rest stands in for what ends.
  const auto ends = [&](const Candidate& one) { return last || IsEnd(one.id); };
  for (size_t i = 0; i < kept_.size() && i < options_.beams; ++i) {
    const Candidate& one = kept_[i];
    if (ends(one)) Finish({beam_tokens(side_, one.beam), length_}, one.id, one.sum);
  }
  const uint32_t from = side_, to = 1 - side_;
  beams_.clear();
  for (const Candidate& one : kept_) {
    if (ends(one) || beams_.size() == options_.beams) continue;
    TokenId* tokens = beam_tokens(to, static_cast<uint32_t>(beams_.size()));
    std::copy_n(beam_tokens(from, one.beam), length_, tokens);
    tokens[length_] = one.id;
    beams_.push_back({.parent = one.beam, .token = one.id, .sum = one.sum});
  }
  side_ = to;
  done_ = beams_.empty() || !CanImprove();
  if (done_) beams_.clear();
}

// Puts tokens and perhaps one more among the finished ones, after those with their score. The
// worst of too many goes.
void BeamSearch::Finish(std::span<const TokenId> tokens, std::optional<TokenId> last, float sum) {
  const float score = ScoreOf(sum, length_);
  const auto place = std::ranges::upper_bound(finished_, score, std::greater(), &Finished::score);
  const bool full = finished_.size() == options_.beams;
  if (full && place == finished_.end()) return;
  // One more slot than there are finished ones: the free one is taken before the worst goes.
  uint32_t slot = 0;
  while (std::ranges::find(finished_, slot, &Finished::slot) != finished_.end()) ++slot;
  TokenId* to = finished_tokens_.data() + size_t{slot} * stride_;
  std::ranges::copy(tokens, to);
  if (last) to[tokens.size()] = *last;
  finished_.insert(place, {score, slot, length_ + 1, last && IsEnd(*last)});
  if (full) finished_.pop_back();
}

void BeamSearch::End() {
  for (uint32_t beam = 0; beam < beams_.size(); ++beam) {
    if (length_ > 0) Finish(tokens(beam), std::nullopt, beams_[beam].sum);
  }
  beams_.clear();
  done_ = true;
}

// Returns whether the beams at hand, best first, could still give a hypothesis that is wanted.
bool BeamSearch::CanImprove() const {
  if (finished_.size() < options_.beams) return true;
  if (options_.early_stopping == EarlyStopping::kTrue) return false;
  const bool longest =
      options_.early_stopping == EarlyStopping::kNever && options_.length_penalty > 0;
  const float best = ScoreOf(beams_.front().sum, longest ? options_.max_tokens : length_);
  return best > finished_.back().score;
}

std::vector<BeamSearch::Hypothesis> BeamSearch::best() const {
  std::vector<Hypothesis> best;
  for (size_t i = 0; i < finished_.size() && i < options_.hypotheses; ++i) {
    const Finished& one = finished_[i];
    const auto all = std::span<const TokenId>(finished_tokens_);
    best.push_back({all.subspan(size_t{one.slot} * stride_, one.size), one.score, one.ended});
  }
  return best;
}

}  // namespace kvasir
