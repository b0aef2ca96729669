#include "schedule/beam_batch.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "base/check.h"
#include "schedule/request_answer.h"
#include "tensor/exp_sum.h"

namespace kvasir {

BeamBatch::BeamBatch(Runner& runner, KvCache& cache, Target target, uint32_t logit_rows)
    : runner_(runner), cache_(cache), target_(target) {
  steps_.reserve(logit_rows);
  if (cache.layout().num_cross_groups() == 0) return;
  rows_.resize(logit_rows);
  for (LogitRow& row : rows_) row.Reserve(runner.config().vocab_size);
  next_.reserve(kMaxBeams);
}

uint64_t BeamBatch::BytesFor(uint32_t vocab_size, uint32_t logit_rows, bool has_encoder) {
  return has_encoder ? logit_rows * LogitRow::BytesFor(vocab_size) : 0;
}

uint64_t BeamBatch::bytes() const {
  uint64_t bytes = 0;
  for (const LogitRow& row : rows_) bytes += row.bytes();
  return bytes;
}

// Begins a search. The tokens of the prompt after the first one have log probability 0.
void BeamBatch::BeginSearch(Request& request, std::span<const TokenId> end_tokens) {
  const GenerateRequest& spec = request.spec;
  const uint32_t forced = request.prompt_tokens() - 1;
  BeamOptions options{.beams = spec.beams->beams,
                      .hypotheses = spec.n,
                      .length_penalty = spec.beams->length_penalty,
                      .early_stopping = spec.beams->early_stopping,
                      .min_tokens = spec.min_tokens + forced,
                      .max_tokens = request.max_tokens + forced,
                      .no_repeat_ngram_size = spec.no_repeat_ngram_size,
                      .repetition_penalty = spec.sampling.repetition_penalty,
                      .start = spec.prompt[0],
                      .forced = std::nullopt,
                      .ends = spec.stop_ids};
  if (!spec.ignore_eos) {
    options.ends.insert(options.ends.end(), end_tokens.begin(), end_tokens.end());
  }
  if (forced > 0) options.forced = spec.prompt[1];
  request.answer.search = std::make_unique<BeamSearch>(options);
  request.answer.sequences.reserve(kMaxBeams);
  request.answer.unused_beams.reserve(kMaxBeams);
  if (forced > 0) request.answer.search->Advance({});
}

void BeamBatch::Run(std::span<const float> logits) {
  if (steps_.empty()) return;
  const size_t vocab = runner_.config().vocab_size;
  const uint32_t first = steps_.front().first_row;
  const uint32_t end = steps_.back().first_row + steps_.back().num_rows;
  const auto read = [&](uint32_t i) {
    rows_[first + i].Read(logits.subspan((first + i) * vocab, vocab), ExpSumFor(target_));
  };
  // Rows of other requests between them too, which are few. (A reference: a copy of `read` would
  // take memory.)
  runner_.ForEach(end - first, std::ref(read));
  runner_.ForEach(static_cast<uint32_t>(steps_.size()), [this](uint32_t i) {
    Step& step = steps_[i];
    const auto rows = std::span(rows_).subspan(step.first_row, step.num_rows);
    step.finite = std::ranges::all_of(rows, &LogitRow::finite);
    if (step.finite) step.request->answer.search->Advance(rows);
  });
}

Status BeamBatch::Follow(Request& request) {
  const std::span<const BeamSearch::Beam> beams = request.answer.search->beams();
  const uint32_t most = request.prompt_tokens() + request.max_tokens;
  auto& sequences = request.answer.sequences;
  auto& unused = request.answer.unused_beams;
  next_.clear();
  next_.resize(beams.size());
  const auto first_of = [&](size_t beam) {
    const auto same = [&](const auto& other) { return other.parent == beams[beam].parent; };
    return static_cast<size_t>(std::ranges::find_if(beams, same) - beams.begin());
  };
  for (size_t i = 0; i < beams.size(); ++i) {
    if (first_of(i) == i) next_[i] = std::move(sequences[beams[i].parent]);
  }
  std::erase(sequences, nullptr);
  for (auto& dropped : sequences) unused.push_back(std::move(dropped));
  sequences.clear();
  Status status;
  for (size_t i = 0; i < beams.size(); ++i) {
    if (!next_[i]) {
      const KvSequence& parent = next_[first_of(i)]->kv;
      if (unused.empty()) {
        AddSequence(request, cache_.Fork(parent, most), nullptr);
        next_[i] = std::move(sequences.back());
        sequences.pop_back();
      } else {
        next_[i] = std::move(unused.back());
        unused.pop_back();
        const Status forked = cache_.ForkInto(next_[i]->kv, parent);
        if (!forked) status = forked;
      }
    }
    const std::span<const TokenId> tokens = request.answer.search->tokens(static_cast<uint32_t>(i));
    next_[i]->tokens.assign(tokens.begin(), tokens.end());
  }
  std::swap(sequences, next_);
  next_.clear();
  for (uint32_t i = 0; i < sequences.size(); ++i) sequences[i]->choice = i;
  // Sequences that were dropped and have no successor yet hold no tokens.
  for (const auto& sequence : unused) KV_CHECK(cache_.Truncate(sequence->kv, 0));
  return status;
}

void BeamBatch::Add(Request& request, uint32_t row) {
  if (steps_.empty() || steps_.back().request != &request) {
    steps_.push_back({.request = &request, .first_row = row});
  }
  ++steps_.back().num_rows;
}

void BeamBatch::Zero() {
  for (LogitRow& row : rows_) row.Zero();
}

}  // namespace kvasir
