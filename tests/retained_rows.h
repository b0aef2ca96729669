// Requests with bounded contexts, their rows of logits, and what those are compared with.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "logit_rows.h"

namespace kvasir {

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

inline std::vector<TokenId> TextOf(const GenerateRequest& request, const Answer& answer,
                                   size_t choice) {
  std::vector<TokenId> tokens = request.prompt;
  const auto& more = answer.choices[choice].tokens;
  tokens.insert(tokens.end(), more.begin(), more.end());
  tokens.pop_back();  // it is not computed
  return tokens;
}

inline uint64_t Compare(const std::vector<std::vector<float>>& want, const LogitRows& rows,
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
