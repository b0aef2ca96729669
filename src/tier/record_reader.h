// RecordReader: brings records from the disk into buffers, and unseals them.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "tier/store.h"

namespace kvasir {

// Reads are taken in the order in which they were asked for; records that lie side by side come by
// one call. Begin to End are Tier's functions of these names, with its thread rules.
class RecordReader {
 public:
  explicit RecordReader(Store& store);

  std::optional<ReadId> Begin(const RecordName& name);
  bool HasRoom() const;
  ReadState StateOf(ReadId read) const;
  bool Unseal(ReadId read, const RecordFacts& facts, std::span<std::byte> payload) const;
  void End(ReadId read, ReadEnd end);

  // Reads the next records that are wanted and lie side by side. False: none is wanted. The
  // reader's thread calls it.
  bool Step();
  // Counts the read under way once, when it takes over 5 s. The writer asks too, since a read may
  // never return: then no other one is served, and it alone makes the tier broken.
  void NoteStalls();
  bool is_reading() const;

 private:
  std::vector<uint32_t>& GatherRun() KV_REQUIRES(store_.mutex);
  IoStatus ReadRun(const StoreFiles& files, std::span<const uint32_t> run) noexcept;
  IoStatus ReadRecords(const StoreFiles& files, std::span<const uint32_t> run);
  void EndRun(std::span<const bool> is_bad) KV_REQUIRES(store_.mutex);

  Store& store_;
  uint64_t since_ns_ KV_GUARDED_BY(store_.mutex) = 0;  // 0: nothing is being read
  bool is_stall_counted_ KV_GUARDED_BY(store_.mutex) = false;
  std::vector<uint32_t> run_;  // buffers that are being read; the reader's alone
};

}  // namespace kvasir
