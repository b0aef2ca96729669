// EventWriter: writes a batch of KV events as vLLM does, in MessagePack.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "kvasir/kv_events.h"
#include "kvasir/types.h"

namespace kvasir {

// docs/kv-events.md has the grammar:
//   batch   = [float64 seconds since 1970, [event, ...], 0]
//   stored  = {"type": "BlockStored", "block_hashes": [uint, ...], "parent_block_hash": uint or
//   nil,
//              "token_ids": [uint, ...], "block_size": uint, "lora_id": nil, "medium": "GPU",
//              "lora_name": nil, "group_idx": 0}
//   removed = {"type": "BlockRemoved", "block_hashes": [uint, ...], "medium": "GPU", "group_idx":
//   0} cleared = {"type": "AllBlocksCleared"}
// or each event as an array of its values, with nil for vLLM's extra_keys before group_idx.
// Blocks that follow one another are one event. Allocates only in its constructor while a batch has
// at most max_events calls. One thread at a time.
class EventWriter {
 public:
  EventWriter(KvEventsFormat format, uint32_t block_tokens, uint64_t max_events);
  // Returns the bytes of a batch of so many events, at most.
  static uint64_t MaxBytes(uint32_t block_tokens, uint64_t num_events) {
    return kBatchBytes + num_events * (kEventBytes + uint64_t{5} * block_tokens);
  }
  static uint64_t BytesFor(uint32_t block_tokens, uint64_t max_events) {
    return MaxBytes(block_tokens, max_events) +
           kMostJoined * (sizeof(uint64_t) + uint64_t{block_tokens} * sizeof(TokenId));
  }
  uint64_t allocated_bytes() const {
    return out_.capacity() + hashes_.capacity() * sizeof(uint64_t) +
           tokens_.capacity() * sizeof(TokenId);
  }

  void Begin(double unix_s);
  // Adds a block after `parent`; absent: it begins a prompt.
  void Stored(std::optional<uint64_t> parent, uint64_t hash, std::span<const TokenId> tokens);
  void Removed(uint64_t hash);
  void Cleared();
  // Returns the batch; valid until Wipe.
  std::span<const std::byte> End();
  uint32_t num_blocks() const { return num_blocks_; }  // stored and removed since Begin
  void Wipe();                                         // zeroes what was written

 private:
  // 141 bytes of a map whose run has one block, without its tokens.
  static constexpr uint64_t kBatchBytes = 64, kEventBytes = 144, kMostJoined = 256;
  enum class Run : uint8_t { kNone, kStored, kRemoved };

  void EndRun();
  void WriteStored();
  void WriteRemoved();
  void Byte(uint8_t byte) { out_.push_back(std::byte{byte}); }
  void BigEndian(uint64_t value, uint32_t num_bytes);
  void Uint(uint64_t value);
  void Nil() { Byte(0xc0); }
  void Text(std::string_view text);
  void Key(std::string_view name);  // nothing in an array
  void Begin(uint8_t map_keys, uint8_t array_values, std::string_view type);
  void Array(uint64_t size);
  void Hashes();

  const KvEventsFormat format_;
  const uint32_t block_tokens_;
  std::vector<std::byte> out_;
  Run run_ = Run::kNone;
  std::optional<uint64_t> parent_;  // of the run's first block
  std::vector<uint64_t> hashes_;    // [kMostJoined], of the run
  std::vector<TokenId> tokens_;
  uint32_t num_events_ = 0, num_blocks_ = 0;
};

}  // namespace kvasir
