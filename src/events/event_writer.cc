#include "events/event_writer.h"

#include <bit>

#include "base/check.h"
#include "base/wipe.h"

namespace kvasir {
namespace {

constexpr size_t kEventCountAt = 11;  // after the array's head, a head and 8 bytes of time, a head

}  // namespace

EventWriter::EventWriter(KvEventsFormat format, uint32_t block_tokens, uint64_t max_events)
    : format_(format), block_tokens_(block_tokens) {
  out_.reserve(MaxBytes(block_tokens, max_events));
  hashes_.reserve(kMostJoined);
  tokens_.reserve(kMostJoined * block_tokens);
}

void EventWriter::Begin(double unix_s) {
  num_events_ = num_blocks_ = 0;
  Byte(0x93);
  Byte(0xcb);
  BigEndian(std::bit_cast<uint64_t>(unix_s), 8);
  Byte(0xdd);
  BigEndian(0, 4);  // until End
}

void EventWriter::Stored(std::optional<uint64_t> parent, uint64_t hash,
                         std::span<const TokenId> tokens) {
  const bool follows =
      run_ == Run::kStored && hashes_.size() < kMostJoined && parent && *parent == hashes_.back();
  if (!follows) {
    EndRun();
    run_ = Run::kStored;
    parent_ = parent;
  }
  hashes_.push_back(hash);
  tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
  ++num_blocks_;
}

void EventWriter::Removed(uint64_t hash) {
  if (run_ != Run::kRemoved || hashes_.size() == kMostJoined) EndRun();
  run_ = Run::kRemoved;
  hashes_.push_back(hash);
  ++num_blocks_;
}

void EventWriter::Cleared() {
  EndRun();
  Begin(1, 1, "AllBlocksCleared");
}

std::span<const std::byte> EventWriter::End() {
  EndRun();
  for (size_t i = 0; i < 4; ++i) {
    out_[kEventCountAt + i] = std::byte{static_cast<uint8_t>(num_events_ >> (24 - 8 * i))};
  }
  Uint(0);  // vLLM's data_parallel_rank
  return out_;
}

void EventWriter::Wipe() {
  KV_CHECK(run_ == Run::kNone);  // End was called
  kvasir::Wipe(&out_);
}

void EventWriter::EndRun() {
  if (run_ == Run::kStored) WriteStored();
  if (run_ == Run::kRemoved) WriteRemoved();
  hashes_.clear();
  kvasir::Wipe(&tokens_);
  run_ = Run::kNone;
}

void EventWriter::WriteStored() {
  Begin(9, 10, "BlockStored");
  Key("block_hashes");
  Hashes();
  Key("parent_block_hash");
  if (parent_) {
    Uint(*parent_);
  } else {
    Nil();
  }
  Key("token_ids");
  Array(tokens_.size());
  for (const TokenId token : tokens_) Uint(static_cast<uint32_t>(token));
  Key("block_size");
  Uint(block_tokens_);
  Key("lora_id");
  Nil();
  Key("medium");
  Text("GPU");
  Key("lora_name");
  Nil();
  if (format_ == KvEventsFormat::kArray) Nil();  // extra_keys
  Key("group_idx");
  Uint(0);
}

void EventWriter::WriteRemoved() {
  Begin(4, 4, "BlockRemoved");
  Key("block_hashes");
  Hashes();
  Key("medium");
  Text("GPU");
  Key("group_idx");
  Uint(0);
}

// Begins an event: the head of its map or array, and its type.
void EventWriter::Begin(uint8_t map_keys, uint8_t array_values, std::string_view type) {
  ++num_events_;
  Byte(format_ == KvEventsFormat::kMap ? 0x80 | map_keys : 0x90 | array_values);
  Key("type");
  Text(type);
}

void EventWriter::Key(std::string_view name) {
  if (format_ == KvEventsFormat::kMap) Text(name);
}

void EventWriter::Hashes() {
  Array(hashes_.size());
  for (const uint64_t hash : hashes_) Uint(hash);
}

void EventWriter::Text(std::string_view text) {  // at most 31 bytes
  Byte(0xa0 | static_cast<uint8_t>(text.size()));
  for (const char c : text) Byte(static_cast<uint8_t>(c));
}

void EventWriter::Array(uint64_t size) {
  if (size < 16) return Byte(0x90 | static_cast<uint8_t>(size));
  Byte(size <= 0xffff ? 0xdc : 0xdd);
  BigEndian(size, size <= 0xffff ? 2 : 4);
}

void EventWriter::Uint(uint64_t value) {
  if (value < 0x80) return Byte(static_cast<uint8_t>(value));
  const uint32_t width = value <= 0xff ? 0 : value <= 0xffff ? 1 : value <= 0xffffffff ? 2 : 3;
  Byte(static_cast<uint8_t>(0xcc + width));
  BigEndian(value, 1u << width);
}

void EventWriter::BigEndian(uint64_t value, uint32_t num_bytes) {
  for (uint32_t i = num_bytes; i-- > 0;) Byte(static_cast<uint8_t>(value >> (8 * i)));
}

}  // namespace kvasir
