// CpuAttention: the softmax weights that rows gave to cached tokens, summed for a RetentionPolicy.
// K is read a second time, when the softmax of all runs is finished.
#include <algorithm>

#include "backend/cpu_attention.h"
#include "base/check.h"

namespace kvasir {

// Some rows of a sequence, for one KV head.
struct CpuAttention::SummedRows {
  const float* q[kMaxQueries];
  const float* softmax[kMaxQueries];
  uint32_t limit[kMaxQueries], begin[kMaxQueries];

  // Points the arguments at them.
  void Use(uint32_t head, AttentionKernels::Args* args) const {
    args->kv_head_begin = head;
    args->kv_head_end = head + 1;
    args->q = q;
    args->limit = limit;
    args->begin = begin;
  }
};

void CpuAttention::SumWeights(const Call& call, const Plan& plan, ThreadPool& pool) {
  for (const StepSequence& sequence : sequences_) {
    if (sequence.token_sums == nullptr) continue;
    pool.Run(o_.kv_heads, [&](uint32_t head, uint32_t thread) {
      SumTokens(call, plan, sequence, head, thread);
    });
  }
  if (!plan.is_full || scored_.empty()) return;
  const auto items = static_cast<uint32_t>(scored_.size()) * o_.kv_heads;
  const auto sum = [&](uint32_t item, uint32_t thread) {
    SumBlocks(call, plan, *scored_[item / o_.kv_heads], item % o_.kv_heads, thread);
  };
  if (plan.work >= kMinParallelWork) return pool.Run(items, sum);
  for (uint32_t item = 0; item < items; ++item) sum(item, 0);
}

// Sums the weights of a KV head over all rows, in order: the sums are the same however a prompt is
// cut.
void CpuAttention::SumTokens(const Call& call, const Plan& plan, const StepSequence& sequence,
                             uint32_t head, uint32_t thread) {
  SummedRows rows;
  float* sums =
      sequence.token_sums + (size_t{call.layer} * o_.kv_heads + head) * sequence.sums_stride;
  const PagedKv kv = KvOf(call, sequence);
  AttentionKernels::Args args = ArgsOf(call, sequence, kv, thread);
  rows.Use(head, &args);
  const uint32_t most = std::max(1u, kMaxQueries / group_);
  for (uint32_t first = 0; first < sequence.num_rows; first += most) {
    args.rows = std::min(most, sequence.num_rows - first);
    for (uint32_t i = 0; i < args.rows; ++i) {
      const size_t row = sequence.first_row + first + i;
      rows.q[i] = call.q + row * call.q_stride;
      rows.softmax[i] = softmax_ + (row * o_.heads + size_t{head} * group_) * 2;
      rows.limit[i] = Limit(plan, sequence, first + i);
      rows.begin[i] = FirstSeen(plan, sequence, rows.limit[i]);
    }
    args.span_end = static_cast<uint32_t>(CeilDiv(rows.limit[args.rows - 1], kAttentionSpan));
    kernels_.sum_weights(args, rows.softmax, &sums);
  }
}

// Does the same block by block, over the runs of a sequence and its tables.
void CpuAttention::SumBlocks(const Call& call, const Plan& plan, const StepSequence& sequence,
                             uint32_t head, uint32_t thread) {
  SummedRows rows;
  float* const sums = sequence.block_sums + (size_t{full_index_[call.layer]} * o_.kv_heads + head) *
                                                sequence.block_sums_stride;
  const KvLayout::Place place = o_.layout.place(call.layer);
  const uint32_t most = std::max(1u, kMaxQueries / group_);
  for (uint32_t first = sequence.scored_from; first < sequence.num_rows; first += most) {
    const uint32_t count = std::min(most, sequence.num_rows - first);
    for (uint32_t i = 0; i < count; ++i) {
      const size_t row = sequence.first_row + first + i;
      rows.q[i] = call.q + row * call.q_stride;
      rows.softmax[i] = softmax_ + (row * o_.heads + size_t{head} * group_) * 2;
    }
    const auto add = [&](const PagedKv& kv, uint32_t begin_block, float* to) {
      AttentionKernels::Args args = ArgsOf(call, sequence, kv, thread);
      rows.Use(head, &args);
      args.rows = count;
      args.span_begin = rows.begin[0] / kAttentionSpan;
      args.span_end = static_cast<uint32_t>(CeilDiv(rows.limit[count - 1], kAttentionSpan));
      kernels_.sum_blocks(args, rows.softmax, begin_block, &to);
    };
    for (const StepRun& run : sequence.runs) {
      if (run.query_position) continue;
      std::fill_n(rows.limit, count, run.last);
      std::fill_n(rows.begin, count, run.first);
      add(PagedKv(run.tables[place.group].bases().data(), o_.layout.layout(place.group),
                  place.slot),
          0, sums);
    }
    for (uint32_t i = 0; i < count; ++i) {
      rows.limit[i] = Limit(plan, sequence, first + i);
      rows.begin[i] = FirstSeen(plan, sequence, rows.limit[i]);
    }
    add(KvOf(call, sequence), sequence.begin / kRunTokens, sums + sequence.run_blocks());
  }
}

}  // namespace kvasir
