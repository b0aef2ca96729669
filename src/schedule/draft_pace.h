// DraftPace: how many drafted tokens of a request are right, and whether drafting it pays.
#pragma once

#include <array>
#include <cstdint>

#include "schedule/draft.h"

namespace kvasir {

// Drafts of one kind are as long a match from the same source.
inline constexpr uint32_t kNumDraftKinds = 4 * kNumDraftSources;
uint32_t KindOf(const Draft& draft);

// Decaying counts of drafted tokens that were looked at, and of those that were right.
class DraftCounts {
 public:
  // Returns the chance that a drafted token is right when those before it are; `mean` counts as
  // much as `weight` tokens.
  double Chance(uint32_t kind, double mean, double weight) const {
    return (right_[kind] + weight * mean) / (tried_[kind] + weight);
  }
  void Add(uint32_t kind, uint32_t num_drafted, uint32_t num_accepted);
  // Lets what is known of a kind count `kept` times as much: drafts of it were not tried.
  void Fade(uint32_t kind, double kept);

 private:
  std::array<double, kNumDraftKinds> right_{}, tried_{};
};

// The counts of a tenant's requests.
class DraftMeans {
 public:
  double Chance(uint32_t kind) const;
  DraftCounts& counts() { return counts_; }
  // Notes that drafts of a kind were not tried in so many steps. Those of a model are forgotten
  // more slowly: to try them again, it reads what it lacks.
  void CountUntried(uint32_t kind, uint32_t num_steps);

 private:
  DraftCounts counts_;
};

// The counts and speeds of one request. Its chances begin at its tenant's mean. Drafting is guarded
// by time: one in kPlainEvery steps that could draft goes without, and where drafts give fewer
// tokens a second than those, drafting stops for kFirstPause tokens, and for twice as many each
// time again. One thread.
class DraftPace {
 public:
  static constexpr uint32_t kPlainEvery = 32, kFirstPause = 64;
  static constexpr uint32_t kMinSteps = 16;  // with drafts, before they are judged

  double Chance(uint32_t kind, const DraftMeans& means) const;
  DraftCounts& counts() { return counts_; }
  // Notes that drafts of a kind were not tried in so many steps.
  void CountUntried(uint32_t kind, uint32_t num_steps);
  // Returns whether the next step may draft, when the request has so many tokens of answers.
  bool MayDraft(uint64_t answer_tokens) const;
  // Notes a step, of decoding alone, in which the request got num_tokens tokens a choice.
  // `could_draft`: there was something to draft.
  struct Step {
    bool drafted, could_draft;
    double num_tokens;
    uint64_t ns;
    uint64_t answer_tokens;  // after it
  };
  void AddStep(const Step& step);
  // Notes a step that could draft and did not, whose time says nothing.
  void NotePlain() { since_plain_ = 0; }

 private:
  // Decaying sums.
  struct Speed {
    double tokens = 0, ns = 0;
    void Add(double more_tokens, uint64_t more_ns);
    double rate() const { return ns > 0 ? tokens / ns : 0; }
  };

  DraftCounts counts_;
  Speed drafted_, plain_;
  uint32_t drafted_steps_ = 0;  // since drafting began, or began again
  uint32_t since_plain_ = 0;    // steps that drafted, since one that could and did not
  uint32_t pause_ = kFirstPause;
  uint64_t resume_at_ = 0;  // answer tokens
};

}  // namespace kvasir
