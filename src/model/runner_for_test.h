// Runs models for the tests of Runner, and compares what they compute bit by bit.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/random.h"
#include "block/sequence_tables.h"
#include "model/runner.h"
#include "source_paths.h"

namespace kvasir {

using Rows = std::vector<std::vector<float>>;

// Returns memory filled with NaN, so that a read of bytes that were not written changes the
// results.
inline SequenceTables TablesFor(const KvLayout& layout, uint32_t tokens) {
  return std::move(*SequenceTables::Create(layout, tokens, std::byte{0xff}));
}

inline ImportedModel Import(const std::string& path) {
  auto model = ImportModel(path);
  EXPECT_TRUE(model) << (model ? "" : model.error().message);
  return std::move(*model);
}

inline const std::string kDemo = std::string(KVASIR_SOURCE_DIR) + "/models/kvasir-demo";

inline std::unique_ptr<Runner> MakeRunner(ImportedModel model, RunnerOptions options) {
  options.max_positions = model.config.max_positions;
  const auto plan = Runner::PlanFor(model, options);
  auto runner = Runner::Create(std::move(model), options, nullptr);
  EXPECT_TRUE(runner) << (runner ? "" : runner.error().message);
  EXPECT_EQ((*runner)->weights_bytes(), plan.weights_bytes);
  EXPECT_EQ((*runner)->scratch_bytes(), plan.scratch_bytes);
  return std::move(*runner);
}

inline std::vector<float> LogitsOf(Runner& runner, uint32_t row) {
  std::vector<float> logits(runner.config().vocab_size);
  const float* hidden[] = {runner.hidden(row).data()};
  runner.Logits(hidden, logits.data());
  return logits;
}

// Returns the logits after every token, the prompt given in chunks of the given sizes (the last one
// repeats).
inline Rows Prefill(Runner& runner, const KvLayout& layout, const std::vector<TokenId>& tokens,
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

inline uint64_t Differences(const Rows& a, const Rows& b) {
  EXPECT_EQ(a.size(), b.size());
  uint64_t differ = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    differ += std::memcmp(a[i].data(), b[i].data(), a[i].size() * sizeof(float)) != 0;
  }
  return differ;
}

inline std::vector<TokenId> RandomTokens(Random& random, uint32_t count, uint32_t vocab) {
  std::vector<TokenId> tokens(count);
  for (TokenId& t : tokens) t = static_cast<TokenId>(random.Below(vocab));
  return tokens;
}

// Names suites that run on every target of this CPU.
inline std::string TargetName(const testing::TestParamInfo<Target>& info) {
  return std::string(NameOf(info.param));
}

}  // namespace kvasir
