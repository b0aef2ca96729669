#include "backend/cpu_attention.h"

#include <algorithm>
#include <new>

#include "backend/backend.h"
#include "base/fault.h"

namespace kvasir {
namespace {

constexpr uint32_t kMaxQueries = 128;  // limit of an item of prefill or of a shared prefix
// Sequences with at most this many rows are split by spans of context, the others by rows.
constexpr uint32_t kMaxDecodeRows = 2;
constexpr uint32_t kMaxSpansOfItem = 4;  // several, because longer runs of blocks prefetch better
constexpr uint32_t kMinParallelUnits = 32;  // units to merge
constexpr uint32_t kNoUnit = ~uint32_t{0};

// The first token of the window of a row that sees the tokens below `limit`; 0 without a window.
uint32_t BeginOf(uint32_t limit, uint32_t window) {
  return window == 0 || limit <= window ? 0 : limit - window;
}

}  // namespace

CpuAttention::CpuAttention(const BackendOptions& options, Arena& arena)
    : o_(options),
      kernels_(AttentionKernelsFor(options.target)),
      group_(options.heads / options.kv_heads),
      partial_floats_(PartialFloats(options.head_dim)),
      max_queries_(std::max(kMaxQueries, kMaxTileRows * options.heads)),
      max_units_(std::max<uint32_t>(256, Spans(options.max_positions))) {
  rows_ = arena.TakeArray<Row>(options.max_rows);
  items_ = arena.TakeArray<Item>(uint64_t{max_units_} + options.max_rows * options.kv_heads);
  unit_partials_ = arena.TakeArray<float>(uint64_t{max_units_} * options.heads * partial_floats_);
  thread_partials_ =
      arena.TakeArray<float>(uint64_t{options.threads} * max_queries_ * partial_floats_);
  softmax_ = arena.TakeArray<float>(uint64_t{options.max_rows} * options.heads * 2);
  scratch_ = arena.TakeArray<AttentionScratch>(options.threads);
  for (uint32_t i = 0; i < options.threads; ++i) {
    const AttentionScratch scratch(options.head_dim, max_queries_, arena);
    if (scratch_ != nullptr) new (scratch_ + i) AttentionScratch(scratch);
  }
}

uint32_t CpuAttention::Spans(uint32_t limit) const {
  return static_cast<uint32_t>(CeilDiv(limit, kAttentionSpan));
}

// The number of tokens that a row sees: all up to itself.
uint32_t CpuAttention::Limit(const StepSequence& sequence, uint32_t row) const {
  const uint32_t limit = sequence.position + row + 1;
  const bool later_chunk = sequence.position > 0 && sequence.num_rows > 1 && row == 0;
  return later_chunk && FaultActive(Fault::kChunkEdge) ? limit - 1 : limit;
}

void CpuAttention::Begin(std::span<const StepSequence> sequences) {
  sequences_ = sequences;
  num_rows_ = num_items_ = num_units_ = 0;
  work_ = 0;
  uint32_t spans = 0;
  for (const StepSequence& sequence : sequences) {
    const uint32_t context = sequence.position + sequence.num_rows;
    work_ += uint64_t{sequence.num_rows} * context * o_.heads * o_.head_dim * 2;
    if (sequence.num_rows > kMaxDecodeRows) continue;
    AddDecodeRows(sequence);
    spans += sequence.num_rows * Spans(context);
  }
  spans_of_item_ = std::clamp(spans / (o_.threads * 8), 1u, kMaxSpansOfItem);
  const uint32_t with_units = SortRows();
  if (with_units > 0) AddRange(0, with_units, 0);
  for (uint32_t i = with_units; i < num_rows_; ++i) {
    items_[num_items_++] = {nullptr, i, 1, 0, Spans(rows_[i].limit), 0};
  }
  for (const StepSequence& sequence : sequences) {
    if (sequence.num_rows > kMaxDecodeRows) AddPrefill(sequence);
  }
  head_tokens_ = HeadTokens(/*window=*/0);
}

uint64_t CpuAttention::HeadTokens(uint32_t window) const {
  uint64_t tokens = 0;
  for (uint32_t i = 0; i < num_items_; ++i) {
    tokens += uint64_t{TokensOf(items_[i], window)} * (items_[i].sequence ? 1 : o_.kv_heads);
  }
  return tokens;
}

// The number of tokens of the item's spans that at least one of its rows sees.
uint32_t CpuAttention::TokensOf(const Item& item, uint32_t window) const {
  uint32_t limit = 0, begin = ~uint32_t{0};
  for (uint32_t i = item.first; i < item.first + item.rows; ++i) {
    const uint32_t of_row = item.sequence ? Limit(*item.sequence, i) : rows_[i].limit;
    limit = std::max(limit, of_row);
    begin = std::min(begin, BeginOf(of_row, window));
  }
  begin = std::max(begin, item.span_begin * kAttentionSpan);
  return std::max(begin, std::min(limit, item.span_end * kAttentionSpan)) - begin;
}

void CpuAttention::AddDecodeRows(const StepSequence& sequence) {
  for (uint32_t i = 0; i < sequence.num_rows; ++i) {
    rows_[num_rows_++] = {&sequence, sequence.first_row + i, Limit(sequence, i), kNoUnit, 0};
  }
}

// Sorts rows so that rows with the same first blocks are neighbours, and sets `shared`. Returns how
// many of the first rows got units. When the units are used up, there are enough items, and each
// item of the other rows merges all its spans.
uint32_t CpuAttention::SortRows() {
  // Full spans that lie in whole blocks of both rows, as far as the blocks are the same ones.
  const auto shared_spans = [&](const Row& a, const Row& b) {
    if (!a.sequence->masks.empty() || !b.sequence->masks.empty()) return uint32_t{0};
    const uint32_t full = std::min(a.limit, b.limit) / kAttentionSpan;
    uint32_t same = 0;
    for (uint32_t span = 0; span < full; ++span) {
      const uint32_t end =
          static_cast<uint32_t>(CeilDiv((span + 1) * kAttentionSpan, o_.block_tokens));
      while (same < end && a.sequence->blocks[same] == b.sequence->blocks[same]) ++same;
      if (same < end) return span;
    }
    return full;
  };
  std::sort(rows_, rows_ + num_rows_, [&](const Row& a, const Row& b) {
    const uint32_t blocks = std::min(a.limit, b.limit) / o_.block_tokens;
    for (uint32_t i = 0; i < blocks; ++i) {
      std::byte *of_a = a.sequence->blocks[i], *of_b = b.sequence->blocks[i];
      if (of_a != of_b) return of_a < of_b;
    }
    return a.limit != b.limit ? a.limit < b.limit : a.row < b.row;
  });
  for (uint32_t i = 0; i < num_rows_; ++i) {
    Row& row = rows_[i];
    const uint32_t need = Spans(row.limit);
    if (num_units_ + need > max_units_) return i;
    row.shared = i == 0 ? 0 : shared_spans(rows_[i - 1], row);
    row.unit = num_units_;
    num_units_ += need;
  }
  return num_rows_;
}

// Adds items for rows [begin, end) from `span` on; the rows share all spans before.
void CpuAttention::AddRange(uint32_t begin, uint32_t end, uint32_t span) {
  uint32_t until = Spans(rows_[begin].limit);
  for (uint32_t i = begin + 1; i < end; ++i) until = std::min(until, rows_[i].shared);
  AddSpans(begin, end, span, until);
  if (end - begin == 1) return;
  for (uint32_t from = begin, i = begin + 1; i <= end; ++i) {
    if (i < end && rows_[i].shared > until) continue;
    AddRange(from, i, until);
    from = i;
  }
}

void CpuAttention::AddSpans(uint32_t begin, uint32_t end, uint32_t span_begin, uint32_t span_end) {
  const uint32_t max_rows = std::max(1u, kMaxQueries / group_);
  for (uint32_t first = begin; first < end; first += max_rows) {
    const uint32_t rows = std::min(max_rows, end - first);
    for (uint32_t span = span_begin; span < span_end; span += spans_of_item_) {
      const uint32_t span_stop = std::min(span_end, span + spans_of_item_);
      items_[num_items_++] = {nullptr, first, rows, span, span_stop, 0};
    }
  }
}

void CpuAttention::AddPrefill(const StepSequence& sequence) {
  const uint32_t block = std::max(1u, kMaxQueries / group_);
  // The last rows see most, so they come first: otherwise one thread would end with a long item.
  for (uint32_t end = sequence.num_rows; end > 0;) {
    const uint32_t rows = std::min(block, end);
    end -= rows;
    const uint32_t spans = Spans(Limit(sequence, end + rows - 1));
    for (uint32_t head = 0; head < o_.kv_heads; ++head) {
      items_[num_items_++] = {&sequence, end, rows, 0, spans, head};
    }
  }
}

void CpuAttention::Attend(const Call& call, ThreadPool& pool) {
  AttendAll(call, pool);
  const uint64_t head_tokens = call.window == 0 ? head_tokens_ : HeadTokens(call.window);
  for (const BlockPart& part : {call.layout.key(call.layer), call.layout.value(call.layer)}) {
    const uint64_t scales = TraitsOf(part.format).scaled ? kRunTokens * sizeof(uint16_t) : 0;
    read_bytes_ += head_tokens * (part.run_bytes + scales) / kRunTokens;
  }
  for (const StepSequence& sequence : sequences_) {
    if (sequence.token_sums == nullptr) continue;
    pool.Run(o_.kv_heads,
             [&](uint32_t head, uint32_t thread) { SumWeights(call, sequence, head, thread); });
  }
}

void CpuAttention::AttendAll(const Call& call, ThreadPool& pool) {
  if (work_ < kMinParallelWork) {
    for (uint32_t i = 0; i < num_items_; ++i) RunItem(call, items_[i], 0);
    for (uint32_t i = 0; i < num_rows_; ++i) Finish(call, rows_[i], 0, o_.heads);
    return;
  }
  pool.Run(num_items_, [&](uint32_t i, uint32_t thread) { RunItem(call, items_[i], thread); });
  if (num_units_ < kMinParallelUnits) {
    for (uint32_t i = 0; i < num_rows_; ++i) Finish(call, rows_[i], 0, o_.heads);
    return;
  }
  pool.Run(num_rows_ * o_.kv_heads, [&](uint32_t i, uint32_t) {
    const uint32_t head = i % o_.kv_heads * group_;
    Finish(call, rows_[i / o_.kv_heads], head, head + group_);
  });
}

// The arguments that all items of a sequence share.
AttentionKernels::Args CpuAttention::ArgsOf(const Call& call, const StepSequence& sequence,
                                            const PagedKv& kv, uint32_t thread) const {
  AttentionKernels::Args args{};
  args.kv = &kv;
  args.scratch = scratch_ + thread;
  args.group = group_;
  if (!sequence.masks.empty()) args.mask = sequence.masks[call.layer];
  return args;
}

void CpuAttention::RunItem(const Call& call, const Item& item, uint32_t thread) {
  if (item.sequence == nullptr) return RunDecode(call, item, thread);
  RunPrefill(call, item, thread);
}

void CpuAttention::RunDecode(const Call& call, const Item& item, uint32_t thread) {
  const float* q[kMaxQueries];
  uint32_t limit[kMaxQueries], begin[kMaxQueries];
  float* partial[kMaxQueries];
  const size_t unit_floats = size_t{o_.heads} * partial_floats_;
  const bool whole = rows_[item.first].unit == kNoUnit;
  for (uint32_t i = 0; i < item.rows; ++i) {
    const Row& row = rows_[item.first + i];
    q[i] = call.q + row.row * call.q_stride;
    // Several rows share only full spans.
    limit[i] = std::min(row.limit, item.span_end * kAttentionSpan);
    begin[i] = BeginOf(row.limit, call.window);
    partial[i] = whole ? thread_partials_ + size_t{thread} * max_queries_ * partial_floats_
                       : unit_partials_ + (row.unit + item.span_begin) * unit_floats;
    const size_t spans = whole ? 1 : item.span_end - item.span_begin;
    for (size_t p = 0; p < spans * o_.heads; ++p) Clear(partial[i] + p * partial_floats_);
  }
  const StepSequence& sequence = *rows_[item.first].sequence;
  const PagedKv kv(sequence.blocks.data(), call.layout, call.layer);
  AttentionKernels::Args args = ArgsOf(call, sequence, kv, thread);
  args.rows = item.rows;
  args.kv_head_end = o_.kv_heads;
  args.span_begin = item.span_begin;
  args.span_end = item.span_end;
  args.q = q;
  args.limit = limit;
  if (call.window > 0) args.begin = begin;
  args.partial = partial;
  args.span_stride = whole ? 0 : unit_floats;
  kernels_.attend(args);
  if (!whole) return;
  for (uint32_t head = 0; head < o_.heads; ++head) {
    FinishHead(call, partial[0] + size_t{head} * partial_floats_, rows_[item.first].row, head);
  }
}

void CpuAttention::RunPrefill(const Call& call, const Item& item, uint32_t thread) {
  const float* q[kMaxQueries];
  uint32_t limit[kMaxQueries], begin[kMaxQueries];
  float* partial[kMaxQueries];
  float* scratch = thread_partials_ + size_t{thread} * max_queries_ * partial_floats_;
  for (uint32_t i = 0; i < item.rows; ++i) {
    q[i] = call.q + (item.sequence->first_row + item.first + i) * call.q_stride;
    limit[i] = Limit(*item.sequence, item.first + i);
    begin[i] = BeginOf(limit[i], call.window);
    partial[i] = scratch + size_t{i} * group_ * partial_floats_;
    for (uint32_t g = 0; g < group_; ++g) Clear(partial[i] + size_t{g} * partial_floats_);
  }
  const PagedKv kv(item.sequence->blocks.data(), call.layout, call.layer);
  AttentionKernels::Args args = ArgsOf(call, *item.sequence, kv, thread);
  args.rows = item.rows;
  args.kv_head_begin = item.head;
  args.kv_head_end = item.head + 1;
  args.span_begin = item.span_begin;
  args.span_end = item.span_end;
  args.q = q;
  args.limit = limit;
  if (call.window > 0) args.begin = begin;
  args.partial = partial;
  kernels_.attend(args);
  for (uint32_t i = 0; i < item.rows * group_; ++i) {
    const size_t row = item.sequence->first_row + item.first + i / group_;
    FinishHead(call, scratch + size_t{i} * partial_floats_, row, item.head * group_ + i % group_);
  }
}

// Sums a kv head's weights, all rows in order, so that the sums do not depend on the chunks of a
// prompt.
void CpuAttention::SumWeights(const Call& call, const StepSequence& sequence, uint32_t head,
                              uint32_t thread) {
  const float* q[kMaxQueries];
  const float* softmax[kMaxQueries];
  uint32_t limit[kMaxQueries], begin[kMaxQueries];
  float* sums =
      sequence.token_sums + (size_t{call.layer} * o_.kv_heads + head) * sequence.sums_stride;
  const PagedKv kv(sequence.blocks.data(), call.layout, call.layer);
  AttentionKernels::Args args = ArgsOf(call, sequence, kv, thread);
  args.kv_head_begin = head;
  args.kv_head_end = head + 1;
  args.q = q;
  args.limit = limit;
  if (call.window > 0) args.begin = begin;
  const uint32_t block = std::max(1u, kMaxQueries / group_);
  for (uint32_t first = 0; first < sequence.num_rows; first += block) {
    args.rows = std::min(block, sequence.num_rows - first);
    for (uint32_t i = 0; i < args.rows; ++i) {
      const size_t row = sequence.first_row + first + i;
      q[i] = call.q + row * call.q_stride;
      softmax[i] = softmax_ + (row * o_.heads + size_t{head} * group_) * 2;
      limit[i] = Limit(sequence, first + i);
      begin[i] = BeginOf(limit[i], call.window);
    }
    args.span_end = Spans(limit[args.rows - 1]);
    kernels_.sum_weights(args, softmax, &sums);
  }
}

void CpuAttention::Clear(float* partial) const {
  std::fill_n(partial, partial_floats_, 0.0f);
  partial[partial_floats_ - 2] = -__builtin_inff();
}

// Writes a head's result, and keeps its softmax.
void CpuAttention::FinishHead(const Call& call, const float* partial, size_t row, size_t head) {
  kernels_.finish(partial, o_.head_dim, call.out + row * call.out_stride + head * o_.head_dim);
  std::copy_n(partial + partial_floats_ - 2, 2, softmax_ + (row * o_.heads + head) * 2);
}

// Merges a decode row's spans in order and writes the result, for heads [begin, end).
void CpuAttention::Finish(const Call& call, const Row& row, uint32_t begin, uint32_t end) {
  if (row.unit == kNoUnit) return;
  const uint32_t spans = Spans(row.limit);
  const size_t unit_floats = size_t{o_.heads} * partial_floats_;
  for (uint32_t head = begin; head < end; ++head) {
    float* merged = unit_partials_ + row.unit * unit_floats + size_t{head} * partial_floats_;
    for (uint32_t span = 1; span < spans; ++span) {
      kernels_.merge(merged, merged + span * unit_floats, o_.head_dim);
    }
    FinishHead(call, merged, row.row, head);
  }
}

}  // namespace kvasir
