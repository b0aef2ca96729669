#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "attention/kernels.h"
#include "attention/reference.h"
#include "base/random.h"
#include "format/pack.h"
#include "simd/half.h"

namespace kvasir {
namespace {

float RoundTrip(float x, KvFormat format) {
  if (format == KvFormat::kF16) return FromF16(ToF16(x));
  return format == KvFormat::kBf16 ? FromBf16(ToBf16(x)) : x;
}

// Random K and V of `tokens` tokens in blocks whose other bytes are NaN.
struct Kv {
  Kv(Random& random, uint32_t tokens, uint32_t kv_heads, uint32_t head_dim, uint32_t block_tokens,
     KvFormat format)
      : layout(Shape(kv_heads, head_dim, block_tokens, format)) {
    const uint32_t runs = block_tokens / 16;
    k.resize(kv_heads);
    v.resize(kv_heads);
    for (uint32_t t = 0; t < tokens; ++t) {
      if (t % block_tokens == 0) memory.emplace_back(layout.block_bytes(), std::byte{0xff});
      std::byte* block = memory.back().data();
      for (uint32_t h = 0; h < kv_heads; ++h) {
        std::vector<float> kt(head_dim), vt(head_dim);
        for (float& x : kt) x = RoundTrip(static_cast<float>(random.Uniform() * 6 - 3), format);
        for (float& x : vt) x = RoundTrip(static_cast<float>(random.Uniform() * 2 - 1), format);
        const uint32_t in = t % block_tokens;
        PackKey(kt.data(), format, head_dim, in % 16,
                block + layout.key_offset(0) +
                    (h * runs + in / 16) * KvBytes(format, uint64_t{head_dim} * 16));
        PackValue(vt.data(), format, head_dim, layout.value_stride(),
                  block + layout.value_offset(0) +
                      (h * block_tokens + in) * KvBytes(format, layout.value_stride()));
        k[h].insert(k[h].end(), kt.begin(), kt.end());
        v[h].insert(v[h].end(), vt.begin(), vt.end());
      }
    }
    for (auto& block : memory) blocks.push_back(block.data());
    view = {blocks.data(),
            layout.key_offset(0),
            layout.value_offset(0),
            format,
            format,
            block_tokens,
            kv_heads,
            head_dim,
            layout.value_stride()};
  }
  static BlockShape Shape(uint32_t kv_heads, uint32_t head_dim, uint32_t block_tokens,
                          KvFormat format) {
    return {block_tokens, 1, kv_heads, head_dim, {format}, {format}};
  }

  BlockLayout layout;
  std::vector<std::vector<float>> k, v;  // [kv_head][token][head_dim], as read back
  std::vector<std::vector<std::byte>> memory;
  std::vector<std::byte*> blocks;
  PagedKv view;
};

class AttentionTargets : public testing::TestWithParam<Target> {
 protected:
  // Queries with the given limits over kv head `head`, spans one by one or all at once.
  std::vector<std::vector<float>> Run(const Kv& kv, uint32_t head,
                                      const std::vector<std::vector<float>>& q,
                                      const std::vector<uint32_t>& limit, bool split) {
    const uint32_t floats = PartialFloats(kv.view.value_stride);
    const uint32_t spans = (limit.back() + kAttentionSpan - 1) / kAttentionSpan;
    std::vector<std::vector<float>> merged(q.size(), Empty(floats)), out;
    std::vector<const float*> qp;
    for (const auto& x : q) qp.push_back(x.data());
    for (uint32_t span = 0; span < spans; span += split ? 1 : spans) {
      std::vector<std::vector<float>> part(q.size(), Empty(floats));
      std::vector<float*> pp;
      for (auto& x : part) pp.push_back(x.data());
      kernels_.attend({&kv.view, head, static_cast<uint32_t>(q.size()), qp.data(), limit.data(),
                       pp.data(), span, split ? span + 1 : spans});
      for (size_t i = 0; i < q.size(); ++i) {
        kernels_.merge(merged[i].data(), part[i].data(), kv.view.value_stride);
      }
    }
    for (const auto& m : merged) {
      out.emplace_back(kv.view.head_dim);
      kernels_.finish(m.data(), kv.view.head_dim, kv.view.value_stride, out.back().data());
    }
    return out;
  }
  static std::vector<float> Empty(uint32_t floats) {
    std::vector<float> partial(floats);
    partial[floats - 2] = -INFINITY;
    return partial;
  }
  const AttentionKernels& kernels_ = AttentionKernelsFor(GetParam());
};

TEST_P(AttentionTargets, AnyGroupOfQueriesHasTheReferencesBits) {
  Random random(11);
  for (KvFormat format : {KvFormat::kF32, KvFormat::kF16, KvFormat::kBf16}) {
    for (uint32_t head_dim : {8u, 20u, 32u, 64u}) {
      const uint32_t block_tokens = random.Below(2) == 0 ? 16 : 48;
      const Kv kv(random, 900, 2, head_dim, block_tokens, format);
      for (int round = 0; round < 12; ++round) {
        const uint32_t count = 1 + static_cast<uint32_t>(random.Below(kMaxQueries));
        uint32_t limit = 1 + static_cast<uint32_t>(random.Below(800));
        std::vector<std::vector<float>> q(count, std::vector<float>(head_dim));
        std::vector<uint32_t> limits;
        for (auto& query : q) {
          for (float& x : query) x = static_cast<float>(random.Uniform() * 2 - 1);
          limits.push_back(limit);
          limit = std::min<uint32_t>(900, limit + static_cast<uint32_t>(random.Below(3)));
        }
        const auto whole = Run(kv, 1, q, limits, false), split = Run(kv, 1, q, limits, true);
        for (uint32_t i = 0; i < count; ++i) {
          const auto expected = reference::Attention(q[i], kv.k[1], kv.v[1], limits[i]);
          ASSERT_EQ(std::memcmp(whole[i].data(), expected.data(), head_dim * 4), 0)
              << "format " << int(format) << " head_dim " << head_dim << " limit " << limits[i];
          ASSERT_EQ(std::memcmp(split[i].data(), expected.data(), head_dim * 4), 0);
        }
      }
    }
  }
}

TEST_P(AttentionTargets, AgreesWithSoftmaxInDouble) {
  Random random(12);
  const Kv kv(random, 700, 1, 32, 16, KvFormat::kF32);
  std::vector<float> q(32);
  for (float& x : q) x = static_cast<float>(random.Uniform() - 0.5);
  const auto out = Run(kv, 0, {q}, {700}, false)[0];
  std::vector<double> score(700), expected(32);
  double total = 0;
  for (int t = 0; t < 700; ++t) {
    for (int i = 0; i < 32; ++i) score[t] += double{q[i]} * kv.k[0][t * 32 + i];
    total += std::exp(score[t]);
  }
  for (int t = 0; t < 700; ++t) {
    for (int i = 0; i < 32; ++i) expected[i] += std::exp(score[t]) / total * kv.v[0][t * 32 + i];
  }
  for (int i = 0; i < 32; ++i) EXPECT_NEAR(out[i], expected[i], 2e-6);
}

// Else a prompt whose activations overflow would be answered, and its KV cached.
TEST_P(AttentionTargets, AScoreThatOverflowsIsNoNumberAndStaysWithItsQuery) {
  Random random(13);
  const Kv kv(random, 300, 1, 32, 16, KvFormat::kF16);
  for (const uint32_t overflowed : {0u, 40u, 199u}) {
    std::vector<float> q(32), infinite(32);
    for (int i = 0; i < 32; ++i) {
      q[i] = static_cast<float>(random.Uniform() - 0.5);
      infinite[i] = kv.k[0][overflowed * 32 + i] > 0 ? 3e38f : -3e38f;
    }
    for (const uint32_t limit : {200u, 300u}) {  // of one span and of two
      for (const float sign : {1.0f, -1.0f}) {
        std::vector<float> bad = infinite;
        for (float& x : bad) x *= sign;
        const auto out = Run(kv, 0, {q, bad, q}, {limit, limit, limit}, /*split=*/true);
        EXPECT_TRUE(std::isnan(out[1][0]));
        EXPECT_TRUE(std::isfinite(out[0][0]));
        EXPECT_EQ(out[0], out[2]);
      }
    }
  }
}

TEST(ReferenceExp, StaysWithinItsBoundOfTheLibrary) {
  for (float x = -87.3f; x < 88.7f; x += 0.0037f) {
    ASSERT_NEAR(reference::Exp(x) / std::exp(double{x}), 1.0, 2e-7) << x;
  }
  EXPECT_EQ(reference::Exp(-87.4f), 0.0f);
  EXPECT_EQ(reference::Exp(0.0f), 1.0f);
  EXPECT_EQ(reference::Exp(89.0f), INFINITY);
}

INSTANTIATE_TEST_SUITE_P(All, AttentionTargets, testing::ValuesIn(SupportedTargets()),
                         [](const auto& info) { return std::string(NameOf(info.param)); });

}  // namespace
}  // namespace kvasir
