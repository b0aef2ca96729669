// CpuAttention: splits a step's attention into work items and runs them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "attention/kernels.h"
#include "backend/backend.h"
#include "backend/run_queries.h"
#include "base/thread_pool.h"

namespace kvasir {

// Decode rows are split by spans of context, with all kv heads in an item. Rows of several
// sequences that share blocks share an item, so that K and V are loaded once for all of them.
// Prefill rows are split by rows and kv heads, and so are all rows of a bounded sequence, whose
// runs an item walks in order. The bits do not depend on the split. One thread at a time.
class CpuAttention {
 public:
  CpuAttention(const BackendOptions& options, Arena& arena);

  // Forgets what the arena had, after it was zeroed.
  void OnZeroed() {
    for (AttentionScratch& scratch : scratch_) scratch.MakeQueries();
  }

  // Plans the items of a step: for each kind of groups, the same for all of its layers.
  void Begin(std::span<const StepSequence> sequences);

  // Backend::Attend.
  struct Call {
    uint32_t layer;
    const float* q;  // rows q_stride floats apart: [head][head_dim], scaled
    size_t q_stride;
    float* out;  // with runs from elsewhere, it has each row's query without rotation and scale
    size_t out_stride;
    std::optional<uint32_t> rope;  // that rotates the layer's queries, if one does
  };
  void Attend(const Call& call, ThreadPool& pool);

  // Returns the bytes of K and V with their scales that items have read since the start. Shared
  // reads of decode rows count once; each prefill item counts its own.
  uint64_t read_bytes() const { return read_bytes_; }

 private:
  static constexpr uint32_t kMaxQueries = 128;  // of an item of prefill or of a shared prefix

  // A row of decode: its spans' partials are units [unit, unit + spans), or the item merges all.
  struct Row {
    const StepSequence* sequence;
    uint32_t row;           // of the step
    uint32_t begin, limit;  // tokens it sees
    uint32_t unit;
    // Up to here, its full spans have the blocks of the row before in the plan.
    uint32_t shared;
  };
  // Rows of decode [first, first + rows) of the plan over some spans, all kv heads (`sequence`
  // null); or rows of a sequence over all spans and runs, `heads` kv heads from `head` on.
  struct Item {
    const StepSequence* sequence;
    uint32_t first, rows;
    uint32_t span_begin, span_end;
    uint32_t head, heads;
  };
  // The work of a step for the groups of one kind.
  struct Plan {
    uint32_t window;  // 0: all tokens up to the row's
    bool of_source;   // reach kCross: all tokens of the source
    bool is_full;     // reach kFull: StepSequence::is_bounded says whether rows see all
    uint32_t group;   // the first of them: where the others share blocks, this one does
    Row* rows;
    Item* items;
    uint32_t num_rows = 0, num_items = 0, num_units = 0;
    uint32_t spans_of_item = 1;
    uint64_t work = 0;         // multiply-adds of a layer
    uint64_t head_tokens = 0;  // tokens x kv heads that the items of a layer read
  };

  uint32_t Limit(const Plan& plan, const StepSequence& sequence, uint32_t row) const;
  static bool IsBounded(const Plan& plan, const StepSequence& sequence) {
    return plan.is_full && sequence.is_bounded();
  }
  static uint32_t FirstSeen(const Plan& plan, const StepSequence& sequence, uint32_t limit);
  void Fill(Plan& plan, std::span<const StepSequence> sequences);
  uint32_t SortRows(Plan& plan) const;
  void AddRange(Plan& plan, uint32_t begin, uint32_t end, uint32_t span) const;
  void AddRows(Plan& plan, const StepSequence& sequence, uint32_t rows, uint32_t heads) const;
  void AddWhole(Plan& plan, const StepSequence& sequence) const;
  void AttendAll(const Call& call, const Plan& plan, ThreadPool& pool);
  uint32_t TokensOf(const Plan& plan, const Item& item) const;
  PagedKv KvOf(const Call& call, const StepSequence& sequence) const;
  AttentionKernels::Args ArgsOf(const PagedKv& kv, uint32_t thread) const;
  // Adds the sequence's mask.
  AttentionKernels::Args ArgsOf(const Call& call, const StepSequence& sequence, const PagedKv& kv,
                                uint32_t thread) const;
  void RunItem(const Call& call, const Plan& plan, const Item& item, uint32_t thread);
  struct Queries;
  struct Heads {
    uint32_t begin, end;  // KV heads
  };
  void RunDecode(const Call& call, const Plan& plan, const Item& item, uint32_t thread);
  void RunRows(const Call& call, const Plan& plan, const Item& item, uint32_t thread);
  void AttendRun(const Call& call, const Item& item, const StepRun& run, Queries queries,
                 uint32_t thread);
  void Run(const Call& call, const Plan& plan, const Item& item, const StepSequence& sequence,
           Heads heads, const Queries& queries, size_t span_stride, uint32_t thread);
  void AttendItem(const Item& item, Heads heads, const Queries& queries,
                  AttentionKernels::Args* args) const;

  // cpu_attention_sums.cc
  struct SummedRows;
  void SumWeights(const Call& call, const Plan& plan, ThreadPool& pool);
  void SumTokens(const Call& call, const Plan& plan, const StepSequence& sequence, uint32_t head,
                 uint32_t thread);
  void SumBlocks(const Call& call, const Plan& plan, const StepSequence& sequence, uint32_t head,
                 uint32_t thread);

  void Clear(float* partial) const;
  void FinishHead(const Call& call, const float* partial, size_t row, size_t head);
  void Finish(const Call& call, const Row& row, uint32_t begin, uint32_t end);

  BackendOptions o_;
  const AttentionKernels& kernels_;
  uint32_t group_, partial_floats_, max_queries_, max_units_;
  std::vector<Plan> plans_;                // [kind]
  std::vector<AttentionScratch> scratch_;  // [thread]
  RunQueries run_queries_;
  float* unit_partials_;    // [unit][head][partial]
  float* thread_partials_;  // [thread][query][partial]
  float* softmax_;          // [row][head][m, l]: finished
  std::span<const StepSequence> sequences_;
  std::vector<const StepSequence*> scored_;  // of sequences_: with block_sums
  std::vector<uint32_t> full_index_;  // [layer]: how many layers of `full` groups come before
  uint64_t read_bytes_ = 0;
};

}  // namespace kvasir
