// Drafts: tokens that may come next in an answer, which one step of the model checks together.
#pragma once

#include <array>
#include <cstdint>
#include <numeric>

namespace kvasir {

// Whether answers are drafted ahead. kAuto: where that gives more tokens a second. kAlways: as long
// as a draft may be. No choice changes an answer.
enum class Speculate : uint8_t { kAuto, kAlways, kOff };

inline constexpr uint32_t kMaxDraft = 32;  // tokens of a draft, at most

// Where a draft comes from: what the namespace's cache has (or the answer's own tokens, where the
// request shares nothing), the prediction that came with the request, or the draft model.
enum class DraftSource : uint8_t { kMemory, kPrediction, kModel };
inline constexpr uint32_t kNumDraftSources = 3;

// What drafts did for one request.
struct DraftReceipt {
  uint32_t steps = 0;                                            // of a choice, with drafted tokens
  std::array<uint32_t, kNumDraftSources> drafted{}, accepted{};  // tokens, by DraftSource

  uint32_t all_drafted() const { return std::accumulate(drafted.begin(), drafted.end(), 0u); }
  uint32_t all_accepted() const { return std::accumulate(accepted.begin(), accepted.end(), 0u); }
  void Add(const DraftReceipt& other) {
    steps += other.steps;
    for (uint32_t i = 0; i < kNumDraftSources; ++i) {
      drafted[i] += other.drafted[i];
      accepted[i] += other.accepted[i];
    }
  }
};

// What drafts did since the start.
struct DraftStats {
  uint64_t drafts = 0, drafted = 0, accepted = 0;  // drafts; tokens
  std::array<uint64_t, kMaxDraft> accepted_at{};   // tokens, by their place in the draft
};

}  // namespace kvasir
