#include "backend/cpu_attention.h"

#include <algorithm>
#include <new>

#include "backend/backend.h"
#include "base/check.h"
#include "base/fault.h"

namespace kvasir {
namespace {

// Sequences with at most this many rows are split by spans of context, the others by rows.
constexpr uint32_t kMaxDecodeRows = 2;
constexpr uint32_t kMaxSpansOfItem = 4;  // several, because longer runs of blocks prefetch better
constexpr uint32_t kMinParallelUnits = 32;  // units to merge
constexpr uint32_t kNoUnit = ~uint32_t{0};

uint32_t Spans(uint32_t limit) { return static_cast<uint32_t>(CeilDiv(limit, kAttentionSpan)); }

// Returns the first token that a row sees whose own is the last below `limit`.
uint32_t BeginOf(uint32_t limit, uint32_t window) {
  return static_cast<uint32_t>(WindowBegin(limit - 1, window));
}

}  // namespace

CpuAttention::CpuAttention(const BackendOptions& options, Arena& arena)
    : o_(options),
      kernels_(AttentionKernelsFor(options.target)),
      group_(options.heads / options.kv_heads),
      partial_floats_(PartialFloats(options.head_dim)),
      max_queries_(std::max(kMaxQueries, kMaxTileRows * options.heads)),
      max_units_(std::max<uint32_t>(256, Spans(options.max_positions))),
      run_queries_(o_, max_queries_, arena) {
  for (const KvKind& kind : options.layout.kinds()) {
    plans_.push_back({.window = kind.reach.window,
                      .of_source = kind.reach.kind == KvReach::Kind::kCross,
                      .is_full = kind.reach.kind == KvReach::Kind::kFull,
                      .group = kind.first_group,
                      .rows = arena.TakeArray<Row>(options.max_rows),
                      .items = arena.TakeArray<Item>(uint64_t{max_units_} +
                                                     options.max_rows * options.kv_heads)});
  }
  unit_partials_ = arena.TakeArray<float>(uint64_t{max_units_} * options.heads * partial_floats_);
  thread_partials_ =
      arena.TakeArray<float>(uint64_t{options.threads} * max_queries_ * partial_floats_);
  softmax_ = arena.TakeArray<float>(uint64_t{options.max_rows} * options.heads * 2);
  scratch_.reserve(options.threads);
  for (uint32_t i = 0; i < options.threads; ++i) {
    scratch_.emplace_back(options.head_dim, max_queries_, arena);
  }
  scored_.reserve(options.max_rows);
  uint32_t full_layers = 0;
  for (uint32_t layer = 0; layer < options.layout.num_layers(); ++layer) {
    full_index_.push_back(full_layers);
    full_layers += options.layout.place(layer).group < options.layout.num_full_groups();
  }
}

// Counts the tokens that a row sees without a window: all up to itself, or all of the source.
uint32_t CpuAttention::Limit(const Plan& plan, const StepSequence& sequence, uint32_t row) const {
  if (plan.of_source) return sequence.source_tokens;
  const uint32_t limit = sequence.position + row + 1;
  const bool later_chunk = sequence.position > 0 && sequence.num_rows > 1 && row == 0;
  return later_chunk && FaultActive(Fault::kChunkEdge) ? limit - 1 : limit;
}

// Returns the first token of the sequence's tables that a row sees whose own is the last below
// `limit`.
uint32_t CpuAttention::FirstSeen(const Plan& plan, const StepSequence& sequence, uint32_t limit) {
  if (!plan.is_full) return BeginOf(limit, plan.window);
  return std::max(sequence.begin, BeginOf(limit, sequence.window));
}

void CpuAttention::Begin(std::span<const StepSequence> sequences) {
  sequences_ = sequences;
  scored_.clear();
  for (const StepSequence& sequence : sequences) {
    if (sequence.block_sums != nullptr) scored_.push_back(&sequence);
  }
  for (Plan& plan : plans_) Fill(plan, sequences);
}

void CpuAttention::Fill(Plan& plan, std::span<const StepSequence> sequences) {
  plan.num_rows = plan.num_items = plan.num_units = 0;
  plan.work = plan.head_tokens = 0;
  uint32_t spans = 0;
  for (const StepSequence& sequence : sequences) {
    const uint32_t last = Limit(plan, sequence, sequence.num_rows - 1);
    uint64_t seen = last - FirstSeen(plan, sequence, last);
    if (plan.is_full) {
      for (const StepRun& run : sequence.runs) seen += run.last - run.first;
    }
    plan.work += sequence.num_rows * seen * o_.heads * o_.head_dim * 2;
    if (sequence.num_rows > kMaxDecodeRows || IsBounded(plan, sequence)) continue;
    for (uint32_t i = 0; i < sequence.num_rows; ++i) {
      const uint32_t limit = Limit(plan, sequence, i), begin = BeginOf(limit, plan.window);
      plan.rows[plan.num_rows++] = {&sequence, sequence.first_row + i, begin, limit, kNoUnit, 0};
      spans += Spans(limit) - begin / kAttentionSpan;
    }
  }
  plan.spans_of_item = std::clamp(spans / (o_.threads * 8), 1u, kMaxSpansOfItem);
  const uint32_t with_units = SortRows(plan);
  for (uint32_t i = 0, from = 0; i < with_units; ++i) {
    const uint32_t first_span = plan.rows[from].begin / kAttentionSpan;
    if (i + 1 < with_units && plan.rows[i + 1].begin / kAttentionSpan == first_span) continue;
    AddRange(plan, from, i + 1, first_span);
    from = i + 1;
  }
  for (uint32_t i = with_units; i < plan.num_rows; ++i) {
    const Row& row = plan.rows[i];
    plan.items[plan.num_items++] = {nullptr,          i, 1,          row.begin / kAttentionSpan,
                                    Spans(row.limit), 0, o_.kv_heads};
  }
  for (const StepSequence& sequence : sequences) {
    if (sequence.num_rows > kMaxDecodeRows || IsBounded(plan, sequence)) AddWhole(plan, sequence);
  }
  for (uint32_t i = 0; i < plan.num_items; ++i) {
    const Item& item = plan.items[i];
    plan.head_tokens += uint64_t{TokensOf(plan, item)} * item.heads;
  }
}

// Counts the tokens of its spans and runs that any of its rows sees.
uint32_t CpuAttention::TokensOf(const Plan& plan, const Item& item) const {
  uint32_t limit = 0, begin = ~uint32_t{0}, of_runs = 0;
  for (uint32_t i = item.first; i < item.first + item.rows; ++i) {
    const StepSequence& sequence = item.sequence ? *item.sequence : *plan.rows[i].sequence;
    const uint32_t of_row = item.sequence ? Limit(plan, sequence, i) : plan.rows[i].limit;
    limit = std::max(limit, of_row);
    begin = std::min(begin, FirstSeen(plan, sequence, of_row));
  }
  if (item.sequence && plan.is_full) {
    for (const StepRun& run : item.sequence->runs) of_runs += run.last - run.first;
  }
  begin = std::max(begin, item.span_begin * kAttentionSpan);
  return of_runs + std::max(begin, std::min(limit, item.span_end * kAttentionSpan)) - begin;
}

// Makes rows neighbours that see from the same span on and whose first blocks there are the same;
// `shared` says how far they are. Returns how many of them, from the first on, got units: when
// those are used up there are items enough, and each of the others' merges all its spans.
uint32_t CpuAttention::SortRows(Plan& plan) const {
  const uint32_t block_tokens = o_.layout.block_tokens();
  const auto block = [&](const Row& row, uint32_t index) {
    return row.sequence->tables[plan.group].bases()[index];
  };
  // Full spans that lie in whole blocks of both rows, as far as the blocks are the same ones.
  // Up to there, full spans lie in whole blocks that both rows have. An item reads through the
  // table of one of its rows, and a window's table has no blocks before the row's own first one: so
  // rows whose windows begin in different blocks share nothing.
  const auto shared_until = [&](const Row& a, const Row& b) {
    const uint32_t first = b.begin / kAttentionSpan;
    if (a.begin / block_tokens != b.begin / block_tokens) return first;
    if (!a.sequence->masks.empty() || !b.sequence->masks.empty()) return first;
    const uint32_t full = std::min(a.limit, b.limit) / kAttentionSpan;
    uint32_t same = b.begin / block_tokens;
    for (uint32_t span = first; span < full; ++span) {
      const uint32_t end =
          static_cast<uint32_t>(CeilDiv((span + 1) * kAttentionSpan, block_tokens));
      while (same < end && block(a, same) == block(b, same)) ++same;
      if (same < end) return span;
    }
    return std::max(first, full);
  };
  std::sort(plan.rows, plan.rows + plan.num_rows, [&](const Row& a, const Row& b) {
    const uint32_t first = a.begin / block_tokens;
    if (first != b.begin / block_tokens) return a.begin < b.begin;
    const uint32_t blocks = std::min(a.limit, b.limit) / block_tokens;
    for (uint32_t i = first; i < blocks; ++i) {
      std::byte *of_a = block(a, i), *of_b = block(b, i);
      if (of_a != of_b) return of_a < of_b;
    }
    return a.limit != b.limit ? a.limit < b.limit : a.row < b.row;
  });
  for (uint32_t i = 0; i < plan.num_rows; ++i) {
    Row& row = plan.rows[i];
    const uint32_t first = row.begin / kAttentionSpan, need = Spans(row.limit) - first;
    if (plan.num_units + need > max_units_) return i;
    row.shared = i == 0 ? first : shared_until(plan.rows[i - 1], row);
    row.unit = plan.num_units;
    plan.num_units += need;
  }
  return plan.num_rows;
}

// Adds items of rows [begin, end), which share all spans below `span`, from there on.
void CpuAttention::AddRange(Plan& plan, uint32_t begin, uint32_t end, uint32_t span) const {
  uint32_t until = Spans(plan.rows[begin].limit);
  for (uint32_t i = begin + 1; i < end; ++i) until = std::min(until, plan.rows[i].shared);
  const uint32_t max_rows = std::max(1u, kMaxQueries / group_);
  for (uint32_t first = begin; first < end; first += max_rows) {
    const uint32_t rows = std::min(max_rows, end - first);
    for (uint32_t at = span; at < until; at += plan.spans_of_item) {
      const uint32_t stop = std::min(until, at + plan.spans_of_item);
      plan.items[plan.num_items++] = {nullptr, first, rows, at, stop, 0, o_.kv_heads};
    }
  }
  if (end - begin == 1) return;
  for (uint32_t from = begin, i = begin + 1; i <= end; ++i) {
    if (i < end && plan.rows[i].shared > until) continue;
    AddRange(plan, from, i, until);
    from = i;
  }
}

// Adds items of all rows of a sequence. Decode rows are few, so that more heads fit into an item:
// as many as leave one for each thread, since neighbours are read faster together.
void CpuAttention::AddWhole(Plan& plan, const StepSequence& sequence) const {
  if (sequence.num_rows > kMaxDecodeRows) {
    return AddRows(plan, sequence, std::max(1u, kMaxQueries / group_), 1);
  }
  const auto heads = static_cast<uint32_t>(CeilDiv(o_.kv_heads, o_.threads));
  AddRows(plan, sequence, sequence.num_rows, heads);
}

void CpuAttention::AddRows(Plan& plan, const StepSequence& sequence, uint32_t rows_of_item,
                           uint32_t heads) const {
  // The last rows see most, so they come first: otherwise one thread would end with a long item.
  for (uint32_t end = sequence.num_rows; end > 0;) {
    const uint32_t rows = std::min(rows_of_item, end);
    end -= rows;
    const uint32_t first = FirstSeen(plan, sequence, Limit(plan, sequence, end)) / kAttentionSpan;
    const uint32_t spans = Spans(Limit(plan, sequence, end + rows - 1));
    for (uint32_t head = 0; head < o_.kv_heads; head += heads) {
      plan.items[plan.num_items++] = {
          &sequence, end, rows, first, spans, head, std::min(heads, o_.kv_heads - head)};
    }
  }
}

void CpuAttention::Attend(const Call& call, ThreadPool& pool) {
  const KvLayout::Place place = o_.layout.place(call.layer);
  const Plan& plan = plans_[o_.layout.kind_of(place.group)];
  AttendAll(call, plan, pool);
  const BlockLayout& layout = o_.layout.layout(place.group);
  for (const BlockPart& part : {layout.key(place.slot), layout.value(place.slot)}) {
    const uint64_t scales = TraitsOf(part.format).scaled ? kRunTokens * sizeof(uint16_t) : 0;
    read_bytes_ += plan.head_tokens * (part.run_bytes + scales) / kRunTokens;
  }
  if (!plan.of_source) SumWeights(call, plan, pool);  // no RetentionPolicy looks at a source
}

void CpuAttention::AttendAll(const Call& call, const Plan& plan, ThreadPool& pool) {
  const auto finish_all = [&] {
    for (uint32_t i = 0; i < plan.num_rows; ++i) Finish(call, plan.rows[i], 0, o_.heads);
  };
  if (plan.work < kMinParallelWork) {
    for (uint32_t i = 0; i < plan.num_items; ++i) RunItem(call, plan, plan.items[i], 0);
    return finish_all();
  }
  pool.Run(plan.num_items,
           [&](uint32_t i, uint32_t thread) { RunItem(call, plan, plan.items[i], thread); });
  if (plan.num_units < kMinParallelUnits) return finish_all();
  // Few rows are finished head by head; many are items enough.
  const uint32_t parts = plan.num_rows < o_.threads * 8 ? o_.kv_heads : 1;
  const uint32_t heads = o_.heads / parts;
  pool.Run(plan.num_rows * parts, [&](uint32_t i, uint32_t) {
    const uint32_t head = i % parts * heads;
    Finish(call, plan.rows[i / parts], head, head + heads);
  });
}

PagedKv CpuAttention::KvOf(const Call& call, const StepSequence& sequence) const {
  const KvLayout::Place place = o_.layout.place(call.layer);
  return PagedKv(sequence.tables[place.group].bases().data(), o_.layout.layout(place.group),
                 place.slot);
}

// Returns what all calls of a layer have in common.
AttentionKernels::Args CpuAttention::ArgsOf(const PagedKv& kv, uint32_t thread) const {
  AttentionKernels::Args args{};
  args.kv = &kv;
  args.scratch = &scratch_[thread];
  args.group = group_;
  args.softcap = o_.attention_softcap;
  return args;
}

AttentionKernels::Args CpuAttention::ArgsOf(const Call& call, const StepSequence& sequence,
                                            const PagedKv& kv, uint32_t thread) const {
  AttentionKernels::Args args = ArgsOf(kv, thread);
  if (call.layer < sequence.masks.size()) args.mask = sequence.masks[call.layer];
  return args;
}

void CpuAttention::RunItem(const Call& call, const Plan& plan, const Item& item, uint32_t thread) {
  if (item.sequence == nullptr) return RunDecode(call, plan, item, thread);
  RunRows(call, plan, item, thread);
}

// The queries of an item's rows, and where their sums go (AttentionKernels::Args).
struct CpuAttention::Queries {
  const float* q[kMaxQueries];
  uint32_t limit[kMaxQueries], begin[kMaxQueries];
  float* partial[kMaxQueries];
};

void CpuAttention::RunDecode(const Call& call, const Plan& plan, const Item& item,
                             uint32_t thread) {
  Queries queries;
  const size_t unit_floats = size_t{o_.heads} * partial_floats_;
  const bool whole = plan.rows[item.first].unit == kNoUnit;
  for (uint32_t i = 0; i < item.rows; ++i) {
    const Row& row = plan.rows[item.first + i];
    queries.q[i] = call.q + row.row * call.q_stride;
    // Several rows share only full spans.
    queries.limit[i] = std::min(row.limit, item.span_end * kAttentionSpan);
    queries.begin[i] = row.begin;
    const uint32_t span = item.span_begin - row.begin / kAttentionSpan;  // of the row's
    queries.partial[i] = whole ? thread_partials_ + size_t{thread} * max_queries_ * partial_floats_
                               : unit_partials_ + (row.unit + span) * unit_floats;
    const size_t spans = whole ? 1 : item.span_end - item.span_begin;
    for (size_t p = 0; p < spans * o_.heads; ++p) Clear(queries.partial[i] + p * partial_floats_);
  }
  const StepSequence& sequence = *plan.rows[item.first].sequence;
  Run(call, plan, item, sequence, {0, o_.kv_heads}, queries, whole ? 0 : unit_floats, thread);
  if (!whole) return;
  for (uint32_t head = 0; head < o_.heads; ++head) {
    FinishHead(call, queries.partial[0] + size_t{head} * partial_floats_, plan.rows[item.first].row,
               head);
  }
}

void CpuAttention::RunRows(const Call& call, const Plan& plan, const Item& item, uint32_t thread) {
  Queries queries;
  const StepSequence& sequence = *item.sequence;
  const uint32_t heads = item.heads * group_;
  float* scratch = thread_partials_ + size_t{thread} * max_queries_ * partial_floats_;
  for (uint32_t i = 0; i < item.rows; ++i) {
    queries.q[i] = call.q + (sequence.first_row + item.first + i) * call.q_stride;
    queries.limit[i] = Limit(plan, sequence, item.first + i);
    queries.begin[i] = FirstSeen(plan, sequence, queries.limit[i]);
    queries.partial[i] = scratch + size_t{i} * heads * partial_floats_;
    for (uint32_t h = 0; h < heads; ++h) Clear(queries.partial[i] + size_t{h} * partial_floats_);
  }
  if (plan.is_full) {
    for (const StepRun& run : sequence.runs) AttendRun(call, item, run, queries, thread);
  }
  Run(call, plan, item, sequence, {item.head, item.head + item.heads}, queries, 0, thread);
  for (uint32_t i = 0; i < item.rows * heads; ++i) {
    const size_t row = sequence.first_row + item.first + i / heads;
    FinishHead(call, scratch + size_t{i} * partial_floats_, row, item.head * group_ + i % heads);
  }
}

// Attends with an item's queries to a run before its sequence's tables.
void CpuAttention::AttendRun(const Call& call, const Item& item, const StepRun& run,
                             Queries queries, uint32_t thread) {
  const KvLayout::Place place = o_.layout.place(call.layer);
  const StepSequence& sequence = *item.sequence;
  const std::span<const BlockTable> tables = run.tables.empty() ? sequence.tables : run.tables;
  const PagedKv kv(tables[place.group].bases().data(), o_.layout.layout(place.group), place.slot);
  const RunQueries::Layer layer{place, call.rope, sequence.long_rope};
  const RunQueries::Heads heads{item.head * group_, (item.head + item.heads) * group_};
  for (uint32_t i = 0; i < item.rows; ++i) {
    const uint32_t row = sequence.first_row + item.first + i;
    if (run.is_elsewhere()) {
      const uint32_t position = run.QueryPosition(sequence.position + item.first + i);
      queries.q[i] =
          run_queries_.Write(layer, call.out + row * call.out_stride, heads, position, i, thread);
    }
    queries.limit[i] = run.last;
    queries.begin[i] = run.first;
  }
  AttentionKernels::Args args = ArgsOf(kv, thread);
  args.span_begin = run.first / kAttentionSpan;
  args.span_end = Spans(run.last);
  args.begin = queries.begin;
  AttendItem(item, {item.head, item.head + item.heads}, queries, &args);
}

// Attends with an item's queries to its spans of a sequence, in some KV heads.
void CpuAttention::Run(const Call& call, const Plan& plan, const Item& item,
                       const StepSequence& sequence, Heads heads, const Queries& queries,
                       size_t span_stride, uint32_t thread) {
  const PagedKv kv = KvOf(call, sequence);
  AttentionKernels::Args args = ArgsOf(call, sequence, kv, thread);
  args.span_begin = item.span_begin;
  args.span_end = item.span_end;
  if (plan.window > 0 || IsBounded(plan, sequence)) args.begin = queries.begin;
  args.span_stride = span_stride;
  AttendItem(item, heads, queries, &args);
}

// Adds an item's rows and queries to `args`, and attends in some KV heads.
void CpuAttention::AttendItem(const Item& item, Heads heads, const Queries& queries,
                              AttentionKernels::Args* args) const {
  args->rows = item.rows;
  args->kv_head_begin = heads.begin;
  args->kv_head_end = heads.end;
  args->q = queries.q;
  args->limit = queries.limit;
  args->partial = queries.partial;
  kernels_.attend(*args);
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
  const uint32_t spans = Spans(row.limit) - row.begin / kAttentionSpan;
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
