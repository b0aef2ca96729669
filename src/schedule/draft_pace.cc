#include "schedule/draft_pace.h"

#include <algorithm>
#include <cmath>

namespace kvasir {
namespace {

constexpr double kKeptCounts = 0.95;   // of the counts of a kind, after each draft of it
constexpr double kKeptUntried = 0.99;  // after each step in which it was not tried
constexpr double kKeptUntriedModel = 0.999;
constexpr double kKeptSpeed = 0.9;  // after each step
// A mean counts as so many tokens: a few drafts of a request outweigh it.
constexpr double kMeanWeight = 4, kDefaultWeight = 8;
// What is right of drafts before anything was measured, by KindOf: 30 files rewritten as their
// commits do, and quotes; of a draft model, a usual figure.
constexpr double kDefaults[kNumDraftKinds] = {0.4, 0.6, 0.8, 0.9, 0.4, 0.6,
                                              0.8, 0.9, 0.6, 0.6, 0.6, 0.6};

}  // namespace

uint32_t KindOf(const Draft& draft) {
  const uint32_t length = draft.num_equal < 3    ? 0
                          : draft.num_equal < 8  ? 1
                          : draft.num_equal < 16 ? 2
                                                 : 3;
  return static_cast<uint32_t>(draft.source) * 4 + length;
}

void DraftCounts::Add(uint32_t kind, uint32_t num_drafted, uint32_t num_accepted) {
  right_[kind] = right_[kind] * kKeptCounts + num_accepted;
  tried_[kind] = tried_[kind] * kKeptCounts + std::min(num_drafted, num_accepted + 1);
}

void DraftCounts::Fade(uint32_t kind, double kept) {
  right_[kind] *= kept;
  tried_[kind] *= kept;
}

double DraftMeans::Chance(uint32_t kind) const {
  return counts_.Chance(kind, kDefaults[kind], kDefaultWeight);
}

void DraftMeans::CountUntried(uint32_t kind, uint32_t num_steps) {
  const bool of_model = kind >= KindOf({.source = DraftSource::kModel});
  counts_.Fade(kind, std::pow(of_model ? kKeptUntriedModel : kKeptUntried, num_steps));
}

double DraftPace::Chance(uint32_t kind, const DraftMeans& means) const {
  return counts_.Chance(kind, means.Chance(kind), kMeanWeight);
}

void DraftPace::CountUntried(uint32_t kind, uint32_t num_steps) {
  counts_.Fade(kind, std::pow(kKeptUntried, num_steps));
}

bool DraftPace::MayDraft(uint64_t answer_tokens) const {
  return answer_tokens >= resume_at_ && since_plain_ + 1 < kPlainEvery;
}

void DraftPace::Speed::Add(double more_tokens, uint64_t more_ns) {
  tokens = tokens * kKeptSpeed + more_tokens;
  ns = ns * kKeptSpeed + static_cast<double>(more_ns);
}

void DraftPace::AddStep(const Step& step) {
  if (!step.drafted) {
    plain_.Add(step.num_tokens, step.ns);
    if (step.could_draft) NotePlain();
    return;
  }
  drafted_.Add(step.num_tokens, step.ns);
  ++since_plain_;
  if (++drafted_steps_ < kMinSteps || plain_.ns == 0) return;
  if (drafted_.rate() >= plain_.rate()) {
    pause_ = kFirstPause;
    return;
  }
  resume_at_ = step.answer_tokens + pause_;
  pause_ = std::min(pause_ * 2, uint32_t{1} << 20);
  drafted_steps_ = 0;
  drafted_ = {};
}

}  // namespace kvasir
