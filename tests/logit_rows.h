// Rows of logits that engines report, for scenarios which compare their bits.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "engine_scenario.h"
#include "source_paths.h"
#include "tensor/same_bits_for_test.h"

namespace kvasir {

using LogitRows = std::map<std::pair<uint32_t, uint32_t>, std::vector<float>>;  // choice, position

// A format of each kind, and two of them together.
inline constexpr const char* kAllKvFormats[] = {"f32",  "f16",  "bf16", "fp8_e4m3",    "fp8_e5m2",
                                                "int8", "int4", "nf4",  "k=int8,v=f16"};

inline const char* const kRowModel = KVASIR_SOURCE_DIR "/tests/data/tiny-gqa";

inline EngineOptions RowOptions(const std::string& model = kRowModel) {
  EngineOptions options = DemoOptions();
  options.model = model;
  options.kv_memory_bytes = 4 << 20;
  return options;
}

// Makes options for a pool of at most so many blocks.
inline EngineOptions RowOptionsWithBlocks(uint32_t blocks) {
  EngineOptions options = RowOptions();
  while (Engine::PlanMemory(options)->num_blocks > blocks) {
    options.kv_memory_bytes = options.kv_memory_bytes / 20 * 19;
  }
  return options;
}

// Writes rows down for GenerateRequest::on_logits, of which `rows` outlives the request.
inline auto RecordInto(LogitRows& rows) {
  return [&rows](uint32_t choice, uint32_t position, std::span<const float> row) {
    rows[{choice, position}] = std::vector(row.begin(), row.end());
  };
}

inline Answer AskWithRows(Engine& engine, GenerateRequest request, LogitRows& rows) {
  request.on_logits = RecordInto(rows);
  const size_t prompt = request.prompt.size();
  Answer answer = Ask(engine, std::move(request));
  EXPECT_FALSE(answer.error) << answer.error->message;
  EXPECT_EQ(answer.receipt.computed + answer.receipt.cached_tokens(), prompt);
  engine.CheckInvariants();
  EXPECT_EQ(engine.Stats().pinned_blocks, 0u);
  return answer;
}

// Returns the rows of a request that finds and leaves nothing.
inline LogitRows ColdRows(Engine& engine, GenerateRequest request) {
  request.reuse = Reuse::kNothing;
  LogitRows rows;
  AskWithRows(engine, std::move(request), rows);
  return rows;
}

// Expects that each row is one of `want`; a hit has fewer. Returns how many there are.
inline uint64_t ExpectSameRows(const LogitRows& want, const LogitRows& rows,
                               const std::string& what) {
  EXPECT_FALSE(rows.empty()) << what;
  for (const auto& [where, row] : rows) {
    const auto found = want.find(where);
    EXPECT_TRUE(found != want.end() && SameBits(found->second, row))
        << what << ", choice " << where.first << ", row " << where.second;
  }
  return rows.size();
}

}  // namespace kvasir
