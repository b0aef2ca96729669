// Runs encoder-decoder models for tests: sources and decoder rows, packed side by side.
#pragma once

#include <fstream>
#include <nlohmann/json.hpp>
#include <vector>

#include "import/tiny_models_for_test.h"
#include "model/runner_for_test.h"

namespace kvasir {

inline std::string TinyTranslator() { return TinyModelPath("m2m100-tiny"); }

// A source and the decoder tokens that read it.
struct Translation {
  std::vector<TokenId> source, ids;
};

// Makes tables of all groups, each with room for both.
inline SequenceTables TablesFor(const KvLayout& layout, const Translation& t) {
  return TablesFor(layout, static_cast<uint32_t>(std::max(t.source.size(), t.ids.size())));
}

// Runs one step of the encoder over all of them.
inline void EncodeAll(Runner& runner, const std::vector<Translation>& all,
                      const std::vector<SequenceTables>& tables) {
  std::vector<StepSource> sources;
  std::vector<TokenId> tokens;
  for (size_t i = 0; i < all.size(); ++i) {
    sources.push_back({tables[i].tables(), static_cast<uint32_t>(tokens.size()),
                       static_cast<uint32_t>(all[i].source.size())});
    tokens.insert(tokens.end(), all[i].source.begin(), all[i].source.end());
  }
  ASSERT_TRUE(runner.Encode(sources, tokens));
  for (uint32_t i = 0; i < sources.size(); ++i) EXPECT_TRUE(runner.source_finite(i));
}

// Returns the logits of all decoder rows of each, whose tokens come `chunk` at a time in common
// steps.
inline std::vector<Rows> DecodeAll(Runner& runner, const std::vector<Translation>& all,
                                   const std::vector<SequenceTables>& tables, uint32_t chunk) {
  std::vector<Rows> rows(all.size());
  for (uint32_t at = 0;; at += chunk) {
    std::vector<StepSequence> step;
    std::vector<size_t> whose;
    std::vector<TokenId> tokens;
    for (size_t i = 0; i < all.size(); ++i) {
      if (at >= all[i].ids.size()) continue;
      const auto n = std::min<uint32_t>(chunk, static_cast<uint32_t>(all[i].ids.size()) - at);
      step.push_back({.tables = tables[i].tables(),
                      .position = at,
                      .first_row = static_cast<uint32_t>(tokens.size()),
                      .num_rows = n,
                      .source_tokens = static_cast<uint32_t>(all[i].source.size())});
      whose.push_back(i);
      tokens.insert(tokens.end(), all[i].ids.begin() + at, all[i].ids.begin() + at + n);
    }
    if (step.empty()) return rows;
    EXPECT_TRUE(runner.Step(step, tokens));
    for (size_t s = 0; s < step.size(); ++s) {
      for (uint32_t r = 0; r < step[s].num_rows; ++r) {
        EXPECT_TRUE(runner.finite(step[s].first_row + r));
        rows[whose[s]].push_back(LogitsOf(runner, step[s].first_row + r));
      }
    }
  }
}

inline std::vector<SequenceTables> TablesForAll(const KvLayout& layout,
                                                const std::vector<Translation>& all) {
  std::vector<SequenceTables> tables;
  for (const Translation& t : all) tables.push_back(TablesFor(layout, t));
  return tables;
}

inline std::vector<Rows> TranslateAll(Runner& runner, const KvLayout& layout,
                                      const std::vector<Translation>& all, uint32_t chunk) {
  const std::vector<SequenceTables> tables = TablesForAll(layout, all);
  EncodeAll(runner, all, tables);
  return DecodeAll(runner, all, tables, chunk);
}

}  // namespace kvasir
