// RecordSealer: takes records on their way to the disk into buffers, sealed, for the writer.
#pragma once

#include <span>

#include "tier/store.h"

namespace kvasir {

// Tier's functions of these names (BeginWrite, Seal, EndWrite), with its thread rules.
class RecordSealer {
 public:
  explicit RecordSealer(Store& store) : store_(store) {}

  tl::expected<WriteId, WriteRefusal> Begin(const RecordFacts& facts);
  void Seal(WriteId write, std::span<const std::byte> payload);
  void End(WriteId write);

 private:
  std::optional<WriteRefusal> Refusal(const RecordFacts& facts) const KV_REQUIRES(store_.mutex);
  tl::expected<EntryId, WriteRefusal> AddEntry(const RecordFacts& facts, OwnerId owner)
      KV_REQUIRES(store_.mutex);

  Store& store_;
};

}  // namespace kvasir
