// tests/data/numerics.json: digests per kernel, layer and logits of portable-1. Every machine must
// reproduce them with every target that it has. A change of these bits is a new numerics version.
// To write the file again: KVASIR_WRITE_NUMERICS=1 model_test --gtest_filter=*Numerics*
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "attention/kernels.h"
#include "backend/weight_choice.h"
#include "base/digest.h"
#include "base/hex.h"
#include "base/random.h"
#include "block/sequence_tables.h"
#include "format/pack.h"
#include "import/tiny_models_for_test.h"
#include "kvasir/machine.h"
#include "model/runner.h"
#include "simd/half.h"
#include "simd/math.h"
#include "source_paths.h"
#include "tensor/exp_sum.h"
#include "tensor/kernels.h"
#include "tensor/quant.h"
#include "tensor/router.h"

namespace kvasir {
namespace {

using Digests = std::map<std::string, std::string>;
const std::string kData = std::string(KVASIR_SOURCE_DIR) + "/tests/data/";
const std::string kFile = kData + "numerics.json", kCoveredFile = kData + "numerics-covered.txt";

std::vector<float> RandomFloats(Random& random, size_t count, double scale) {
  std::vector<float> x(count);
  for (float& v : x) v = static_cast<float>((random.Uniform() * 2 - 1) * scale);
  return x;
}

std::string DigestOf(std::span<const float> x) {
  return ToHex(Sha256().Update(std::as_bytes(x)).Finish());
}

void AddTensorKernels(Target target, Digests& digests) {
  const TensorKernels& kernels = TensorKernelsFor(target);
  Random random(101);
  constexpr uint32_t kRows = 29, kOutputs = 75, kK = 211, kPanels = (kOutputs + 15) / 16;
  const auto x = RandomFloats(random, kRows * kK, 2), bias = RandomFloats(random, kOutputs, 1);
  for (auto [format, name] : {std::pair{WeightFormat::kF32, "f32"},
                              {WeightFormat::kF16, "f16"},
                              {WeightFormat::kBf16, "bf16"}}) {
    std::vector<float> y(kRows * kOutputs);
    std::vector<float> wide = RandomFloats(random, size_t{kPanels} * 16 * kK, 0.5);
    std::vector<uint16_t> narrow;
    for (float w : wide) narrow.push_back(format == WeightFormat::kF16 ? ToF16(w) : ToBf16(w));
    const void* w = format == WeightFormat::kF32 ? static_cast<const void*>(wide.data())
                                                 : static_cast<const void*>(narrow.data());
    kernels.mat_mul({x.data(), kK, static_cast<const std::byte*>(w), format, bias.data(), y.data(),
                     kOutputs, kRows, kK, kOutputs, 0, kPanels, false});
    digests[std::string("kernel.mat_mul.") + name] = DigestOf(y);
  }
  std::vector<float> y(kK);
  kernels.rms_norm(x.data(), x.data() + kK, 1e-5f, kK, y.data(), false);
  digests["kernel.rms_norm"] = DigestOf(y);
  std::vector<float> wide = RandomFloats(random, 4096, 90);
  std::vector<float> gated(4096);
  kernels.gated(Activation::kSilu, wide.data(), x.data(), 4096, gated.data());
  digests["kernel.swiglu"] = DigestOf(gated);
  auto rotated = RandomFloats(random, 5 * 40, 3);
  kernels.rope(rotated.data(), 5, 40, 40, x.data(), x.data() + 20);
  digests["kernel.rope"] = DigestOf(rotated);
  kernels.rope(rotated.data(), 5, 40, 28, x.data(), x.data() + 20);
  digests["kernel.rope.partial"] = DigestOf(rotated);
  kernels.hadamard(rotated.data(), 5, 40);
  digests["kernel.hadamard"] = DigestOf(rotated);
  kernels.layer_norm(x.data(), x.data() + kK, x.data() + 2 * kK, 1e-5f, kK, y.data(), false);
  kernels.add_scaled(0.22f, x.data() + 3 * kK, kK, y.data());
  digests["kernel.layer_norm"] = DigestOf(y);
  for (float& v : wide) v *= 0.1f;
  for (auto [act, name] : {std::pair{Activation::kGeluTanh, "gelu_tanh"},
                           {Activation::kGelu, "gelu"},
                           {Activation::kRelu, "relu"}}) {
    gated = wide;
    kernels.activate(act, 4096, gated.data());
    kernels.gated(act, gated.data(), x.data(), 4096, gated.data());
    digests[std::string("kernel.") + name] = DigestOf(gated);
  }
  gated = wide;
  kernels.soft_cap(3.0f, 4096, gated.data());
  digests["kernel.soft_cap"] = DigestOf(gated);
}

// Adds sums and choices that have no kernel beside them: residual branches with a multiplier,
// experts.
void AddExperts(Target target, Digests& digests) {
  Random random(105);
  constexpr uint32_t kExperts = 75, kChosen = 9;
  auto sum = RandomFloats(random, kExperts, 2);
  const auto x = RandomFloats(random, kExperts, 2);
  for (const float factor : {0.22f, -3.0f}) {
    TensorKernelsFor(target).add_scaled(factor, x.data(), kExperts, sum.data());
  }
  digests["kernel.add_scaled"] = DigestOf(sum);
  auto logits = RandomFloats(random, kExperts, 9);
  logits[60] = logits[7] = logits[31] = 10;  // ties go to the lower index
  Sha256 routes;
  for (const Routing routing : {Routing::kChosen, Routing::kAll, Routing::kAllNormed}) {
    for (const uint32_t count : {1u, 2u, kChosen}) {
      std::vector<uint32_t> chosen(count);
      std::vector<float> weights(count);
      ASSERT_TRUE(ChooseExperts(routing, logits, chosen, weights));
      routes.Update(std::as_bytes(std::span<const uint32_t>(chosen)));
      routes.Update(std::as_bytes(std::span<const float>(weights)));
    }
  }
  digests["kernel.router"] = ToHex(routes.Finish());
}

// Adds products with quantised weights of random codes and scales.
void AddQuantKernels(Target target, Digests& digests) {
  using enum WeightFormat;
  const QuantKernels& kernels = QuantKernelsFor(target);
  constexpr uint32_t kRows = 37, kOutputs = 48, kK = 512;
  constexpr size_t kRowBytes = ActivationLayout(kK).bytes();
  Random random(104);
  const auto x = RandomFloats(random, kRows * kK, 2), bias = RandomFloats(random, kOutputs, 1);
  for (WeightFormat format : {kI8, kQ8_0, kQ4_0, kQ4_1, kQ5_0, kQ5_1, kQ4K, kQ5K, kQ6K, kIq4Nl}) {
    const WeightLayout layout = LayoutOf(format);
    std::vector<std::byte> w(PanelBytes(format, kK) * kOutputs / 16);
    for (uint32_t i = 0; i < kOutputs * kK / kGroup; ++i) {
      const uint32_t output = i / (kK / kGroup), group = i % (kK / kGroup);
      WeightGroup g{};
      for (uint8_t& code : g.codes) {
        code = static_cast<uint8_t>(random.Below(uint64_t{1} << layout.code_bits));
      }
      g.d = ToF16(static_cast<float>(random.Uniform()));
      g.dmin = ToF16(static_cast<float>(random.Uniform()));
      for (uint8_t& sub : g.sub_scale) sub = static_cast<uint8_t>(random.Below(64));
      g.sub_minimum = static_cast<uint8_t>(random.Below(64));
      PutGroup(format, &w[output / 16 * PanelBytes(format, kK)], output % 16, group, g);
    }
    struct alignas(64) Line {
      std::byte bytes[64];
    };
    std::vector<Line> lines(kRows * kRowBytes / 64);
    std::byte* rows = lines[0].bytes;
    std::vector<float> y(kRows * kOutputs);
    for (uint32_t r = 0; r < kRows; r += kBlockRows) {
      kernels.quantise({&x[size_t{r} * kK], kK, std::min(kBlockRows, kRows - r), kK, format,
                        rows + r * kRowBytes});
    }
    kernels.mat_mul({rows, kRowBytes, w.data(), format, bias.data(), y.data(), kOutputs, kRows, kK,
                     kOutputs, 0, kOutputs / 16, false});
    digests["kernel.mat_mul." + std::string(layout.name)] = DigestOf(y);
  }
}

constexpr KvFormat kAllFormats[] = {KvFormat::kF32,     KvFormat::kF16,     KvFormat::kBf16,
                                    KvFormat::kFp8E4m3, KvFormat::kFp8E5m2, KvFormat::kInt8,
                                    KvFormat::kInt4,    KvFormat::kNf4};

// Adds three queries that see 1, 300 and 700 of 700 tokens of random K and V.
void AddAttention(Target target, Digests& digests) {
  const AttentionKernels& kernels = AttentionKernelsFor(target);
  for (KvFormat format : kAllFormats) {
    constexpr uint32_t kDim = 40, kTokens = 700;
    const BlockLayout layout({16, 1, 1, kDim, {format}, {format}});
    Random random(103);
    std::vector<std::vector<std::byte>> memory;
    std::vector<std::byte*> blocks;
    for (uint32_t t = 0; t < kTokens; ++t) {
      if (t % 16 == 0) blocks.push_back(memory.emplace_back(layout.block_bytes()).data());
      const auto k = RandomFloats(random, kDim, 3), v = RandomFloats(random, kDim, 1);
      PackKey(k.data(), format, kDim, t % 16, blocks.back(),
              reinterpret_cast<uint16_t*>(blocks.back() + layout.key(0).scale_offset));
      PackValue(v.data(), format, kDim, t % 16, blocks.back() + layout.value(0).offset,
                reinterpret_cast<uint16_t*>(blocks.back() + layout.value(0).scale_offset));
    }
    Arena counter;
    const AttentionScratch count(kDim, 3, counter);
    Arena arena = std::move(*Arena::Create(counter.used()));
    const AttentionScratch scratch(kDim, 3, arena);
    const PagedKv kv(blocks.data(), layout, 0);
    const auto numbers = RandomFloats(random, 3 * kDim, 1);
    const float* q[] = {numbers.data(), numbers.data() + kDim, numbers.data() + 2 * kDim};
    const uint32_t limit[] = {1, 300, 700};
    std::vector<float> state(3 * PartialFloats(kDim)), out(3 * kDim);
    float* partial[3];
    for (int i = 0; i < 3; ++i) partial[i] = state.data() + i * PartialFloats(kDim);
    AttentionKernels::Args args{&kv, &scratch, 3, 1, 0, 1, 0, 3, q, limit, partial, 0};
    const auto add = [&](const std::string& kind) {
      for (float* state_of : partial) {
        std::fill_n(state_of, PartialFloats(kDim), 0.0f);
        state_of[PartialFloats(kDim) - 2] = -__builtin_inff();
      }
      kernels.attend(args);
      for (int i = 0; i < 3; ++i) kernels.finish(partial[i], kDim, out.data() + i * kDim);
      digests["kernel.attention." + kind + std::string(TraitsOf(format).name)] = DigestOf(out);
    };
    add("");
    if (format != KvFormat::kF16 && format != KvFormat::kInt8) continue;
    args.softcap = 5.0f;
    add("softcap.");
    args.softcap = 0;
    const uint32_t begin[] = {0, 251, 651};  // a window of 49
    args.begin = begin;
    add("window.");
  }
}

// Adds a prompt of at most max_tokens through a model: hidden states, logits, and the packed K and
// V of each layer.
void AddModel(Target target, const std::string& name, ImportedModel model, KvFormat format,
              Digests& digests, uint32_t max_tokens = 592) {
  RunnerOptions options;
  options.target = target;
  options.threads = 2;
  options.kv_format = format;
  options.max_positions = 600;
  auto runner = std::move(*Runner::Create(std::move(model), options, nullptr));
  const KvLayout groups = Runner::LayoutFor(runner->config(), options);
  // Over two spans of attention where the model has so many positions.
  const uint32_t num_tokens =
      std::min(max_tokens, runner->config().max_positions < 592 ? 240u : 592u);
  const uint32_t step = num_tokens / 4;
  const SequenceTables blocks = std::move(*SequenceTables::Create(groups, num_tokens));
  Random random(102);
  std::vector<TokenId> tokens(num_tokens);
  for (TokenId& t : tokens) t = static_cast<TokenId>(random.Below(runner->config().vocab_size));
  Sha256 hidden, logits;
  std::vector<float> row(runner->config().vocab_size);
  for (uint32_t at = 0; at < num_tokens; at += step) {
    StepSequence sequence{blocks.tables(), at, 0, step};
    sequence.long_rope = UsesLongFactors(runner->config().rope, num_tokens);
    ASSERT_TRUE(runner->Step({&sequence, 1}, {tokens.data() + at, step}));
    for (uint32_t r = 0; r < step; ++r) {
      ASSERT_TRUE(runner->finite(r));
      hidden.Update(std::as_bytes(runner->hidden(r)));
      const float* in[] = {runner->hidden(r).data()};
      runner->Logits(in, row.data());
      logits.Update(std::as_bytes(std::span<const float>(row)));
    }
  }
  const std::string prefix = name + "." + std::string(TraitsOf(format).name) + ".";
  digests[prefix + "hidden"] = ToHex(hidden.Finish());
  digests[prefix + "logits"] = ToHex(logits.Finish());
  for (uint32_t layer = 0; layer < groups.num_layers(); ++layer) {
    const auto [group, slot] = groups.place(layer);
    const BlockLayout& layout = groups.layout(group);
    Sha256 kv;
    const uint64_t end =
        slot + 1 < layout.shape().num_layers ? layout.key(slot + 1).offset : layout.block_bytes();
    for (std::byte* block : blocks[group].bases()) {
      kv.Update({block + layout.key(slot).offset, block + end});
    }
    digests[prefix + "layer" + std::to_string(layer) + ".kv"] = ToHex(kv.Finish());
  }
}

// Adds sources of an encoder-decoder model and the answers to them, side by side: outputs of the
// encoder, hidden states and logits of the decoder, and the packed K and V of both kinds. weights:
// "f16" as stored, else quantised so.
void AddTranslation(Target target, const std::string& weights, Digests& digests) {
  RunnerOptions options;
  if (weights != "f16") options.weights = FindWeightChoice(weights);
  options.target = target;
  options.threads = 2;
  options.max_positions = 300;
  auto model = ImportModel(TinyModelPath("m2m100-tiny"));
  ASSERT_TRUE(model) << model.error().message;
  auto runner = std::move(*Runner::Create(std::move(*model), options, nullptr));
  const KvLayout layout = Runner::LayoutFor(runner->config(), options);
  const uint32_t sizes[] = {270, 1, 33};
  Random random(106);
  std::vector<SequenceTables> tables;
  std::vector<StepSource> sources;
  std::vector<TokenId> tokens(304);
  for (TokenId& t : tokens) t = static_cast<TokenId>(random.Below(runner->config().vocab_size));
  for (uint32_t size : sizes) {
    tables.push_back(std::move(*SequenceTables::Create(layout, 272)));
    const uint32_t first = sources.empty() ? 0 : sources.back().first_row + sources.back().num_rows;
    sources.push_back({tables.back().tables(), first, size});
  }
  ASSERT_TRUE(runner->Encode(sources, tokens));
  const auto add = [&](Sha256& sha, uint32_t rows) {
    for (uint32_t r = 0; r < rows; ++r) sha.Update(std::as_bytes(runner->hidden(r)));
  };
  Sha256 encoded, hidden, logits, kv;
  add(encoded, 304);
  std::vector<StepSequence> step;
  for (const StepSource& source : sources) {
    const auto first = static_cast<uint32_t>(step.size()) * 40;
    step.push_back({.tables = source.tables,
                    .position = 0,
                    .first_row = first,
                    .num_rows = 40,
                    .source_tokens = source.num_rows});
  }
  ASSERT_TRUE(runner->Step(step, std::span(tokens).first(120)));
  add(hidden, 120);
  std::vector<float> row(runner->config().vocab_size);
  for (uint32_t r = 0; r < 120; ++r) {
    const float* in[] = {runner->hidden(r).data()};
    runner->Logits(in, row.data());
    logits.Update(std::as_bytes(std::span<const float>(row)));
  }
  for (const SequenceTables& table : tables) {
    for (uint32_t group = 0; group < layout.num_groups(); ++group) {
      for (std::byte* block : table[group].bases()) kv.Update({block, layout.block_bytes()});
    }
  }
  const std::string prefix = "m2m100-tiny." + weights + ".";
  digests[prefix + "encoded"] = ToHex(encoded.Finish());
  digests[prefix + "hidden"] = ToHex(hidden.Finish());
  digests[prefix + "logits"] = ToHex(logits.Finish());
  digests[prefix + "kv"] = ToHex(kv.Finish());
}

// Adds log probabilities of rows of logits, as beam search has them (docs/numerics.md, rule 10).
void AddLogSoftmax(Target target, Digests& digests) {
  Random random(107);
  Sha256 sha;
  for (const uint32_t size : {1u, 15u, 16u, 71u, 1000u, 20011u}) {
    std::vector<float> x = RandomFloats(random, size, 30);
    const float max = *std::ranges::max_element(x);
    const float sum = ExpSumFor(target)(x.data(), size, max);
    const auto log_sum = static_cast<float>(Log(double{sum}));
    for (float& v : x) v = (v - max) - log_sum;
    sha.Update(std::as_bytes(std::span(x)));
  }
  digests["kernel.log_softmax"] = ToHex(sha.Finish());
}

Digests ComputeAll(Target target) {
  Digests digests;
  AddTensorKernels(target, digests);
  AddExperts(target, digests);
  AddQuantKernels(target, digests);
  AddAttention(target, digests);
  for (KvFormat format : kAllFormats) {
    auto demo = ImportModel(std::string(KVASIR_SOURCE_DIR) + "/models/kvasir-demo");
    EXPECT_TRUE(demo);
    AddModel(target, "kvasir-demo", std::move(*demo), format, digests);
  }
  for (const std::string& family : TinyModels()) {
    auto model = ImportModel(TinyModelPath(family));
    EXPECT_TRUE(model) << (model ? "" : model.error().message);
    AddModel(target, family, std::move(*model), KvFormat::kF16, digests);
  }
  auto longrope = ImportModel(TinyModelPath("tiny-longrope"));
  EXPECT_TRUE(longrope) << (longrope ? "" : longrope.error().message);
  const auto short_tokens = static_cast<uint32_t>(longrope->config.rope.original_max_positions);
  AddModel(target, "tiny-longrope-short", std::move(*longrope), KvFormat::kF16, digests,
           short_tokens);
  auto tiny = SyntheticModel("tiny", DType::kF32, 3);  // odd sizes: no multiples of 8
  EXPECT_TRUE(tiny) << (tiny ? "" : tiny.error().message);
  AddModel(target, "tiny", std::move(*tiny), KvFormat::kF16, digests);
  for (const char* weights : {"f16", "i8", "i4", "q8_0", "q4_0"}) {
    AddTranslation(target, weights, digests);
  }
  AddLogSoftmax(target, digests);
  return digests;
}

class Numerics : public testing::TestWithParam<Target> {};

TEST_P(Numerics, DigestsAreThoseOfEveryOtherMachine) {
  const Digests digests = ComputeAll(GetParam());
  if (std::getenv("KVASIR_WRITE_NUMERICS") != nullptr) {
    std::ofstream(kFile)
        << nlohmann::json({{"numerics", kNumericsVersion}, {"sha256", digests}}).dump(1) << "\n";
  }
  const auto expected = nlohmann::json::parse(std::ifstream(kFile)).at("sha256");
  EXPECT_EQ(expected.size(), digests.size());
  for (const auto& [name, digest] : digests) EXPECT_EQ(expected.value(name, ""), digest) << name;
}

// Absent: a covered key is missing.
std::optional<std::string> DigestOfCovered(const Digests& digests,
                                           const std::vector<std::string>& covered) {
  std::string text;
  for (const std::string& key : covered) {
    const auto found = digests.find(key);
    if (found == digests.end()) return std::nullopt;
    text += key + " " + found->second + "\n";
  }
  return ToHex(Sha256().Update(std::as_bytes(std::span(text))).Finish());
}

// Caches on disks are found by the version: other bits under the same name would be served.
TEST(NumericsVersion, NamesTheBitsThatWereCoveredWhenItWasGiven) {
  const auto json = nlohmann::json::parse(std::ifstream(kFile));
  EXPECT_EQ(json.at("numerics"), kNumericsVersion);
  Digests digests = json.at("sha256");
  std::vector<std::string> covered;
  std::ifstream list(kCoveredFile);
  for (std::string key; std::getline(list, key);) covered.push_back(key);
  ASSERT_FALSE(covered.empty());
  EXPECT_TRUE(std::ranges::is_sorted(covered));
  EXPECT_EQ(DigestOfCovered(digests, covered), kNumericsDigest)
      << "the bits changed: give kNumericsVersion another name";
  digests["a.new.key"] = "00";
  EXPECT_EQ(DigestOfCovered(digests, covered), kNumericsDigest);
  Digests changed = digests;
  changed[covered.back()][0] ^= 1;
  EXPECT_NE(DigestOfCovered(changed, covered), kNumericsDigest);
  digests.erase(covered.front());
  EXPECT_EQ(DigestOfCovered(digests, covered), std::nullopt);
}

INSTANTIATE_TEST_SUITE_P(All, Numerics, testing::ValuesIn(SupportedTargets()),
                         [](const auto& info) { return std::string(NameOf(info.param)); });

}  // namespace
}  // namespace kvasir
