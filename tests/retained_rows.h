// Requests with bounded contexts, their rows of logits, and what those are compared with.
#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine_scenario.h"
#include "source_paths.h"
#include "tensor/same_bits_for_test.h"

namespace kvasir {

using RetainedRows = std::map<std::pair<uint32_t, uint32_t>, std::vector<float>>;

inline const char* const kRetained = KVASIR_SOURCE_DIR "/tests/data/tiny-gqa";

inline EngineOptions RetainedOptions(const std::string& model = kRetained) {
  EngineOptions options = DemoOptions();
  options.model = model;
  options.kv_memory_bytes = 4 << 20;
  return options;
}

// A pool of at most so many blocks.
inline EngineOptions WithBlocks(uint32_t blocks) {
  EngineOptions options = RetainedOptions();
  while (Engine::PlanMemory(options)->num_blocks > blocks) {
    options.kv_memory_bytes = options.kv_memory_bytes / 20 * 19;
  }
  return options;
}

inline std::vector<TokenId> RetainedPrompt(uint32_t count, uint32_t seed = 3) {
  std::vector<TokenId> tokens(count);
  for (uint32_t i = 0; i < count; ++i) {
    tokens[i] = static_cast<TokenId>((i * 7 + i * i / 5 + seed) % 61);
  }
  return tokens;
}

inline GenerateRequest Bounded(std::vector<TokenId> prompt, uint32_t max_tokens,
                               RetentionChoice choice) {
  GenerateRequest request = Greedy(std::move(prompt), max_tokens);
  request.ignore_eos = true;
  request.retention = choice;
  return request;
}

inline Answer AskForRetained(Engine& engine, GenerateRequest request, RetainedRows& rows) {
  request.on_logits = [&rows](uint32_t choice, uint32_t position, std::span<const float> row) {
    rows[{choice, position}] = std::vector(row.begin(), row.end());
  };
  Answer answer = Ask(engine, std::move(request));
  EXPECT_FALSE(answer.error) << answer.error->message;
  engine.CheckInvariants();
  EXPECT_EQ(engine.Stats().pinned_blocks, 0u);
  return answer;
}

inline std::vector<TokenId> TextOf(const GenerateRequest& request, const Answer& answer,
                                   size_t choice) {
  std::vector<TokenId> tokens = request.prompt;
  const auto& more = answer.choices[choice].tokens;
  tokens.insert(tokens.end(), more.begin(), more.end());
  tokens.pop_back();  // it is not computed
  return tokens;
}

inline uint64_t Compare(const std::vector<std::vector<float>>& want, const RetainedRows& rows,
                        uint32_t choice, const std::string& what) {
  uint64_t compared = 0;
  for (const auto& [where, row] : rows) {
    if (where.first != choice) continue;
    EXPECT_TRUE(SameBits(want.at(where.second), row)) << what << ", row " << where.second;
    ++compared;
  }
  return compared;
}

}  // namespace kvasir
