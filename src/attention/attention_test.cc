#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <numeric>
#include <vector>

#include "attention/kernels.h"
#include "attention/reference.h"
#include "base/random.h"
#include "format/pack.h"
#include "simd/half.h"

namespace kvasir {
namespace {

constexpr KvFormat kAllFormats[] = {KvFormat::kF32,     KvFormat::kF16,     KvFormat::kBf16,
                                    KvFormat::kFp8E4m3, KvFormat::kFp8E5m2, KvFormat::kInt8,
                                    KvFormat::kInt4,    KvFormat::kNf4};

// Random K and V of `tokens` tokens in blocks whose other bytes are 0xff: NaN as floats and scales.
struct Kv {
  // `spread`: numbers are scaled by 2^-spread to 2^spread, token by token.
  Kv(Random& random, uint32_t tokens, uint32_t kv_heads, uint32_t head_dim, uint32_t block_tokens,
     KvFormats formats, int spread = 0)
      : layout({block_tokens, 1, kv_heads, head_dim, {formats.k}, {formats.v}}) {
    for (uint32_t h = 0; h < kv_heads; ++h) {
      k.push_back({formats.k, {}, {}});
      v.push_back({formats.v, {}, {}});
    }
    for (uint32_t t = 0; t < tokens; ++t) {
      if (t % block_tokens == 0) memory.emplace_back(layout.block_bytes(), std::byte{0xff});
      for (uint32_t h = 0; h < kv_heads; ++h) {
        const auto scale = [&] {
          const auto wide = 2 * static_cast<uint64_t>(spread) + 1;
          return std::ldexp(1.0, static_cast<int>(random.Below(wide)) - spread);
        };
        std::vector<float> kt(head_dim), vt(head_dim);
        const double k_scale = scale(), v_scale = scale();
        for (float& x : kt) x = static_cast<float>((random.Uniform() * 6 - 3) * k_scale);
        for (float& x : vt) x = static_cast<float>((random.Uniform() * 2 - 1) * v_scale);
        Pack(t, h, kt, vt);
      }
    }
    for (auto& block : memory) blocks.push_back(block.data());
  }

  void Pack(uint32_t token, uint32_t h, const std::vector<float>& kt,
            const std::vector<float>& vt) {
    std::byte* block = memory.back().data();
    const uint32_t bt = layout.block_tokens(), dim = layout.shape().head_dim, lane = token % 16;
    const size_t run = h * (bt / 16) + token % bt / 16;
    const BlockPart &key = layout.key(0), &value = layout.value(0);
    std::byte* key_run = block + key.offset + run * key.run_bytes;
    std::byte* value_run = block + value.offset + run * value.run_bytes;
    auto* key_scales = reinterpret_cast<uint16_t*>(block + key.scale_offset) + run * 16;
    auto* value_scales = reinterpret_cast<uint16_t*>(block + value.scale_offset) + run * 16;
    PackKey(kt.data(), key.format, dim, lane, key_run, key_scales);
    PackValue(vt.data(), value.format, dim, lane, value_run, value_scales);
    for (uint32_t i = 0; i < dim; ++i) {
      k[h].x.push_back(KeyNumber(key.format, key_run, lane, i));
      v[h].x.push_back(ValueNumber(value.format, dim, value_run, lane, i));
    }
    k[h].scale.push_back(TraitsOf(key.format).scaled ? FromBf16(key_scales[lane]) : 1);
    v[h].scale.push_back(TraitsOf(value.format).scaled ? FromBf16(value_scales[lane]) : 1);
  }
  PagedKv view() const { return {blocks.data(), layout, 0}; }

  BlockLayout layout;
  std::vector<reference::Numbers> k, v;  // [kv_head]
  std::vector<std::vector<std::byte>> memory;
  std::vector<std::byte*> blocks;
};

// What each kv head sees: stretches of about `stretch` tokens, and always the first token.
struct Mask {
  Mask() = default;
  Mask(Random& random, uint32_t tokens, uint32_t kv_heads, uint64_t stretch)
      : head_words((tokens + kAttentionTile - 1) / kAttentionTile), words(head_words * kv_heads) {
    for (uint32_t h = 0; h < kv_heads; ++h) {
      bool sees = true;
      for (uint32_t t = 0; t < tokens; ++t) {
        if (sees) words[h * head_words + t / 64] |= uint64_t{1} << (t % 64);
        if (random.Below(stretch) == 0) sees = !sees;
      }
    }
  }
  TokenMask view() const {
    return words.empty() ? TokenMask{} : TokenMask{words.data(), head_words};
  }
  bool Sees(uint32_t kv_head, uint32_t t) const {
    return words.empty() ||
           (t / 64 < head_words && (words[kv_head * head_words + t / 64] >> (t % 64) & 1) != 0);
  }
  std::vector<bool> seen(uint32_t kv_head) const {
    std::vector<bool> all;
    for (uint32_t t = 0; !words.empty() && t < head_words * 64; ++t)
      all.push_back(Sees(kv_head, t));
    return all;
  }
  size_t head_words = 0;
  std::vector<uint64_t> words;  // [kv_head][head_words]
};

using Rows = std::vector<std::vector<float>>;

class AttentionTargets : public testing::TestWithParam<Target> {
 protected:
  // Computes all heads of rows q with the given limits: each span separately, or all at once.
  Rows Run(const Kv& kv, uint32_t group, const Rows& q, const std::vector<uint32_t>& limit,
           bool split, TokenMask mask = {}) {
    const uint32_t head_dim = kv.layout.shape().head_dim, kv_heads = kv.layout.shape().kv_heads;
    const uint32_t floats = PartialFloats(head_dim), heads = group * kv_heads;
    const uint32_t spans = (limit.back() + kAttentionSpan - 1) / kAttentionSpan;
    const uint32_t places = split ? spans : 1;
    Arena counter;
    const AttentionScratch count(head_dim, static_cast<uint32_t>(q.size()) * heads, counter);
    Arena arena = std::move(*Arena::Create(counter.used()));
    const AttentionScratch scratch(head_dim, static_cast<uint32_t>(q.size()) * heads, arena);
    Rows partials(q.size());
    std::vector<const float*> qp;
    std::vector<float*> pp;
    for (size_t i = 0; i < q.size(); ++i) {
      for (uint32_t p = 0; p < places * heads; ++p) {
        partials[i].resize(partials[i].size() + floats);
        partials[i][partials[i].size() - 2] = -INFINITY;
      }
      qp.push_back(q[i].data());
      pp.push_back(partials[i].data());
    }
    // Blocks of tiles that no row sees are not touched.
    std::vector<std::byte*> blocks = kv.blocks;
    const uint32_t untouched = BeginOf(limit.front()) / kAttentionTile * kAttentionTile;
    std::fill_n(blocks.begin(), untouched / kv.layout.block_tokens(), nullptr);
    const PagedKv view(blocks.data(), kv.layout, 0);
    AttentionKernels::Args args{&view,
                                &scratch,
                                static_cast<uint32_t>(q.size()),
                                group,
                                0,
                                kv_heads,
                                0,
                                spans,
                                qp.data(),
                                limit.data(),
                                pp.data(),
                                split ? size_t{heads} * floats : 0,
                                mask};
    std::vector<uint32_t> begin;
    for (const uint32_t of_row : limit) begin.push_back(BeginOf(of_row));
    if (window_ > 0) args.begin = begin.data();
    args.softcap = softcap_;
    kernels_.attend(args);
    Rows out;
    Rows softmax(q.size());
    for (size_t i = 0; i < q.size(); ++i) {
      out.emplace_back(size_t{heads} * head_dim);
      for (uint32_t head = 0; head < heads; ++head) {
        float* merged = pp[i] + size_t{head} * floats;
        for (uint32_t p = 1; p < places; ++p) {
          kernels_.merge(merged, merged + size_t{p} * heads * floats, head_dim);
        }
        kernels_.finish(merged, head_dim, out.back().data() + size_t{head} * head_dim);
        softmax[i].insert(softmax[i].end(), merged + floats - 2, merged + floats);
      }
    }
    Sum(args, softmax);
    return out;
  }
  // Adds up the softmax sums of the rows at hand: sums_ [kv_head][token].
  void Sum(const AttentionKernels::Args& args, const Rows& softmax) {
    sums_.assign(args.kv_head_end, std::vector<float>(args.span_end * kAttentionSpan));
    std::vector<const float*> ended;
    std::vector<float*> sums;
    for (const auto& row : softmax) ended.push_back(row.data());
    for (auto& head : sums_) sums.push_back(head.data());
    kernels_.sum_weights(args, ended.data(), sums.data());
  }
  // Compares rows of random queries with the reference, bit for bit; all rows at once and one by
  // one. Softmax sums add up, row by row, to the same bits.
  void Compare(Random& random, const Kv& kv, uint32_t max_limit, const Mask& mask = {}) {
    const uint32_t dim = kv.layout.shape().head_dim, kv_heads = kv.layout.shape().kv_heads;
    const uint32_t group = 1 + static_cast<uint32_t>(random.Below(9));
    const uint32_t count = 1 + static_cast<uint32_t>(random.Below(random.Below(2) == 0 ? 2 : 14));
    uint32_t limit = 1 + static_cast<uint32_t>(random.Below(max_limit - 30));
    Rows q(count, std::vector<float>(size_t{group} * kv_heads * dim));
    std::vector<uint32_t> limits;
    for (auto& row : q) {
      for (float& x : row) x = static_cast<float>(random.Uniform() * 2 - 1);
      limits.push_back(limit);
      limit = std::min<uint32_t>(max_limit, limit + static_cast<uint32_t>(random.Below(3)));
    }
    const TokenMask seen = mask.view();
    const Rows whole = Run(kv, group, q, limits, false, seen);
    const Rows sums = sums_;
    const Rows split = Run(kv, group, q, limits, true, seen);
    EXPECT_EQ(sums_, sums);
    for (uint32_t h = 0; h < kv_heads; ++h) {
      const double total = std::accumulate(sums[h].begin(), sums[h].end(), 0.0);
      EXPECT_NEAR(total, static_cast<double>(count) * group, 1e-4 * count * group);
      for (uint32_t t = 0; t < sums[h].size(); ++t) {
        if (!mask.Sees(h, t) || t >= limits.back() || t < BeginOf(limits.front())) {
          EXPECT_EQ(sums[h][t], 0.0f);
        }
      }
    }
    Rows expected_sums(kv_heads, std::vector<float>(sums[0].size()));
    for (uint32_t i = 0; i < count; ++i) {
      EXPECT_EQ(Run(kv, group, {q[i]}, {limits[i]}, false, seen)[0], whole[i]);
      AddOneByOne(kv, group, q[i], limits[i], seen, expected_sums);
      for (uint32_t head = 0; head < group * kv_heads; ++head) {
        const auto expected = reference::Attention(
            std::span<const float>(q[i]).subspan(size_t{head} * dim, dim), kv.k[head / group],
            kv.v[head / group], limits[i], SeenBy(limits[i], mask, head / group), softcap_);
        const float* got = whole[i].data() + size_t{head} * dim;
        ASSERT_EQ(std::memcmp(got, expected.data(), dim * 4), 0)
            << NameOf({kv.layout.key(0).format, kv.layout.value(0).format}) << " head_dim " << dim
            << " group " << group << " rows " << count << " limit " << limits[i];
        got = split[i].data() + size_t{head} * dim;
        ASSERT_EQ(std::memcmp(got, expected.data(), dim * 4), 0);
      }
    }
    EXPECT_EQ(sums, expected_sums);
  }
  // Adds to the sums those of one row, whose query heads are added one after the other.
  void AddOneByOne(const Kv& kv, uint32_t group, const std::vector<float>& q, uint32_t limit,
                   TokenMask mask, Rows& sums) {
    const uint32_t dim = kv.layout.shape().head_dim;
    std::vector<Rows> of_head;
    for (uint32_t g = 0; g < group; ++g) {
      std::vector<float> one;  // query head g of each group
      for (uint32_t h = 0; h < kv.layout.shape().kv_heads; ++h) {
        const auto from = q.begin() + (h * group + g) * dim;
        one.insert(one.end(), from, from + dim);
      }
      Run(kv, 1, {one}, {limit}, false, mask);
      for (uint32_t h = 0; h < sums_.size(); ++h) {
        for (uint32_t t = 0; t < sums_[h].size(); ++t) sums[h][t] += sums_[h][t];
      }
    }
  }
  uint32_t BeginOf(uint32_t limit) const {
    return window_ == 0 || limit <= window_ ? 0 : limit - window_;
  }
  std::vector<bool> SeenBy(uint32_t limit, const Mask& mask, uint32_t kv_head) const {
    std::vector<bool> seen = mask.seen(kv_head);
    if (window_ > 0 && seen.empty()) seen.assign(limit, true);
    for (uint32_t t = 0; t < BeginOf(limit); ++t) seen[t] = false;
    return seen;
  }

  uint32_t window_ = 0;  // 0: no window
  float softcap_ = 0;    // 0: none
  Rows sums_;
  const AttentionKernels& kernels_ = AttentionKernelsFor(GetParam());
};

// All other bytes of the blocks are NaN: unfilled tokens, padding and lanes beyond a limit must not
// matter.
TEST_P(AttentionTargets, AnyRowsHaveTheReferencesBits) {
  Random random(11);
  for (const KvFormat format : kAllFormats) {
    for (const uint32_t head_dim : {8u, 20u, 32u, 64u, 80u}) {
      const uint32_t block_tokens = 16 * (1 + static_cast<uint32_t>(random.Below(6)));
      const KvFormat values = random.Below(3) == 0 ? kAllFormats[random.Below(8)] : format;
      const Kv kv(random, 600, 1 + static_cast<uint32_t>(random.Below(3)), head_dim, block_tokens,
                  {format, values}, random.Below(2) == 0 ? 0 : 12);
      for (int round = 0; round < 4; ++round) Compare(random, kv, 600);
    }
  }
}

// Whole tiles and spans that are not seen, single tokens, stretches; another mask for each kv head.
TEST_P(AttentionTargets, TokensThatAreNotSeenAreSkipped) {
  Random random(15);
  for (const KvFormat format : kAllFormats) {
    for (const uint32_t head_dim : {20u, 64u}) {
      const uint32_t kv_heads = 1 + static_cast<uint32_t>(random.Below(3));
      const Kv kv(random, 600, kv_heads, head_dim, 32, {format, kAllFormats[random.Below(8)]});
      for (int round = 0; round < 4; ++round) {
        Compare(random, kv, 600, Mask(random, 600, kv_heads, 1 + random.Below(400)));
      }
    }
  }
}

// Windows of one token, around tiles and spans, and longer than the context.
TEST_P(AttentionTargets, AWindowHasTheReferencesBits) {
  Random random(16);
  for (const KvFormat format : kAllFormats) {
    for (const uint32_t window : {1u, 2u, 15u, 63u, 64u, 65u, 200u, 255u, 256u, 257u, 599u, 700u}) {
      window_ = window;
      const auto kv_heads = 1 + static_cast<uint32_t>(random.Below(3));
      const uint32_t block_tokens = 16 * (1 + static_cast<uint32_t>(random.Below(6)));
      const Kv kv(random, 600, kv_heads, random.Below(2) == 0 ? 20 : 64, block_tokens,
                  {format, kAllFormats[random.Below(8)]});
      for (int round = 0; round < 3; ++round) Compare(random, kv, 600);
    }
  }
}

// Scores below, around and far beyond the cap; with masks, and with a window.
TEST_P(AttentionTargets, ASoftCapHasTheReferencesBits) {
  Random random(17);
  for (const KvFormat format : kAllFormats) {
    for (const float cap : {0.5f, 3.0f, 50.0f}) {
      softcap_ = cap;
      window_ = random.Below(2) == 0 ? 0 : 90;
      const auto kv_heads = 1 + static_cast<uint32_t>(random.Below(3));
      const Kv kv(random, 600, kv_heads, random.Below(2) == 0 ? 20 : 64, 32,
                  {format, kAllFormats[random.Below(8)]}, random.Below(2) == 0 ? 0 : 6);
      for (int round = 0; round < 3; ++round) Compare(random, kv, 600);
      window_ = 0;
      Compare(random, kv, 600, Mask(random, 600, kv_heads, 1 + random.Below(400)));
    }
  }
}

TEST_P(AttentionTargets, ASoftCapAgreesWithTanhInDouble) {
  Random random(18);
  const Kv kv(random, 300, 1, 32, 16, KvFormat::kF32);
  std::vector<float> q(32);
  for (float& x : q) x = static_cast<float>(random.Uniform() - 0.5);
  softcap_ = 2.0f;
  const auto out = Run(kv, 1, {q}, {300}, false)[0];
  std::vector<double> expected(32);
  double total = 0;
  for (int t = 0; t < 300; ++t) {
    double score = 0;
    for (int i = 0; i < 32; ++i) score += double{q[i]} * kv.k[0].x[t * 32 + i];
    const double weight = std::exp(2.0 * std::tanh(score));
    total += weight;
    for (int i = 0; i < 32; ++i) expected[i] += weight * kv.v[0].x[t * 32 + i];
  }
  for (int i = 0; i < 32; ++i) EXPECT_NEAR(out[i], expected[i] / total, 2e-6);
}

// Magnitudes at the ends: 2^-127 is subnormal, sums of int16 x int8 come near 2^31.
TEST_P(AttentionTargets, ExtremesHaveTheReferencesBits) {
  Random random(14);
  for (const KvFormat format : kAllFormats) {
    for (const double magnitude : {0.0, 0x1p-127, 0x1p-101, 0x1p-99, 1e4}) {
      Kv kv(random, 1, 1, 512, 16, format);
      for (reference::Numbers* n : {&kv.k[0], &kv.v[0]}) n->x.clear(), n->scale.clear();
      for (uint32_t t = 0; t < 16; ++t) {
        // All numbers of a token at +-amax: codes +-127, -8 and 7.
        std::vector<float> k(512, static_cast<float>(t % 3 == 0 ? -magnitude : magnitude)), v = k;
        for (uint32_t i = t; i < 512; i += 16) v[i] = -v[i];
        kv.Pack(t, 0, k, v);
      }
      std::vector<float> q(512, 1e-4f);
      for (const float sign : {1.0f, -1.0f}) {
        for (float& x : q) x *= sign;
        const auto expected = reference::Attention(q, kv.k[0], kv.v[0], 16);
        EXPECT_EQ(Run(kv, 1, {q}, {16}, false)[0], expected) << NameOf(format) << magnitude;
        EXPECT_EQ(Run(kv, 1, {q, q, q}, {16, 16, 16}, false)[2], expected);
      }
    }
  }
}

TEST_P(AttentionTargets, AgreesWithSoftmaxInDouble) {
  Random random(12);
  const Kv kv(random, 700, 1, 32, 16, KvFormat::kF32);
  std::vector<float> q(32);
  for (float& x : q) x = static_cast<float>(random.Uniform() - 0.5);
  const auto out = Run(kv, 1, {q}, {700}, false)[0];
  std::vector<double> score(700), expected(32);
  double total = 0;
  for (int t = 0; t < 700; ++t) {
    for (int i = 0; i < 32; ++i) score[t] += double{q[i]} * kv.k[0].x[t * 32 + i];
    total += std::exp(score[t]);
  }
  for (int t = 0; t < 700; ++t) {
    for (int i = 0; i < 32; ++i) expected[i] += std::exp(score[t]) / total * kv.v[0].x[t * 32 + i];
  }
  for (int i = 0; i < 32; ++i) EXPECT_NEAR(out[i], expected[i], 2e-6);
}

// Otherwise a prompt with overflowing activations would be answered, and its KV cached.
TEST_P(AttentionTargets, AScoreThatOverflowsIsNoNumberAndStaysWithItsQuery) {
  Random random(13);
  for (const KvFormat format : kAllFormats) {
    softcap_ = random.Below(2) == 0 ? 0.0f : 30.0f;  // a cap does not hide it
    const Kv kv(random, 300, 1, 32, 16, format);
    for (const uint32_t overflowed : {0u, 40u, 199u}) {
      std::vector<float> q(32), infinite(32);
      for (int i = 0; i < 32; ++i) {
        q[i] = static_cast<float>(random.Uniform() - 0.5);
        infinite[i] = kv.k[0].x[overflowed * 32 + i] > 0 ? 3e38f : -3e38f;
      }
      for (const uint32_t limit : {200u, 300u}) {  // of one span and of two
        for (const float sign : {1.0f, -1.0f}) {
          std::vector<float> bad = infinite;
          for (float& x : bad) x *= sign;
          const auto out = Run(kv, 1, {q, bad, q}, {limit, limit, limit}, /*split=*/true);
          EXPECT_TRUE(std::isnan(out[1][0]));
          EXPECT_TRUE(std::isfinite(out[0][0]));
          EXPECT_EQ(out[0], out[2]);
        }
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
