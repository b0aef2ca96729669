#include "model/runner.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <vector>

#include "base/fault.h"
#include "base/random.h"
#include "block/sequence_tables.h"
#include "source_paths.h"

namespace kvasir {
namespace {

using Rows = std::vector<std::vector<float>>;

// Filled with NaN, so that a read of bytes that nobody wrote changes the results.
SequenceTables TablesFor(const KvLayout& layout, uint32_t tokens) {
  return std::move(*SequenceTables::Create(layout, tokens, std::byte{0xff}));
}

ImportedModel Import(const std::string& path) {
  auto model = ImportModel(path);
  EXPECT_TRUE(model) << (model ? "" : model.error().message);
  return std::move(*model);
}

const std::string kDemo = std::string(KVASIR_SOURCE_DIR) + "/models/kvasir-demo";

std::unique_ptr<Runner> MakeRunner(ImportedModel model, RunnerOptions options) {
  options.max_positions = model.config.max_positions;
  const auto plan = Runner::PlanFor(model, options);
  auto runner = Runner::Create(std::move(model), options, nullptr);
  EXPECT_TRUE(runner) << (runner ? "" : runner.error().message);
  EXPECT_EQ((*runner)->weights_bytes(), plan.weights_bytes);
  EXPECT_EQ((*runner)->scratch_bytes(), plan.scratch_bytes);
  return std::move(*runner);
}

std::vector<float> LogitsOf(Runner& runner, uint32_t row) {
  std::vector<float> logits(runner.config().vocab_size);
  const float* hidden[] = {runner.hidden(row).data()};
  float* out[] = {logits.data()};
  runner.Logits(hidden, out);
  return logits;
}

// Logits after every token, the prompt given in chunks of the given sizes (the last one repeats).
Rows Prefill(Runner& runner, const KvLayout& layout, const std::vector<TokenId>& tokens,
             std::vector<uint32_t> chunks) {
  const SequenceTables blocks = TablesFor(layout, static_cast<uint32_t>(tokens.size()));
  Rows rows;
  for (uint32_t at = 0, i = 0; at < tokens.size(); ++i) {
    const uint32_t n = std::min<uint32_t>(chunks[std::min<size_t>(i, chunks.size() - 1)],
                                          static_cast<uint32_t>(tokens.size()) - at);
    StepSequence sequence{blocks.tables(), at, 0, n};
    sequence.long_rope = UsesLongFactors(runner.config().rope, tokens.size());
    EXPECT_TRUE(runner.Step({&sequence, 1}, {tokens.data() + at, n}));
    for (uint32_t r = 0; r < n; ++r) {
      EXPECT_TRUE(runner.finite(r));
      rows.push_back(LogitsOf(runner, r));
    }
    at += n;
  }
  return rows;
}

uint64_t Differences(const Rows& a, const Rows& b) {
  EXPECT_EQ(a.size(), b.size());
  uint64_t differ = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    differ += std::memcmp(a[i].data(), b[i].data(), a[i].size() * sizeof(float)) != 0;
  }
  return differ;
}

std::vector<TokenId> RandomTokens(Random& random, uint32_t count, uint32_t vocab) {
  std::vector<TokenId> tokens(count);
  for (TokenId& t : tokens) t = static_cast<TokenId>(random.Below(vocab));
  return tokens;
}

TEST(Runner, ReproducesTheBundledModelsGoldenAnswers) {
  const auto golden = nlohmann::json::parse(std::ifstream(kDemo + "/golden.json"));
  RunnerOptions options;
  options.kv_format = KvFormat::kF32;
  auto runner = MakeRunner(Import(kDemo), options);
  const KvLayout layout = Runner::LayoutFor(runner->config(), options);
  for (const auto& prompt : golden["prompts"]) {
    auto ids = prompt["ids"].get<std::vector<TokenId>>();
    const size_t prompt_size = ids.size();
    const auto greedy = prompt["greedy"].get<std::vector<TokenId>>();
    ids.insert(ids.end(), greedy.begin(), greedy.end() - 1);
    const Rows rows = Prefill(*runner, layout, ids, {512});
    for (const auto& [id, logit] : prompt["top8"].get<std::vector<std::pair<int, double>>>()) {
      EXPECT_NEAR(rows[prompt_size - 1][id], logit, 5e-4);
    }
    for (size_t i = 0; i < greedy.size(); ++i) {
      const auto& row = rows[prompt_size - 1 + i];
      EXPECT_EQ(std::max_element(row.begin(), row.end()) - row.begin(), greedy[i]);
    }
  }
}

// Each format takes a minute under a sanitizer.
std::vector<KvFormats> FormatsToTry() {
#ifdef KVASIR_SANITIZED
  return {KvFormat::kF16, KvFormat::kInt4};
#else
  return {KvFormat::kF32,  KvFormat::kF16,  KvFormat::kBf16,
          KvFormat::kInt8, KvFormat::kInt4, {KvFormat::kNf4, KvFormat::kFp8E4m3}};
#endif
}

class RunnerTargets : public testing::TestWithParam<Target> {};

TEST_P(RunnerTargets, ChunksThreadsFormatsAndTargetsNeverMoveABit) {
  Random random(5);
  for (const KvFormats format : FormatsToTry()) {
    RunnerOptions options;
    options.kv_format = format;
    auto plain = MakeRunner(Import(kDemo), options);
    options.target = GetParam();
    options.threads = 2;
    options.block_tokens = 32;
    auto other = MakeRunner(Import(kDemo), options);
    const KvLayout wide = Runner::LayoutFor(other->config(), options);
    options.block_tokens = 16;
    const KvLayout narrow = Runner::LayoutFor(plain->config(), options);
    const auto tokens = RandomTokens(random, 300, plain->config().vocab_size);
    const Rows expected = Prefill(*plain, narrow, tokens, {512});
    EXPECT_EQ(Differences(expected, Prefill(*other, wide, tokens, {512})), 0u);
    EXPECT_EQ(Differences(expected, Prefill(*other, wide, tokens, {1})), 0u);
    EXPECT_EQ(Differences(expected, Prefill(*other, wide, tokens, {13, 1, 2, 64, 5})), 0u);
  }
}

// A tiny model of each family: norms behind branches and of heads, partial or no RoPE, learned
// positions, multipliers, plain FFNs.
TEST_P(RunnerTargets, ChunksThreadsAndTargetsNeverMoveABitOfAnyFamily) {
  Random random(31);
  for (const char* family :
       {"tiny-yarn", "tiny-qwen2", "tiny-qwen3", "tiny-granite", "tiny-olmo2", "tiny-smollm3",
        "tiny-phi3", "tiny-gpt2", "tiny-mistral", "tiny-qwen2-window", "tiny-gemma2", "tiny-gemma3",
        "tiny-gemma3-vision", "tiny-longrope", "tiny-gelu", "tiny-mixtral", "tiny-qwen3-moe",
        "tiny-qwen3-moe-norm"}) {
    const std::string path = std::string(KVASIR_SOURCE_DIR) + "/tests/data/" + family;
    for (const KvFormat format : {KvFormat::kF16, KvFormat::kInt4}) {
      RunnerOptions options;
      options.kv_format = format;
      auto plain = MakeRunner(Import(path), options);
      options.target = GetParam();
      options.threads = 2;
      auto other = MakeRunner(Import(path), options);
      options.max_positions = other->config().max_positions;
      const KvLayout layout = Runner::LayoutFor(other->config(), options);
      const auto tokens = RandomTokens(random, 200, plain->config().vocab_size);
      const Rows expected = Prefill(*plain, layout, tokens, {512});
      for (const auto& chunks : {std::vector<uint32_t>{512}, {1}, {13, 1, 2, 64, 5}}) {
        EXPECT_EQ(Differences(expected, Prefill(*other, layout, tokens, chunks)), 0u) << family;
      }
    }
  }
}

TEST_P(RunnerTargets, BatchMatesNeverMoveABit) {
  Random random(6);
  RunnerOptions options;
  options.target = GetParam();
  options.threads = 2;
  auto runner = MakeRunner(Import(kDemo), options);
  const KvLayout layout = Runner::LayoutFor(runner->config(), options);
  const auto tokens = RandomTokens(random, 280, runner->config().vocab_size);
  const Rows expected = Prefill(*runner, layout, tokens, {512});
  // Three copies at different points of the same text, advanced together by odd amounts.
  struct Copy {
    SequenceTables blocks;
    uint32_t done;
  };
  std::vector<Copy> copies;
  for (int i = 0; i < 3; ++i) copies.push_back({TablesFor(layout, 280), 0});
  uint64_t rows_seen = 0;
  while (std::any_of(copies.begin(), copies.end(), [](auto& c) { return c.done < 280; })) {
    std::vector<StepSequence> sequences;
    std::vector<TokenId> batch;
    std::vector<Copy*> which;
    for (Copy& copy : copies) {
      if (copy.done == 280) continue;
      const uint32_t n = std::min<uint32_t>(
          280 - copy.done, random.Below(2) == 0 ? 1 : 1 + uint32_t(random.Below(40)));
      sequences.push_back(
          {copy.blocks.tables(), copy.done, static_cast<uint32_t>(batch.size()), n});
      batch.insert(batch.end(), tokens.begin() + copy.done, tokens.begin() + copy.done + n);
      which.push_back(&copy);
    }
    ASSERT_TRUE(runner->Step(sequences, batch));
    for (size_t s = 0; s < sequences.size(); ++s) {
      for (uint32_t r = 0; r < sequences[s].num_rows; ++r, ++rows_seen) {
        const auto row = LogitsOf(*runner, sequences[s].first_row + r);
        ASSERT_EQ(std::memcmp(row.data(), expected[which[s]->done + r].data(), row.size() * 4), 0);
      }
      which[s]->done += sequences[s].num_rows;
    }
  }
  EXPECT_EQ(rows_seen, 3u * 280);
}

// The cascade: shared K and V are loaded once for all sequences.
TEST_P(RunnerTargets, SequencesThatShareBlocksDecodeAsIfAlone) {
  constexpr uint32_t kShared = 560, kSequences = 6;  // two full spans and a bit
  Random random(10);
  for (const KvFormat format : {KvFormat::kF16, KvFormat::kInt8}) {
    RunnerOptions options;
    options.kv_format = format;
    options.target = GetParam();
    options.threads = 2;
    auto runner = MakeRunner(Import(kDemo), options);
    const KvLayout layout = Runner::LayoutFor(runner->config(), options);
    const auto prefix = RandomTokens(random, kShared, runner->config().vocab_size);
    const auto pool = std::move(*BlockPool::Create(layout.block_bytes(), 256));
    BlockTable shared;
    while (shared.size() * 16 < kShared) shared.Append(pool->Allocate());
    const StepSequence whole{{&shared, 1}, 0, 0, 512}, rest{{&shared, 1}, 512, 0, kShared - 512};
    ASSERT_TRUE(runner->Step({&whole, 1}, {prefix.data(), 512}));
    ASSERT_TRUE(runner->Step({&rest, 1}, {prefix.data() + 512, kShared - 512}));
    std::vector<BlockTable> tables(kSequences);
    std::vector<StepSequence> sequences;
    std::vector<TokenId> tokens;
    for (uint32_t i = 0; i < kSequences; ++i) {
      const uint32_t length = 3 + i * 70;
      for (size_t b = 0; b < shared.size(); ++b) tables[i].Append(shared.ref(b).Share());
      while (tables[i].size() * 16 < kShared + length + 1) tables[i].Append(pool->Allocate());
      const auto tail = RandomTokens(random, length + 1, runner->config().vocab_size);
      const StepSequence fill{{&tables[i], 1}, kShared, 0, length};
      ASSERT_TRUE(runner->Step({&fill, 1}, {tail.data(), length}));
      sequences.push_back({{&tables[i], 1}, kShared + length, i, 1});
      tokens.push_back(tail.back());
    }
    uint64_t read = runner->kv_read_bytes();
    ASSERT_TRUE(runner->Step(sequences, tokens));
    uint64_t expected = 512;  // the full spans of what they share, once
    for (const StepSequence& s : sequences) expected += s.position + 1 - 512;
    const uint64_t run = layout.layout(0).key(0).run_bytes + layout.layout(0).value(0).run_bytes;
    const uint64_t scales = format == KvFormat::kInt8 ? 2 * kRunTokens * sizeof(uint16_t) : 0;
    const uint64_t heads = uint64_t{runner->config().num_layers} * runner->config().num_kv_heads;
    EXPECT_EQ(runner->kv_read_bytes() - read, expected * heads * (run + scales) / kRunTokens);
    Rows together, alone;
    for (uint32_t i = 0; i < kSequences; ++i) together.push_back(LogitsOf(*runner, i));
    for (uint32_t i = 0; i < kSequences; ++i) {
      StepSequence one = sequences[i];
      one.first_row = 0;
      ASSERT_TRUE(runner->Step({&one, 1}, {&tokens[i], 1}));
      alone.push_back(LogitsOf(*runner, 0));
    }
    EXPECT_EQ(Differences(together, alone), 0u);
  }
}

// Retention's view of a sequence: a mask per layer and KV head, and softmax sums per cached token.
struct Retained {
  Rows logits;
  std::vector<float> sums;  // [layer][kv_head][kTokens]
};
constexpr uint32_t kRetainedTokens = 320;

Retained PrefillRetained(Runner& runner, const KvLayout& layout, const std::vector<TokenId>& tokens,
                         std::span<const TokenMask> masks, const std::vector<uint32_t>& chunks) {
  const ModelConfig& c = runner.config();
  const SequenceTables blocks = TablesFor(layout, kRetainedTokens);
  Retained all;
  all.sums.resize(size_t{c.num_layers} * c.num_kv_heads * kRetainedTokens);
  for (uint32_t at = 0, i = 0; at < tokens.size(); ++i) {
    const auto n =
        std::min<uint32_t>(chunks[i % chunks.size()], static_cast<uint32_t>(tokens.size()) - at);
    const StepSequence sequence{blocks.tables(), at, 0, n, masks, all.sums.data(), kRetainedTokens};
    EXPECT_TRUE(runner.Step({&sequence, 1}, {tokens.data() + at, n}));
    for (uint32_t r = 0; r < n; ++r) all.logits.push_back(LogitsOf(runner, r));
    at += n;
  }
  return all;
}

// Windows of single layers give the same results as masks that hide the same tokens; chunks,
// threads and targets change no bit.
TEST_P(RunnerTargets, WindowedLayersSeeTheirLastTokensOnly) {
  Random random(21);
  ImportedModel windowed = Import(kDemo);
  const ModelConfig c = windowed.config;
  for (uint32_t layer = 0; layer < c.num_layers; ++layer) {
    const uint32_t windows[] = {0, 1, 17, 64, 100, c.max_positions};
    windowed.config.windows.push_back(windows[(layer + 2) % std::size(windows)]);
  }
  const std::vector<uint32_t> windows = windowed.config.windows;
  RunnerOptions options;
  auto plain = MakeRunner(Import(kDemo), options);
  options.target = GetParam();
  options.threads = 2;
  auto runner = MakeRunner(std::move(windowed), options);
  const KvLayout layout = Runner::LayoutFor(c, options);
  const auto tokens = RandomTokens(random, 300, c.vocab_size);
  const SequenceTables blocks = TablesFor(layout, kRetainedTokens);
  Rows masked;
  for (uint32_t p = 0; p < tokens.size(); ++p) {
    const size_t head_words = kRetainedTokens / 64;
    std::vector<uint64_t> words(size_t{c.num_layers} * c.num_kv_heads * head_words);
    std::vector<TokenMask> masks;
    for (uint32_t layer = 0; layer < c.num_layers; ++layer) {
      uint64_t* of_layer = words.data() + size_t{layer} * c.num_kv_heads * head_words;
      for (uint32_t t = 0; t <= p; ++t) {
        if (windows[layer] > 0 && t + windows[layer] <= p) continue;
        for (uint32_t head = 0; head < c.num_kv_heads; ++head) {
          of_layer[head * head_words + t / 64] |= uint64_t{1} << (t % 64);
        }
      }
      masks.push_back({of_layer, head_words});
    }
    const StepSequence sequence{blocks.tables(), p, 0, 1, masks};
    ASSERT_TRUE(plain->Step({&sequence, 1}, {tokens.data() + p, 1}));
    masked.push_back(LogitsOf(*plain, 0));
  }
  const KvLayout grouped = Runner::LayoutFor(runner->config(), options);
  EXPECT_GT(grouped.num_groups(), 2u);
  const Rows whole = Prefill(*runner, grouped, tokens, {512});
  EXPECT_EQ(Differences(masked, whole), 0u);
  EXPECT_GT(Differences(Prefill(*plain, layout, tokens, {512}), whole), 200u);
  for (const auto& chunks : {std::vector<uint32_t>{1}, {13, 1, 2, 64, 5}, {130, 2, 90}}) {
    EXPECT_EQ(Differences(whole, Prefill(*runner, grouped, tokens, chunks)), 0u);
  }
}

// Two rows of decode share a prefix, and the later one's windows have left blocks that the other
// still sees: each table has other blocks, and neither reads the other's.
TEST_P(RunnerTargets, RowsWhoseWindowsBeginElsewhereDecodeAsIfAlone) {
  constexpr uint32_t kPrefix = 300;
  Random random(23);
  for (const uint32_t window : {40u, 100u, 200u}) {
    for (const uint32_t more : {1u, 20u, 54u, 100u, 250u}) {
      ImportedModel model = Import(kDemo);
      for (uint32_t layer = 0; layer < model.config.num_layers; ++layer) {
        model.config.windows.push_back(layer % 2 == 0 ? 0 : window);
      }
      RunnerOptions options;
      options.target = GetParam();
      const KvLayout layout = Runner::LayoutFor(model.config, options);
      auto runner = MakeRunner(std::move(model), options);
      const auto pool = std::move(*BlockPool::Create(layout.block_bytes(), 400));
      std::vector<BlockTable> a(layout.num_groups()), b(layout.num_groups());
      const auto grow = [&](std::vector<BlockTable>& tables, uint32_t tokens) {
        for (BlockTable& table : tables) {
          while (table.size() * 16 < tokens) table.Append(pool->Allocate());
        }
      };
      const auto tokens = RandomTokens(random, kPrefix + more + 2, runner->config().vocab_size);
      grow(a, kPrefix);
      const StepSequence first{a, 0, 0, kPrefix};
      ASSERT_TRUE(runner->Step({&first, 1}, {tokens.data(), kPrefix}));
      for (uint32_t group = 0; group < layout.num_groups(); ++group) {
        for (size_t i = 0; i * 16 + 16 <= kPrefix; ++i) b[group].Append(a[group].ref(i).Share());
      }
      grow(b, kPrefix + more + 1);
      const uint32_t shared = kPrefix / 16 * 16;
      for (uint32_t at = shared; at < kPrefix + more; at += 64) {
        const uint32_t n = std::min(64u, kPrefix + more - at);
        const StepSequence rest{b, at, 0, n};
        ASSERT_TRUE(runner->Step({&rest, 1}, {tokens.data() + at, n}));
      }
      grow(a, kPrefix + 1);
      for (auto* tables : {&a, &b}) {
        const uint32_t position = tables == &a ? kPrefix : kPrefix + more;
        for (uint32_t group = 0; group < layout.num_groups(); ++group) {
          (*tables)[group].DropBefore(WindowBegin(position, layout.group(group).reach.window) / 16);
        }
      }
      const TokenId next[] = {tokens[kPrefix + more], tokens[kPrefix + more + 1]};
      const StepSequence rows[] = {{a, kPrefix, 0, 1}, {b, kPrefix + more, 1, 1}};
      ASSERT_TRUE(runner->Step(rows, next));
      const Rows together = {LogitsOf(*runner, 0), LogitsOf(*runner, 1)};
      Rows alone;
      for (uint32_t i = 0; i < 2; ++i) {
        StepSequence one = rows[i];
        one.first_row = 0;
        ASSERT_TRUE(runner->Step({&one, 1}, {&next[i], 1}));
        alone.push_back(LogitsOf(*runner, 0));
      }
      EXPECT_EQ(Differences(together, alone), 0u) << window << " " << more;
    }
  }
}

TEST_P(RunnerTargets, MasksAndSoftmaxSumsNeverDependOnChunksOrTargets) {
  Random random(9);
  RunnerOptions options;
  auto plain = MakeRunner(Import(kDemo), options);
  options.target = GetParam();
  options.threads = 2;
  auto other = MakeRunner(Import(kDemo), options);
  const ModelConfig& c = plain->config();
  const KvLayout layout = Runner::LayoutFor(c, options);
  const auto tokens = RandomTokens(random, 300, c.vocab_size);
  // Of each 64 tokens the masks keep the first four, every fourth, and others at random.
  std::vector<uint64_t> words(size_t{c.num_layers} * c.num_kv_heads * kRetainedTokens / 64);
  for (uint64_t& word : words) word = 0x8888888888888888 | random.Bits() | 0xf;
  std::vector<TokenMask> masks;
  for (uint32_t layer = 0; layer < c.num_layers; ++layer) {
    masks.push_back({words.data() + size_t{layer} * c.num_kv_heads * kRetainedTokens / 64,
                     kRetainedTokens / 64});
  }
  const Rows unmasked = Prefill(*plain, layout, tokens, {512});
  const Retained all = PrefillRetained(*plain, layout, tokens, {}, {512});
  EXPECT_EQ(Differences(unmasked, all.logits), 0u);
  const Retained kept = PrefillRetained(*plain, layout, tokens, masks, {512});
  EXPECT_GT(Differences(unmasked, kept.logits), 200u);
  for (const auto& chunks : {std::vector<uint32_t>{512}, {1}, {13, 1, 2, 64, 5}}) {
    const Retained again = PrefillRetained(*other, layout, tokens, masks, chunks);
    EXPECT_EQ(Differences(kept.logits, again.logits), 0u);
    EXPECT_EQ(kept.sums, again.sums);
    EXPECT_EQ(all.sums, PrefillRetained(*other, layout, tokens, {}, chunks).sums);
  }
  // A row's weights add up to 1 for each query head.
  const double total = std::accumulate(all.sums.begin(), all.sums.end(), 0.0);
  EXPECT_NEAR(total / (300.0 * c.num_layers * c.num_heads), 1, 1e-5);
}

TEST(Runner, LaneOrderAndChunkEdgeFaultsShow) {
  Random random(7);
  RunnerOptions options;
  auto runner = MakeRunner(Import(kDemo), options);
  const KvLayout layout = Runner::LayoutFor(runner->config(), options);
  const auto tokens = RandomTokens(random, 40, runner->config().vocab_size);
  const Rows expected = Prefill(*runner, layout, tokens, {512});
  InjectFault(Fault::kLaneOrder);
  EXPECT_GT(Differences(expected, Prefill(*runner, layout, tokens, {1})), 0u);
  InjectFault(Fault::kChunkEdge);
  EXPECT_GT(Differences(expected, Prefill(*runner, layout, tokens, {20})), 0u);
  InjectFault(Fault::kNone);
  EXPECT_EQ(Differences(expected, Prefill(*runner, layout, tokens, {20})), 0u);
}

TEST(Runner, RefusesTokensOutsideTheVocabulary) {
  RunnerOptions options;
  auto runner = MakeRunner(Import(kDemo), options);
  const KvLayout layout = Runner::LayoutFor(runner->config(), options);
  const SequenceTables blocks = TablesFor(layout, 16);
  for (TokenId bad : {-1, 1024, 1 << 30}) {
    const StepSequence sequence{blocks.tables(), 0, 0, 1};
    const auto status = runner->Step({&sequence, 1}, {&bad, 1});
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().code, Code::kInvalidArgument);
  }
}

TEST(Runner, RefusesWeightsThatAreNotFiniteAndNamesTheTensor) {
  const std::string tiny = std::string(KVASIR_SOURCE_DIR) + "/tests/data/tiny-bias";  // untied, f32
  for (auto find : {+[](ImportedModel& m) { return &m.embedding; },
                    +[](ImportedModel& m) { return &m.lm_head->view; },
                    +[](ImportedModel& m) { return &m.layers[1][Slot::kFfnNorm].view; },
                    +[](ImportedModel& m) { return &m.layers[1][Slot::kUp].view; },
                    +[](ImportedModel& m) { return &m.layers[0][Slot::kQBias].view; }}) {
    for (float bad : {NAN, -INFINITY}) {
      ImportedModel model = Import(tiny);
      TensorView& view = *find(model);
      std::vector<std::byte> bytes(view.data, view.data + view.num_bytes());
      std::memcpy(bytes.data() + bytes.size() - sizeof(bad), &bad, sizeof(bad));
      view.data = bytes.data();
      const std::string name = view.name;
      const auto runner = Runner::Create(std::move(model), RunnerOptions(), nullptr);
      ASSERT_FALSE(runner) << name;
      EXPECT_EQ(runner.error().code, Code::kCorruption);
      EXPECT_NE(runner.error().message.find(name), std::string::npos) << runner.error().message;
    }
  }
}

// A norm of heads or behind a branch would turn an overflow into finite numbers again.
// The weights of these models are bf16.
TEST_P(RunnerTargets, ARowThatOverflowsFailsWhateverNormFollows) {
  const std::pair<const char*, Slot> cases[] = {{"tiny-qwen3", Slot::kK},
                                                {"tiny-olmo2", Slot::kK},
                                                {"tiny-olmo2", Slot::kDown},
                                                {"tiny-granite", Slot::kO}};
  for (const auto& [family, slot] : cases) {
    ImportedModel model = Import(std::string(KVASIR_SOURCE_DIR) + "/tests/data/" + family);
    std::vector<uint16_t> largest(model.layers[0][slot].view.num_elements(), 0x7f7f);
    model.layers[0][slot].view.data = reinterpret_cast<const std::byte*>(largest.data());
    RunnerOptions options;
    options.target = GetParam();
    const KvLayout layout = Runner::LayoutFor(model.config, options);
    auto runner = MakeRunner(std::move(model), options);
    const SequenceTables blocks = TablesFor(layout, 16);
    const StepSequence sequence{blocks.tables(), 0, 0, 3};
    const TokenId tokens[] = {1, 2, 3};
    ASSERT_TRUE(runner->Step({&sequence, 1}, tokens));
    for (uint32_t r = 0; r < 3; ++r) EXPECT_FALSE(runner->finite(r)) << family << " " << r;
  }
}

INSTANTIATE_TEST_SUITE_P(All, RunnerTargets, testing::ValuesIn(SupportedTargets()),
                         [](const auto& info) { return std::string(NameOf(info.param)); });

}  // namespace
}  // namespace kvasir
