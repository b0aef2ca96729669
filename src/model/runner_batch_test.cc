// Rows of one batch never change each other.
#include "model/runner_for_test.h"

namespace kvasir {
namespace {

class RunnerBatch : public testing::TestWithParam<Target> {};

TEST_P(RunnerBatch, BatchMatesNeverMoveABit) {
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
TEST_P(RunnerBatch, SequencesThatShareBlocksDecodeAsIfAlone) {
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

// Two rows of decode share a prefix, and the later one's windows have left blocks that the other
// still sees: each table has other blocks, and neither reads the other's.
TEST_P(RunnerBatch, RowsWhoseWindowsBeginElsewhereDecodeAsIfAlone) {
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

INSTANTIATE_TEST_SUITE_P(All, RunnerBatch, testing::ValuesIn(SupportedTargets()), TargetName);

}  // namespace
}  // namespace kvasir
