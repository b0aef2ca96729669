// Series of the cache: blocks, reuse, misses, evictions, memory traffic.
#include "base/clock.h"
#include "observe/metric_series.h"

namespace kvasir {
namespace {

using Stats = EngineStats;

constexpr uint64_t kRecentNs = 60'000'000'000;

void WriteBlocks(const MetricsView& view, SeriesWriter& out) {
  out.Write(view.stats.free_blocks, {"free"});
  out.Write(view.stats.idle_blocks, {"idle"});
  out.Write(view.stats.pinned_blocks, {"pinned"});
}

void WriteMemory(const MetricsView& view, SeriesWriter& out) {
  const double block_bytes = static_cast<double>(view.plan.block_bytes);
  out.Write(static_cast<double>(view.stats.free_blocks) * block_bytes, {"free"});
  out.Write(static_cast<double>(view.stats.idle_blocks) * block_bytes, {"idle"});
  out.Write(static_cast<double>(view.stats.pinned_blocks) * block_bytes, {"pinned"});
}

void WriteReused(const MetricsView& view, SeriesWriter& out) {
  out.Write(view.stats.reused_pool, {"pool"});
  out.Write(view.stats.reused_partial, {"partial"});
  out.Write(view.stats.reused_disk, {"disk"});
  out.Write(view.stats.reused_remote, {"remote"});
}

void WriteMisses(const MetricsView& view, SeriesWriter& out) {
  for (size_t i = 0; i < kNumMissReasons; ++i) {
    out.Write(view.stats.misses[i], {ToString(static_cast<MissReason>(i))});
  }
}

void WriteMissedTokens(const MetricsView& view, SeriesWriter& out) {
  for (size_t i = 0; i < kNumMissReasons; ++i) {
    out.Write(view.stats.missed_tokens[i], {ToString(static_cast<MissReason>(i))});
  }
}

void WriteEvictedBlocks(const MetricsView& view, SeriesWriter& out) {
  out.Write(view.stats.evicted_blocks - view.stats.quota_evicted_blocks, {"capacity"});
  out.Write(view.stats.quota_evicted_blocks, {"quota"});
}

void WriteEvictedTokens(const MetricsView& view, SeriesWriter& out) {
  out.Write(view.stats.evicted_tokens - view.stats.quota_evicted_tokens, {"capacity"});
  out.Write(view.stats.quota_evicted_tokens, {"quota"});
}

void WriteFailures(const MetricsView& view, SeriesWriter& out) {
  out.Write(view.stats.requests.reservations_failed, {"pool_full"});
  out.Write(view.stats.requests.quota_reservations_failed, {"quota"});
}

void WriteRecomputed(const MetricsView& view, SeriesWriter& out) {
  const EngineStats& s = view.stats;
  out.Write(s.missed_tokens[static_cast<size_t>(MissReason::kEvicted)], {"evicted"});
  out.Write(s.recomputed_tokens - s.recomputed_rope_tokens, {"preempted"});
  out.Write(s.recomputed_rope_tokens, {"rope"});
}

void WriteReadBytes(const MetricsView& view, SeriesWriter& out) {
  out.Write(view.stats.weight_read_bytes, {"weights"});
  out.Write(view.stats.kv_read_bytes, {"kv"});
}

void WriteReadLimit(const MetricsView& view, SeriesWriter& out) {
  if (view.read_limit) out.Write(*view.read_limit);
}

void WriteMbu(const MetricsView& view, SeriesWriter& out) {
  if (!view.read_limit) return;
  const RequestStats& now = view.stats.requests;
  const bool recent = MonotonicNs() < now.recent_end_ns + kRecentNs;
  const double bytes = recent ? static_cast<double>(now.recent_read_bytes) : 0;
  out.Write(Ratio(bytes, *view.read_limit * static_cast<double>(now.recent_step_ns) / 1e9));
}

void WriteMaxContext(const MetricsView& view, SeriesWriter& out) {
  out.Write(Ratio(view.stats.requests.longest_running_tokens, view.card.ctx_size));
}

void WriteDropped(const MetricsView& view, SeriesWriter& out) {
  for (size_t i = 1; i < kNumRetentions; ++i) {
    out.Write(view.stats.retention_dropped[i], {ToString(static_cast<Retention>(i))});
  }
}

void WriteInexact(const MetricsView& view, SeriesWriter& out) {
  out.Write(view.stats.retention_inexact, {"retention"});
  out.Write(view.stats.spans_inexact, {"spans"});
}

void WriteSpanTokens(const MetricsView& view, SeriesWriter& out) {
  out.Write(view.stats.span_reused_tokens, {"reused"});
  out.Write(view.stats.span_computed_tokens, {"computed"});
  out.Write(view.stats.span_seam_tokens, {"seam"});
}

void WriteKvEvents(const MetricsView& view, SeriesWriter& out) {
  if (!view.events) return;
  out.Write(view.events->sent, {"sent"});
  out.Write(view.events->snapshot, {"snapshot"});
  out.Write(view.events->replayed, {"replayed"});
  out.Write(view.events->lost, {"lost"});
}

constexpr MetricSeries kCacheSeries[] = {
    {"kvasir_blocks", MetricType::Gauge, "state", "cache", "Blocks by state.", WriteBlocks},
    {"kvasir_kv_memory_bytes", MetricType::Gauge, "state", "cache", "Bytes of blocks by state.",
     WriteMemory},
    {"kvasir_cached_tokens", MetricType::Gauge, "", "cache", "Tokens that the prefix index holds.",
     Of<&Stats::cached_tokens>},
    {"kvasir_live_tokens", MetricType::Gauge, "", "cache",
     "Tokens of running sequences that are not in the index yet.", Of<&Stats::live_tokens>},
    {"kvasir_cursors", MetricType::Gauge, "", "cache", "Cursors that the cache holds.",
     Of<&Stats::cursors>},
    {"kvasir_waste_ratio", MetricType::Gauge, "", "cache",
     "Share of the bytes of non-free blocks that hold no live or cached token.", Of<&Stats::waste>},
    {"kvasir_worst_waste_ratio", MetricType::Gauge, "", "cache",
     "The largest kvasir_waste_ratio at the end of a step while at least 90% of the blocks were in "
     "use.",
     Of<&Stats::worst_waste>},
    {"kvasir_sequence_tokens", MetricType::Histogram, "", "engine",
     "Tokens of a choice at its end, prompt and answer.",
     OfRequests<&RequestStats::sequence_tokens>},
    {"kvasir_sequence_context_ratio", MetricType::Histogram, "", "engine",
     "Tokens of a choice at its end by the context.", OfRequests<&RequestStats::context_ratios>},
    {"kvasir_max_context_ratio", MetricType::Gauge, "", "engine",
     "Tokens of the longest running choice by the context, now.", WriteMaxContext},
    {"kvasir_reused_tokens_total", MetricType::Counter, "source", "cache",
     "Prompt tokens from the cache: of whole blocks, or of the beginning of a block.", WriteReused},
    {"kvasir_computed_tokens_total", MetricType::Counter, "", "cache",
     "Prompt tokens that were computed.", Of<&Stats::computed_tokens>},
    {"kvasir_prepared_tokens_total", MetricType::Counter, "", "engine",
     "Tokens that were computed while nothing waited, for the next turns of conversations "
     "(prepare);"
     " not among the prompt tokens.",
     Of<&Stats::prepared_tokens>},
    {"kvasir_encoder_passes_total", MetricType::Counter, "", "engine",
     "Sources that the encoder of an encoder-decoder model read.", Of<&Stats::encoder_passes>},
    {"kvasir_hypotheses", MetricType::Gauge, "", "engine", "Beams of searches that run.",
     Of<&Stats::hypotheses>},
    {"kvasir_reused_source_tokens_total", MetricType::Counter, "", "cache",
     "Tokens of sources whose KV was in the cache; not among the prompt tokens.",
     Of<&Stats::reused_source_tokens>},
    {"kvasir_cursor_hits_total", MetricType::Counter, "", "cache",
     "Prompts that a Cursor answered without computing.", Of<&Stats::cursor_hits>},
    {"kvasir_misses_total", MetricType::Counter, "reason", "cache", "Prompts by why reuse ended.",
     WriteMisses},
    {"kvasir_missed_tokens_total", MetricType::Counter, "reason", "cache",
     "Tokens of these prompts that were not reused.", WriteMissedTokens},
    {"kvasir_volatile_tokens_total", MetricType::Counter, "", "cache",
     "Tokens of chats that were computed again after a line that changes.",
     Of<&Stats::volatile_tokens>},
    {"kvasir_retention_dropped_tokens_total", MetricType::Counter, "policy", "engine",
     "Tokens that the last token of a choice did not see, by the retention policy.", WriteDropped},
    {"kvasir_inexact_tokens_total", MetricType::Counter, "why", "engine",
     "Tokens that were computed without some of those before them.", WriteInexact},
    {"kvasir_span_tokens_total", MetricType::Counter, "source", "engine",
     "Tokens of spans: read from the cache, computed as spans, computed in their place.",
     WriteSpanTokens},
    {"kvasir_committed_blocks_total", MetricType::Counter, "", "cache",
     "Blocks that entered the index.", Of<&Stats::committed_blocks>},
    {"kvasir_evicted_blocks_total", MetricType::Counter, "cause", "cache",
     "Blocks that the policy chose because others needed room.", WriteEvictedBlocks},
    {"kvasir_evicted_tokens_total", MetricType::Counter, "cause", "cache",
     "Tokens of these blocks.", WriteEvictedTokens},
    {"kvasir_kv_events_total", MetricType::Counter, "outcome", "events",
     "Blocks that KV events told of: sent when they came or went, repeated in a snapshot, sent "
     "again in a replay; lost because the queue was full. Absent without --kv-events.",
     WriteKvEvents},
    {"kvasir_copied_blocks_total", MetricType::Counter, "", "cache",
     "Blocks that were copied on write.", Of<&Stats::copied_blocks>},
    {"kvasir_deduplicated_blocks_total", MetricType::Counter, "", "cache",
     "Blocks that were computed twice and kept once.", Of<&Stats::deduplicated_blocks>},
    {"kvasir_allocation_failures_total", MetricType::Counter, "cause", "engine",
     "Reservations of blocks that were refused; the request waits, or another one gives way.",
     WriteFailures},
    {"kvasir_recomputed_tokens_total", MetricType::Counter, "cause", "engine",
     "Tokens that were computed again: of prompts, after what was evicted; after a preemption; for "
     "RoPE longrope. Only the first are among the prompt tokens.",
     WriteRecomputed},
    {"kvasir_read_bytes_total", MetricType::Counter, "kind", "engine",
     "Bytes that were read: weights (each matrix once a product, of experts the chosen ones) and K "
     "and V.",
     WriteReadBytes},
    {"kvasir_kv_read_bytes_total", MetricType::Counter, "", "engine",
     "K and V that attention read; a prefix that rows of a step share counts once.",
     Of<&Stats::kv_read_bytes>},
    {"kvasir_read_limit_bytes_per_second", MetricType::Gauge, "", "server",
     "What this machine's memory gives, as 'kvasir bench' or the first server on it measured; "
     "absent "
     "where neither did: the cache has less than 32 MiB.",
     WriteReadLimit},
    {"kvasir_mbu_ratio", MetricType::Gauge, "", "engine",
     "Bytes read in the steps of the last minute, by what the limit allows in their time; above 1 "
     "where they come from the CPU's caches.",
     WriteMbu},
};

}  // namespace

std::span<const MetricSeries> CacheSeries() { return kCacheSeries; }

}  // namespace kvasir
