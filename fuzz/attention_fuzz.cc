// Attention kernels of every target that this CPU has, on shapes, KV formats, masks, soft-caps and
// numbers from the input: each must give the bits of the scalar ones, with all spans merged or
// separate. Unfilled tokens are NaN and must not matter.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <string>
#include <vector>

#include "attention/kernels.h"
#include "base/check.h"
#include "byte_source.h"
#include "format/pack.h"
#include "fuzz_target.h"
#include "number_source.h"
#include "simd/target.h"

namespace kvasir {
namespace {

using Floats = ExactBuffer<float>;

constexpr KvFormat kFormats[] = {KvFormat::kF32,     KvFormat::kF16,     KvFormat::kBf16,
                                 KvFormat::kFp8E4m3, KvFormat::kFp8E5m2, KvFormat::kInt8,
                                 KvFormat::kInt4,    KvFormat::kNf4};
constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

BlockLayout SomeLayout(ByteSource& bytes) {
  BlockShape shape;
  shape.block_tokens = kRunTokens * bytes.Between(1, 6);
  shape.num_layers = bytes.Between(1, 2);
  shape.kv_heads = bytes.Between(1, 3);
  shape.head_dim = 2 * bytes.Between(1, bytes.Below(8) == 0 ? 140 : 42);
  for (uint32_t i = 0; i < shape.num_layers; ++i) {
    shape.k_format.push_back(kFormats[bytes.Below(std::size(kFormats))]);
    shape.v_format.push_back(kFormats[bytes.Below(std::size(kFormats))]);
  }
  return BlockLayout(shape);
}

// The rows of a sequence, and the KV that they see.
struct Scene {
  explicit Scene(ByteSource& bytes)
      : layout(SomeLayout(bytes)),
        dim(layout.shape().head_dim),
        kv_heads(layout.shape().kv_heads),
        layer(bytes.Below(layout.shape().num_layers)),
        group(bytes.Between(1, 9)),
        rows(bytes.Between(1, bytes.Below(2) == 0 ? 2 : 12)),
        kv_head_begin(bytes.Below(kv_heads)),
        kv_head_end(bytes.Between(kv_head_begin + 1, kv_heads)) {
    uint32_t last = bytes.Below(4) == 0 ? 1 + bytes.U32() % 700 : bytes.Between(1, 130);
    for (uint32_t r = 0; r < rows; ++r, last += bytes.Below(3)) limit.push_back(last);
    span_end = (limit.back() + kAttentionSpan - 1) / kAttentionSpan;
    span_begin = bytes.Below(span_end);
    TakeMask(bytes);
    NumberSource numbers(bytes);
    Fill(numbers);
    // Last, so that inputs from before it keep their scenes. As loaders allow: positive and finite.
    constexpr float kSoftcaps[] = {0, 50, 1, 1e-30f, 1e30f};
    softcap = bytes.empty() ? 0 : kSoftcaps[bytes.Below(std::size(kSoftcaps))];
  }

  uint32_t tokens() const { return limit.back(); }
  uint32_t heads() const { return (kv_head_end - kv_head_begin) * group; }

  const BlockLayout layout;
  const uint32_t dim, kv_heads, layer, group, rows, kv_head_begin, kv_head_end;
  uint32_t span_begin, span_end;
  float softcap;  // 0: none
  std::vector<uint32_t> limit;
  size_t head_words = 0;
  std::vector<uint64_t> mask;                  // [kv_head][head_words], or empty: all is seen
  std::vector<ExactBuffer<std::byte>> memory;  // blocks
  std::vector<std::byte*> blocks;
  std::vector<Floats> q;  // [row]

 private:
  void TakeMask(ByteSource& bytes) {
    const uint32_t kind = bytes.Below(4);
    if (kind < 2) return;
    head_words = (tokens() + kAttentionTile - 1) / kAttentionTile;
    Random random(bytes.U32());
    for (size_t i = 0; i < head_words * kv_heads; ++i) {
      const uint64_t sparse = random.Bits() & random.Bits() & random.Bits();
      constexpr uint64_t kAll = ~uint64_t{0};
      const uint64_t words[] = {0, kAll, random.Bits(), sparse, kAll << random.Below(64)};
      mask.push_back(words[random.Below(kind == 2 ? 2 : std::size(words))]);
    }
  }

  void Fill(NumberSource& numbers) {
    std::vector<float> k(dim), v(dim);
    for (uint32_t t = 0; t < tokens(); ++t) {
      if (t % layout.block_tokens() == 0) {
        memory.emplace_back(layout.block_bytes());
        blocks.push_back(memory.back().data());
      }
      for (uint32_t h = 0; h < kv_heads; ++h) {
        for (float& x : k) x = numbers.Next();
        for (float& x : v) x = numbers.Next();
        PackToken(t, h, k, v);
      }
    }
    for (uint32_t r = 0; r < rows; ++r) {
      q.emplace_back(size_t{group} * kv_heads * dim);
      for (size_t i = 0; i < q.back().size(); ++i) q.back()[i] = numbers.Next();
    }
  }

  void PackToken(uint32_t token, uint32_t head, const std::vector<float>& k,
                 const std::vector<float>& v) {
    std::byte* block = blocks.back();
    const uint32_t lane = token % kRunTokens, in_block = token % layout.block_tokens();
    const size_t run = head * (layout.block_tokens() / kRunTokens) + in_block / kRunTokens;
    const auto scales = [&](const BlockPart& part) {
      return reinterpret_cast<uint16_t*>(block + part.scale_offset) + run * kRunTokens;
    };
    const BlockPart &key = layout.key(layer), &value = layout.value(layer);
    PackKey(k.data(), key.format, dim, lane, block + key.offset + run * key.run_bytes, scales(key));
    PackValue(v.data(), value.format, dim, lane, block + value.offset + run * value.run_bytes,
              scales(value));
  }
};

// A target's result for a scene.
struct AttentionRun {
  std::vector<Floats> out;   // [row]: [head][dim]
  std::vector<Floats> sums;  // [kv head]: [token]
};

class Run {
 public:
  Run(const AttentionKernels& kernels, const Scene& scene, bool split)
      : kernels_(kernels),
        scene_(scene),
        floats_(PartialFloats(scene.dim)),
        places_(split ? scene.span_end - scene.span_begin : 1),
        view_(scene.blocks.data(), scene.layout, scene.layer) {
    Arena counter;
    const AttentionScratch count(scene.dim, scene.rows * scene.heads(), counter);
    arena_ = std::move(*Arena::Create(counter.used()));
    scratch_ = AttentionScratch(scene.dim, scene.rows * scene.heads(), arena_);
    for (uint32_t r = 0; r < scene.rows; ++r) {
      Floats& partial = partials_.emplace_back(size_t{places_} * scene.heads() * floats_);
      std::fill_n(partial.data(), partial.size(), 0.0f);
      for (size_t at = floats_; at <= partial.size(); at += floats_) {
        partial[at - 2] = kMinusInfinity;
      }
      q_.push_back(scene.q[r].data());
      partial_.push_back(partial.data());
    }
    args_ = {&view_,
             &scratch_,
             scene.rows,
             scene.group,
             scene.kv_head_begin,
             scene.kv_head_end,
             scene.span_begin,
             scene.span_end,
             q_.data(),
             scene.limit.data(),
             partial_.data(),
             split ? size_t{scene.heads()} * floats_ : 0,
             scene.mask.empty() ? TokenMask{} : TokenMask{scene.mask.data(), scene.head_words},
             nullptr,
             scene.softcap};
  }

  AttentionRun Result() {
    AttentionRun outcome;
    kernels_.attend(args_);
    std::vector<Floats> softmax;  // [row]: [head](m, l)
    for (uint32_t r = 0; r < scene_.rows; ++r) {
      Floats& row = outcome.out.emplace_back(size_t{scene_.heads()} * scene_.dim);
      Floats& ended = softmax.emplace_back(size_t{scene_.heads()} * 2);
      for (uint32_t head = 0; head < scene_.heads(); ++head) {
        float* merged = partial_[r] + size_t{head} * floats_;
        for (uint32_t p = 1; p < places_; ++p) {
          kernels_.merge(merged, merged + size_t{p} * scene_.heads() * floats_, scene_.dim);
        }
        kernels_.finish(merged, scene_.dim, row.data() + size_t{head} * scene_.dim);
        std::copy_n(merged + floats_ - 2, 2, ended.data() + size_t{head} * 2);
      }
    }
    SumWeights(softmax, outcome);
    return outcome;
  }

 private:
  void SumWeights(const std::vector<Floats>& softmax, AttentionRun& outcome) {
    std::vector<const float*> ended;
    std::vector<float*> sums;
    for (const Floats& row : softmax) ended.push_back(row.data());
    const size_t tokens = (scene_.span_end - scene_.span_begin) * kAttentionSpan;
    for (uint32_t h = scene_.kv_head_begin; h < scene_.kv_head_end; ++h) {
      std::fill_n(outcome.sums.emplace_back(tokens).data(), tokens, 0.0f);
    }
    for (Floats& head : outcome.sums) sums.push_back(head.data());
    kernels_.sum_weights(args_, ended.data(), sums.data());
  }

  const AttentionKernels& kernels_;
  const Scene& scene_;
  const uint32_t floats_, places_;
  const PagedKv view_;
  Arena arena_;
  AttentionScratch scratch_;
  std::vector<Floats> partials_;
  std::vector<const float*> q_;
  std::vector<float*> partial_;
  AttentionKernels::Args args_;
};

void CheckSame(const std::vector<Floats>& got, const std::vector<Floats>& expected, Target target,
               const char* what) {
  KV_CHECK(got.size() == expected.size());
  for (size_t i = 0; i < got.size(); ++i) {
    if (SameNumbers(got[i].span(), expected[i].span())) continue;
    size_t at = 0;
    while (SameNumbers(got[i].span().subspan(at, 1), expected[i].span().subspan(at, 1))) ++at;
    std::fprintf(stderr, "%s: %s [%zu][%zu] is %a (%08x), scalar has %a (%08x)\n",
                 std::string(NameOf(target)).c_str(), what, i, at, double{got[i][at]},
                 BitsOf(got[i][at]), double{expected[i][at]}, BitsOf(expected[i][at]));
    KV_CHECK(false);
  }
}

void FuzzScene(ByteSource& bytes) {
  const Scene scene(bytes);
  const AttentionKernels& scalar = AttentionKernelsFor(Target::kScalar);
  const AttentionRun expected = Run(scalar, scene, false).Result();
  for (const Target target : SupportedTargets()) {
    for (const bool split : {false, true}) {
      const AttentionRun got = Run(AttentionKernelsFor(target), scene, split).Result();
      CheckSame(got.out, expected.out, target, split ? "spans apart" : "attention");
      CheckSame(got.sums, expected.sums, target, "softmax sums");
    }
  }
}

// Tests merge, finish and scale on numbers that scenes may not produce.
void FuzzPartials(ByteSource& bytes) {
  const uint32_t dim = bytes.Between(1, 200), floats = PartialFloats(dim);
  NumberSource numbers(bytes);
  Floats a(floats), b(floats);
  for (size_t i = 0; i < floats; ++i) a[i] = numbers.Next(), b[i] = numbers.Next();
  const float factor = numbers.Next();
  std::vector<Floats> expected;
  for (const Target target : SupportedTargets()) {
    const AttentionKernels& kernels = AttentionKernelsFor(target);
    std::vector<Floats> got;
    std::ranges::copy(a.span(), got.emplace_back(floats).data());
    kernels.merge(got[0].data(), b.data(), dim);
    kernels.finish(a.data(), dim, got.emplace_back(dim).data());
    kernels.scale(a.data(), factor, dim, got.emplace_back(dim).data());
    if (target == Target::kScalar) {
      expected = std::move(got);
    } else {
      CheckSame(got, expected, target, "merge, finish, scale");
    }
  }
}

}  // namespace
}  // namespace kvasir

KV_FUZZ_TARGET(attention)(const uint8_t* data, size_t size) {
  const kvasir::ComputeScope environment;
  kvasir::ByteSource bytes(data, size);
  if (bytes.Below(8) == 0) {
    kvasir::FuzzPartials(bytes);
  } else {
    kvasir::FuzzScene(bytes);
  }
  return 0;
}
