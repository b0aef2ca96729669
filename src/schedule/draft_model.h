// DraftModel: drafts of a second, smaller model.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cache/identity.h"
#include "cache/kv_cache.h"
#include "model/runner.h"
#include "schedule/drafter.h"
#include "schedule/format_steps.h"
#include "schedule/request.h"
#include "schedule/scheduler_options.h"
#include "schedule/step_cost.h"
#include "schedule/tenant_book.h"
#include "schedule/token_chooser.h"

namespace kvasir {

// Drafts the next tokens of sequences for which neither the cache's memory nor a prediction has a
// draft that gives as many tokens a second: it draws them as the model's own are drawn (same random
// numbers, parameters and format) from the logits of another model. That has a separate KvCache,
// with the same owners and salts, and runs between the model's steps. It reads a prompt only where
// drafts are expected to save more time in the rest of the answer; where its cache has no room, it
// drafts nothing. Its KV of drafted tokens is committed when they are accepted. Allocates nothing
// while a sequence is drafted, except for a format. Engine thread only.
class DraftModel {
 public:
  // A sequence has at most so many tokens to compute when it is drafted; before, it is read.
  static constexpr uint32_t kMostBehind = 4;

  // Keeps references: all must outlive it. `model`: for which it drafts.
  DraftModel(const DraftModelParts& parts, const SchedulerOptions& options, const Runner& model,
             const Drafter& drafter, TokenChooser& chooser, TenantBook& tenants,
             FormatSteps& format_steps);
  ~DraftModel();
  // Return the exact bytes of logits that the constructor will allocate, and did allocate.
  static uint64_t BytesFor(uint32_t draft_vocab_size, uint32_t vocab_size, uint32_t parallel) {
    return uint64_t{parallel} * std::max(draft_vocab_size, vocab_size) * sizeof(float);
  }
  uint64_t bytes() const { return logits_.capacity() * sizeof(float); }

  // Fills in the drafts of running sequences that decode and have none, or have one that gives
  // fewer tokens a second. `cost`: of the model's steps.
  void Fill(std::span<const std::unique_ptr<Request>> running, const StepCost& cost);
  // Returns how long the last Fill took to draft, without what it read of prompts.
  uint64_t last_ns() const { return last_ns_; }
  // Gives back the KV of sequences that ended or do not run any more. What they have stays in its
  // cache, for the next turn.
  void Sweep(std::span<const std::unique_ptr<Request>> running);
  // Gives back the KV of sequences whose cache owner is such a one, since some of it will be
  // forgotten, and of those that do not run any more.
  void DropOf(std::span<const std::unique_ptr<Request>> running,
              const std::function<bool(const std::string&)>& is_owner);
  // Zeroes what earlier steps left in memory.
  void Zero();
  void CheckInvariants() const { cache_.CheckInvariants(); }

 private:
  struct Slot;  // what it has of a sequence
  struct Pace {
    uint32_t longest = 0;  // tokens of a draft that give most tokens a second
    double saved_ns = 0;   // for each token of the answer
    double rate = 0;       // tokens a nanosecond
  };
  // What its steps took.
  struct Times {
    StepCost cost;
    bool has_drafted = false;    // steps of few rows too: those of prompts alone say too much
    uint32_t since_drafted = 0;  // Fills
  };

  void FindWishes(std::span<const std::unique_ptr<Request>> running, const StepCost& cost);
  bool Outdoes(Slot& slot, uint32_t most, const StepCost& cost) const;
  void GiveBack(Slot& slot);
  void DraftWishes(const StepCost& cost);
  Slot& SlotOf(Request& request, Sequence& sequence);
  void Release(Slot& slot);
  static void Accept(Slot& slot, std::span<const TokenId> known, KvCache& cache);
  bool Begin(Slot& slot, const Pace& together, const StepCost& cost);
  bool ReadingPays(const Slot& slot, const Pace& together, uint32_t unread,
                   const StepCost& cost) const;
  void ForgetOldTimes();
  bool CanRead(std::span<const TokenId> tokens) const;
  double StepNs(uint32_t rows, const StepCost& cost) const;
  Pace PaceOf(std::span<const Slot* const> slots, const StepCost& cost) const;
  Pace PaceOf(std::span<const Slot* const> slots, const StepCost& cost, double draft_ns) const;
  void ReadPrompts(const StepCost& cost);
  void Read(const StepCost& cost);
  void DraftTokens(uint32_t longest);
  void ClearStep() {
    in_step_.clear();
    sequences_.clear();
    tokens_.clear();
  }
  bool AddRows(Slot& slot, std::span<const TokenId> tokens);
  bool RunRows(bool draws);
  void Draw();
  void UseDrawn(TokenChooser::Draw& draw);
  TokenId Replayed(const Request& request, const Sequence& shadow, TokenId drawn) const;

  Runner& runner_;
  KvCache& cache_;
  const DraftModelParts parts_;
  const SchedulerOptions& options_;
  const uint32_t vocab_size_;     // of the model for which it drafts
  const uint64_t weights_bytes_;  // of that model
  const Drafter& drafter_;
  TokenChooser& chooser_;
  TenantBook& tenants_;
  FormatSteps& format_steps_;
  Times times_;
  std::vector<std::unique_ptr<Slot>> slots_;  // [parallel]
  std::vector<Slot*> wishes_;                 // that are drafted by this Fill
  std::vector<Slot*> in_step_;                // whose rows are in a step
  std::vector<StepSequence> sequences_;       // [in_step_]
  std::vector<TokenId> tokens_;               // of the step
  std::vector<const float*> hidden_;          // [in_step_]: of the last rows
  std::vector<float> logits_;                 // [parallel][the larger vocabulary]
  uint64_t last_ns_ = 0;
};

}  // namespace kvasir
