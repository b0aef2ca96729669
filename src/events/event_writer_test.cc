#include "events/event_writer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>

namespace kvasir {
namespace {

using nlohmann::json;

json Read(EventWriter& writer) {
  const auto bytes = writer.End();
  json read = json::from_msgpack(bytes.begin(), bytes.end());
  writer.Wipe();
  return read;
}

TEST(EventWriter, WritesMapsAsVllmDoes) {
  EventWriter writer(KvEventsFormat::kMap, 2, 8);
  writer.Begin(1.25);
  writer.Cleared();
  writer.Stored(std::nullopt, 11, std::vector<TokenId>{1, 200});
  writer.Stored(11, 12, std::vector<TokenId>{70'000, 3});
  writer.Stored(11, 13, std::vector<TokenId>{4, 5});
  writer.Removed(13);
  writer.Removed(uint64_t{1} << 62);
  EXPECT_EQ(writer.num_blocks(), 5u);
  EXPECT_EQ(Read(writer), json::parse(R"([1.25, [
      {"type": "AllBlocksCleared"},
      {"type": "BlockStored", "block_hashes": [11, 12], "parent_block_hash": null,
       "token_ids": [1, 200, 70000, 3], "block_size": 2, "lora_id": null, "medium": "GPU",
       "lora_name": null, "group_idx": 0},
      {"type": "BlockStored", "block_hashes": [13], "parent_block_hash": 11, "token_ids": [4, 5],
       "block_size": 2, "lora_id": null, "medium": "GPU", "lora_name": null, "group_idx": 0},
      {"type": "BlockRemoved", "block_hashes": [13, 4611686018427387904], "medium": "GPU",
       "group_idx": 0}], 0])"));
}

TEST(EventWriter, WritesArraysWithVllmsPlaces) {
  EventWriter writer(KvEventsFormat::kArray, 2, 8);
  writer.Begin(2);
  writer.Cleared();
  writer.Stored(9, 10, std::vector<TokenId>{1, 2});
  writer.Removed(10);
  EXPECT_EQ(Read(writer), json::parse(R"([2.0, [["AllBlocksCleared"],
      ["BlockStored", [10], 9, [1, 2], 2, null, "GPU", null, null, 0],
      ["BlockRemoved", [10], "GPU", 0]], 0])"));
}

TEST(EventWriter, NoBatchIsLongerThanPlanned) {
  constexpr uint32_t kBlockTokens = 16, kEvents = 3'000;
  EventWriter writer(KvEventsFormat::kMap, kBlockTokens, kEvents);
  const uint64_t planned = EventWriter::BytesFor(kBlockTokens, kEvents);
  const std::vector<TokenId> tokens(kBlockTokens, 2'000'000'000);
  constexpr uint64_t kHash = ~uint64_t{0} >> 1;
  for (const bool joined : {false, true}) {
    writer.Begin(1);
    writer.Cleared();
    uint64_t num_events = 1;
    for (uint64_t i = 0; i < kEvents; ++i) {
      writer.Stored(joined ? kHash - i + 1 : kHash - kEvents, kHash - i, tokens);
    }
    const json batch = Read(writer);
    if (joined) num_events += (kEvents + 255) / 256;
    EXPECT_EQ(batch[1].size(), joined ? num_events : kEvents + 1);
    EXPECT_EQ(writer.allocated_bytes(), planned);  // nothing has grown
  }
}

}  // namespace
}  // namespace kvasir
