// A kept key that moved is asked from another place; it is never rotated again (rope_shift.json).
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "attention/kernels.h"
#include "base/mapped_file.h"
#include "base/needs_for_test.h"
#include "format/pack.h"
#include "source_paths.h"

namespace kvasir {
namespace {

using Vectors = std::vector<std::vector<float>>;

// One head over runs of a block, each asked by its query: [head_dim].
struct ShiftRun {
  uint32_t first, last;
  std::vector<float> q;
};

std::vector<float> AttendRuns(const Vectors& k, const Vectors& v, KvFormat format,
                              const std::vector<ShiftRun>& runs) {
  const auto dim = static_cast<uint32_t>(k[0].size());
  const BlockLayout layout({kRunTokens, 1, 1, dim, {format}, {format}});
  std::vector<std::byte> block(layout.block_bytes(), std::byte{0xff});
  for (uint32_t t = 0; t < k.size(); ++t) {
    const BlockPart &key = layout.key(0), &value = layout.value(0);
    PackKey(k[t].data(), format, dim, t, block.data() + key.offset,
            reinterpret_cast<uint16_t*>(block.data() + key.scale_offset));
    PackValue(v[t].data(), format, dim, t, block.data() + value.offset,
              reinterpret_cast<uint16_t*>(block.data() + value.scale_offset));
  }
  std::byte* const blocks[] = {block.data()};
  const PagedKv kv(blocks, layout, 0);
  Arena counter;
  const AttentionScratch count(dim, 1, counter);
  Arena arena = std::move(*Arena::Create(counter.used()));
  const AttentionScratch scratch(dim, 1, arena);
  std::vector<float> partial(PartialFloats(dim)), out(dim);
  partial[partial.size() - 2] = -INFINITY;
  const AttentionKernels& kernels = AttentionKernelsFor(BestTarget());
  for (const ShiftRun& run : runs) {
    const float* q = run.q.data();
    float* place = partial.data();
    AttentionKernels::Args args{};
    args.kv = &kv;
    args.scratch = &scratch;
    args.rows = args.group = args.kv_head_end = args.span_end = 1;
    args.q = &q;
    args.limit = &run.last;
    args.begin = &run.first;
    args.partial = &place;
    kernels.attend(args);
  }
  kernels.finish(partial.data(), dim, out.data());
  return out;
}

double Distance(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += std::pow(a[i] - b[i], 2);
  return std::sqrt(sum);
}

TEST(AttentionShift, AQueryThatIsRotatedStandsForKeysThatMovedInEveryFormat) {
  const std::filesystem::path file =
      std::filesystem::path(KVASIR_SHARED_DIR) / "goldens" / "rope_shift.json";
  if (!std::filesystem::exists(file)) KV_NEEDS(file.string());
  const auto golden = nlohmann::json::parse(*ReadTextFile(file, 1 << 24));
  const float scale = golden["score_scale"];
  const auto query = [&](const nlohmann::json& q) {
    std::vector<float> scaled = q;
    for (float& x : scaled) x *= scale;
    return scaled;
  };
  const Vectors original = golden["k_rotated_at_original_positions"];
  const Vectors moved = golden["k_rotated_at_new_positions"];
  const Vectors v = golden["v"];
  const std::vector<uint32_t> shift = golden["shift"];
  std::vector<ShiftRun> runs;
  for (uint32_t t = 0; t < shift.size(); ++t) {
    if (t > 0 && shift[t] == shift[t - 1]) {
      runs.back().last = t + 1;
    } else {
      runs.push_back({t, t + 1, query(golden["q_rotated_per_shift"][std::to_string(shift[t])])});
    }
  }
  ASSERT_EQ(runs.size(), 2u);
  const auto tokens = static_cast<uint32_t>(shift.size());
  const std::vector<ShiftRun> again = {{0, tokens, query(golden["q_rotated_at_new_position"])}};
  const std::vector<float> want = golden["output"];
  // What each format loses of either, as a share of the output.
  const std::pair<KvFormat, double> kLosses[] = {
      {KvFormat::kF32, 1e-6},     {KvFormat::kF16, 2e-3},    {KvFormat::kBf16, 2e-2},
      {KvFormat::kFp8E4m3, 0.15}, {KvFormat::kFp8E5m2, 0.3}, {KvFormat::kInt8, 2e-2},
      {KvFormat::kInt4, 0.3},     {KvFormat::kNf4, 0.3}};
  const double size = Distance(want, std::vector<float>(want.size()));
  for (const auto& [format, loss] : kLosses) {
    const std::vector<float> shifted = AttendRuns(original, v, format, runs);
    EXPECT_LT(Distance(shifted, want), loss * size) << NameOf(format);
    EXPECT_LT(Distance(AttendRuns(moved, v, format, again), want), loss * size) << NameOf(format);
    // Without the shift it is another answer.
    EXPECT_GT(Distance(AttendRuns(original, v, format, again), want), 2 * Distance(shifted, want))
        << NameOf(format);
  }
}

}  // namespace
}  // namespace kvasir
