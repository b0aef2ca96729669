// Series of the tiers below the cache. Each has the label tier; without a tier there is only
// kvasir_tier_on.
#include "observe/metric_series.h"

namespace kvasir {
namespace {

constexpr const char *kDisk = "disk", *kRemote = "remote";

void WriteOn(const MetricsView& view, SeriesWriter& out) {
  out.Write(view.disk && view.disk->state == TierStats::State::kOn ? 1 : 0, {kDisk});
  if (view.remote) out.Write(view.remote->state == RemoteStats::State::kOn ? 1 : 0, {kRemote});
}

void WriteBytes(const MetricsView& view, SeriesWriter& out) {
  if (!view.disk) return;
  out.Write(view.disk->used_bytes, {kDisk, "used"});
  out.Write(view.disk->cap_bytes, {kDisk, "cap"});
}

void WriteTierBlocks(const MetricsView& view, SeriesWriter& out) {
  if (view.disk) {
    out.Write(view.disk->blocks, {kDisk, "stored"});
    out.Write(view.disk->pending_blocks, {kDisk, "pending"});
  }
  if (view.remote) out.Write(view.remote->pending_blocks, {kRemote, "pending"});
}

template <auto kMember>
void OfDisk(const MetricsView& view, SeriesWriter& out) {
  if (view.disk) out.Write((*view.disk).*kMember, {kDisk});
}

template <auto kOfDiskMember, auto kOfRemoteMember>
void OfBoth(const MetricsView& view, SeriesWriter& out) {
  if (view.disk) out.Write((*view.disk).*kOfDiskMember, {kDisk});
  if (view.remote) out.Write((*view.remote).*kOfRemoteMember, {kRemote});
}

void WriteTierEvicted(const MetricsView& view, SeriesWriter& out) {
  if (view.remote) out.Write(view.remote->erased_blocks, {kRemote, "erase"});
  if (!view.disk) return;
  out.Write(view.disk->evicted_cap, {kDisk, "cap"});
  out.Write(view.disk->evicted_space, {kDisk, "space"});
  out.Write(view.disk->evicted_ttl, {kDisk, "ttl"});
  out.Write(view.disk->evicted_erase, {kDisk, "erase"});
}

void WriteTierDropped(const MetricsView& view, SeriesWriter& out) {
  if (view.remote) {
    out.Write(view.remote->dropped_buffer, {kRemote, "buffer"});
    out.Write(view.remote->dropped_budget, {kRemote, "budget"});
    out.Write(view.remote->dropped_failed, {kRemote, "failed"});
  }
  if (!view.disk) return;
  out.Write(view.disk->dropped_buffer, {kDisk, "buffer"});
  out.Write(view.disk->dropped_budget, {kDisk, "budget"});
  out.Write(view.disk->dropped_failed, {kDisk, "failed"});
}

void WriteTierFaults(const MetricsView& view, SeriesWriter& out) {
  if (view.remote) {
    out.Write(view.remote->fault_io, {kRemote, "io"});
    out.Write(view.remote->fault_damaged, {kRemote, "damaged"});
    out.Write(view.remote->fault_missing, {kRemote, "missing"});
    out.Write(view.remote->fault_stalled, {kRemote, "stalled"});
  }
  if (!view.disk) return;
  out.Write(view.disk->fault_read, {kDisk, "read"});
  out.Write(view.disk->fault_write, {kDisk, "write"});
  out.Write(view.disk->fault_sync, {kDisk, "sync"});
  out.Write(view.disk->fault_damaged, {kDisk, "damaged"});
  out.Write(view.disk->fault_stalled, {kDisk, "stalled"});
}

constexpr MetricSeries kTierSeries[] = {
    {"kvasir_tier_on", MetricType::Gauge, "tier", "tier",
     "1 where the tier is read and written; 0 where there is none, another process has it, or it "
     "is broken.",
     WriteOn},
    {"kvasir_tier_bytes", MetricType::Gauge, "tier,kind", "tier",
     "Bytes of stored records, and the limit of all in the folder.", WriteBytes},
    {"kvasir_tier_blocks", MetricType::Gauge, "tier,state", "tier",
     "Blocks that are stored, and those on their way.", WriteTierBlocks},
    {"kvasir_tier_read_bytes_total", MetricType::Counter, "tier", "tier",
     "Bytes that were read from it.", OfBoth<&TierStats::read_bytes, &RemoteStats::read_bytes>},
    {"kvasir_tier_written_bytes_total", MetricType::Counter, "tier", "tier",
     "Bytes that were written to it.",
     OfBoth<&TierStats::written_bytes, &RemoteStats::written_bytes>},
    {"kvasir_tier_evicted_blocks_total", MetricType::Counter, "tier,cause", "tier",
     "Blocks that left it: for the cap, for free space, unused for too long, erased.",
     WriteTierEvicted},
    {"kvasir_tier_dropped_blocks_total", MetricType::Counter, "tier,cause", "tier",
     "Blocks that were not written: no buffer was free, the day's budget was used up, the disk "
     "failed.",
     WriteTierDropped},
    {"kvasir_tier_faults_total", MetricType::Counter, "tier,kind", "tier",
     "Calls that failed, records that did not open or that the store had let go, operations that "
     "took too long.",
     WriteTierFaults},
    {"kvasir_tier_read_seconds", MetricType::Histogram, "tier", "tier",
     "Time of a read, which takes up to 4 MiB of blocks that lie side by side.",
     OfDisk<&TierStats::read_seconds>},
    {"kvasir_tier_write_seconds", MetricType::Histogram, "tier", "tier",
     "Time of a group of blocks, from making room for it until it is durable.",
     OfDisk<&TierStats::write_seconds>},
};

}  // namespace

std::span<const MetricSeries> TierSeries() { return kTierSeries; }

}  // namespace kvasir
