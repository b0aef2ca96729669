// RoPE of GGUF files, through the importer.
#include <cmath>

#include "import/handmade_model_for_test.h"

namespace kvasir {
namespace {

class GgufRope : public GgufModel {};

TEST_F(GgufRope, LongRopeIsReadFromItsTwoTensors) {
  const auto import = [&](const std::vector<float>& shorts, const std::vector<float>& longs,
                          std::optional<uint32_t> original) {
    return ImportWith([&](GgufBuilder& b, Tensors&) {
      const auto add = [&](const char* name, const std::vector<float>& values) {
        std::string bytes;
        for (const float value : values) bytes += Le(value);
        if (!values.empty()) b.Tensor(name, {values.size()}, 0, bytes);
      };
      add("rope_factors_short.weight", shorts);
      add("rope_factors_long.weight", longs);
      if (original) b.U32("llama.rope.scaling.original_context_length", *original);
      b.F32("llama.rope.scaling.attn_factor", 1.25f);
    });
  };
  const auto model = import({1, 2}, {3, 4}, 8);
  ASSERT_TRUE(model) << model.error().message;
  EXPECT_EQ(model->config.rope.type, RopeType::kLongRope);
  EXPECT_EQ(model->config.rope.freq_factors, (std::vector<float>{1, 2}));
  EXPECT_EQ(model->config.rope.long_freq_factors, (std::vector<float>{3, 4}));
  EXPECT_EQ(model->config.rope.original_max_positions, 8);
  EXPECT_EQ(model->config.rope.attention_factor, 1.25);
  using enum Code;
  ExpectError(import({1, 2}, {}, 8), kInvalidArgument, {"'rope_factors_long.weight' is missing"});
  ExpectError(import({}, {3, 4}, 8), kInvalidArgument, {"'rope_factors_short.weight' is missing"});
  ExpectError(import({1, 2}, {3, 4}, {}), kInvalidArgument,
              {"llama.rope.scaling.original_context_length"});
  ExpectError(import({1, 2, 3}, {3, 4}, 8), kInvalidArgument, {"3 short RoPE factors"});
  ExpectError(import({1, 2}, {3}, 8), kInvalidArgument, {"1 long RoPE factors"});
  for (const float wrong : {0.0f, -1.0f, NAN, INFINITY}) {
    ExpectError(import({1, wrong}, {3, 4}, 8), kInvalidArgument, {"short RoPE factor is"});
    ExpectError(import({1, 2}, {wrong, 4}, 8), kInvalidArgument, {"long RoPE factor is"});
  }
}

TEST_F(GgufRope, LinearRopeAndFrequencyFactorsAreRead) {
  const auto linear = ImportWith([](GgufBuilder& b, Tensors&) {
    b.Text("llama.rope.scaling.type", "linear").F32("llama.rope.scaling.factor", 4);
    b.F32("llama.rope.freq_base", 5e5f);
  });
  ASSERT_TRUE(linear) << linear.error().message;
  EXPECT_EQ(linear->config.rope.type, RopeType::kLinear);
  EXPECT_EQ(linear->config.rope.factor, 4);
  EXPECT_EQ(linear->config.rope.theta, 5e5);
  const auto factors = [&](const std::vector<float>& values) {
    return ImportWith([&](GgufBuilder& b, Tensors&) {
      std::string bytes;
      for (float value : values) bytes += Le(value);
      b.Tensor("rope_freqs.weight", {values.size()}, 0, bytes);
    });
  };
  EXPECT_EQ(factors({1, 8})->config.rope.freq_factors, (std::vector<float>{1, 8}));
  ExpectError(factors({1, 2, 3}), Code::kInvalidArgument, {"3 RoPE frequency factors"});
  ExpectError(factors({1, 0}), Code::kInvalidArgument, {"factor is 0"});
  ExpectError(factors({1, NAN}), Code::kInvalidArgument, {"factor is nan"});
  ExpectError(factors(std::vector<float>(600, 1)), Code::kUnsupported, {"rope_freqs.weight"});
}

TEST_F(GgufRope, YarnIsReadWithItsDefaults) {
  const auto yarn = [&](const std::function<void(GgufBuilder&)>& more) {
    return ImportWith([&](GgufBuilder& b, Tensors&) {
      b.Text("llama.rope.scaling.type", "yarn").F32("llama.rope.scaling.factor", 4);
      more(b);
    });
  };
  const auto plain = yarn([](GgufBuilder&) {});
  ASSERT_TRUE(plain) << plain.error().message;
  EXPECT_EQ(plain->config.rope.type, RopeType::kYarn);
  EXPECT_EQ(plain->config.rope.factor, 4);
  EXPECT_EQ(plain->config.rope.original_max_positions, 64);  // context_length
  EXPECT_NEAR(plain->config.rope.attention_factor, 1.1386294361119891, 1e-15);
  const auto all = yarn([](GgufBuilder& b) {
    b.U32("llama.rope.scaling.original_context_length", 16);
    b.F32("llama.rope.scaling.yarn_beta_fast", 16).F32("llama.rope.scaling.yarn_beta_slow", 0.5f);
    b.F32("llama.rope.scaling.yarn_attn_factor", 1.25f).F32("llama.rope.scaling.attn_factor", 2);
  });
  ASSERT_TRUE(all) << all.error().message;
  EXPECT_EQ(all->config.rope.original_max_positions, 16);
  EXPECT_EQ(all->config.rope.beta_fast, 16);
  EXPECT_EQ(all->config.rope.beta_slow, 0.5);
  EXPECT_EQ(all->config.rope.attention_factor, 2.5);
}

}  // namespace
}  // namespace kvasir
