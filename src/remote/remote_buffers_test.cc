#include "remote/remote_buffers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <span>
#include <vector>

namespace kvasir {
namespace {

TEST(RemoteBuffers, TakeWhatIsPlannedAndLieApart) {
  for (const uint32_t num_codecs : {0u, 2u}) {
    const RemoteTierOptions options{.memory_bytes = 16 * 1024,
                                    .shape = {.block_tokens = 16, .payload_bytes = 4000},
                                    .num_codecs = num_codecs};
    Arena index_plan, out_plan;
    const RemoteBuffers counted(index_plan, out_plan, options);
    auto index = Arena::Create(index_plan.used()), out = Arena::Create(out_plan.used());
    ASSERT_TRUE(index && out);
    RemoteBuffers buffers(*index, *out, options);
    EXPECT_EQ(index->used(), index->size());
    EXPECT_EQ(out->used(), out->size());
    EXPECT_EQ(buffers.codecs().empty(), num_codecs == 0);
    ASSERT_EQ(buffers.size(), options.num_buffers());
    ASSERT_EQ(buffers.all().size(), buffers.size());
    std::vector<std::span<std::byte>> parts = {buffers.probe()};
    for (uint32_t i = 0; i < buffers.size(); ++i) {
      EXPECT_EQ(&buffers[i], &buffers.all()[i]);
      EXPECT_EQ(buffers[i].use, RemoteBuffer::Use::kFree);
      parts.push_back(buffers.ValueOf(i));
      EXPECT_EQ(parts.back().size(), options.value_bytes());
    }
    for (size_t i = 0; i < parts.size(); ++i) std::ranges::fill(parts[i], std::byte(i + 1));
    for (size_t i = 0; i < parts.size(); ++i) {
      EXPECT_EQ(std::ranges::count(parts[i], std::byte(i + 1)),
                static_cast<ptrdiff_t>(parts[i].size()))
          << "another part lies in part " << i;
    }
  }
}

}  // namespace
}  // namespace kvasir
