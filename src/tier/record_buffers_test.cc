#include "tier/record_buffers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

namespace kvasir {
namespace {

constexpr uint32_t kNumBuffers = 3;

// Buffers of one shape, in arenas of the size that was planned for them.
struct PlannedBuffers {
  static Arena Planned(const RecordShape& shape, bool of_index) {
    Arena index, bytes;
    const RecordBuffers counted(index, bytes, shape, kNumBuffers);
    return std::move(*Arena::Create((of_index ? index : bytes).used()));
  }
  explicit PlannedBuffers(const RecordShape& shape)
      : index(Planned(shape, true)),
        bytes(Planned(shape, false)),
        buffers(index, bytes, shape, kNumBuffers) {}

  Arena index, bytes;
  RecordBuffers buffers;
};

TEST(RecordBuffers, TakeWhatIsPlannedAndLieApart) {
  for (const uint64_t payload_bytes : {600u, 5000u, 1u << 20}) {
    const RecordShape shape{.block_tokens = 16, .payload_bytes = payload_bytes};
    const PlannedBuffers planned(shape);
    const RecordBuffers& buffers = planned.buffers;
    EXPECT_EQ(planned.index.used(), planned.index.size());
    EXPECT_EQ(planned.bytes.used(), planned.bytes.size());
    ASSERT_EQ(buffers.size(), kNumBuffers);
    std::vector<std::span<std::byte>> parts;
    for (uint32_t i = 0; i < kNumBuffers; ++i) {
      parts.push_back(buffers.HeaderOf(i));
      EXPECT_EQ(parts.back().size(), shape.header_bytes());
      parts.push_back(buffers.PayloadOf(i));
      EXPECT_EQ(parts.back().size(), shape.stride_bytes());
    }
    for (const uint32_t thread : {0, 1}) {
      parts.push_back(buffers.ScratchOf(thread));
      EXPECT_GE(parts.back().size(), shape.slot_bytes()) << "a thread reads a whole slot";
    }
    for (size_t i = 0; i < parts.size(); ++i) std::ranges::fill(parts[i], std::byte(i + 1));
    for (size_t i = 0; i < parts.size(); ++i) {
      EXPECT_EQ(std::ranges::count(parts[i], std::byte(i + 1)),
                static_cast<ptrdiff_t>(parts[i].size()))
          << "another part lies in part " << i;
    }
  }
}

TEST(RecordBuffers, TheTokensStandInTheHeaderAfterItsPublicPart) {
  const PlannedBuffers planned({.block_tokens = 16, .payload_bytes = 600});
  for (uint32_t i = 0; i < kNumBuffers; ++i) {
    const std::span<std::byte> tokens = planned.buffers.TokensOf(i);
    EXPECT_EQ(tokens.size(), 16 * sizeof(TokenId));
    EXPECT_EQ(tokens.data(), planned.buffers.HeaderOf(i).data() + kPublicBytes);
  }
}

TEST(RecordBuffer, IsAReadOrAWriteUntilItIsCancelled) {
  using Use = RecordBuffer::Use;
  const PlannedBuffers planned({.block_tokens = 16, .payload_bytes = 600});
  for (uint32_t i = 0; i < kNumBuffers; ++i) {
    EXPECT_EQ(planned.buffers.at(i).use, Use::kFree);
    EXPECT_FALSE(planned.buffers.at(i).is_read() || planned.buffers.at(i).is_write());
  }
  RecordBuffer read{.use = Use::kReading, .entry = EntryId{0}};
  EXPECT_TRUE(read.is_read() && !read.is_write());
  RecordBuffer write{.use = Use::kQueued, .has_owner = true, .entry = EntryId{0}};
  EXPECT_TRUE(write.is_write() && !write.is_read());
  for (RecordBuffer* const one : {&read, &write}) {
    one->Cancel();
    EXPECT_TRUE(one->is_cancelled && one->is_erased);
    EXPECT_FALSE(one->is_read() || one->is_write()) << "the index has it no more";
  }
}

TEST(BufferQueues, TakeWhatIsPlannedAndHoldAllBuffers) {
  Arena planned;
  const BufferQueues counted(planned, kNumBuffers);
  auto arena = Arena::Create(planned.used());
  ASSERT_TRUE(arena);
  BufferQueues queues(*arena, kNumBuffers);
  EXPECT_EQ(arena->used(), arena->size());
  for (uint32_t i = 0; i < kNumBuffers; ++i) {
    queues.writes.PushBack(i);
    queues.reads.PushFront(i);
  }
  EXPECT_EQ(queues.writes.PopFront(), 0u);
  EXPECT_EQ(queues.reads.PopFront(), kNumBuffers - 1);
}

}  // namespace
}  // namespace kvasir
