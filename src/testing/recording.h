// Recording: requests that a real service got, as published by Mooncake and Azure: times, lengths
// and shared blocks, no text.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kvasir/status.h"
#include "kvasir/types.h"

namespace kvasir {

inline constexpr uint32_t kRecordedBlockTokens = 512;

struct RecordedRequest {
  uint64_t timestamp_ms = 0;  // since the recording began
  uint32_t input_tokens = 0;
  uint32_t output_tokens = 0;
  // The blocks of the prompt in order, of kRecordedBlockTokens each; the last one may not be full.
  // Equal numbers mean equal blocks after equal blocks.
  std::vector<uint32_t> block_ids;
};

// Parses JSON Lines in the format of kvcache-ai/Mooncake (FAST 2025), one object on each line:
//   {"timestamp": ms, "input_length": tokens, "output_length": tokens, "hash_ids": [numbers]}
// Ignores other keys and empty lines. kCorruption names `file` and the line.
Result<std::vector<RecordedRequest>> ParseRecording(std::string_view text, const std::string& file);
// Parses CSV in the format of AzurePublicDataset (Splitwise, ISCA 2024):
//   TIMESTAMP,ContextTokens,GeneratedTokens
//   2023-11-16 18:15:46.6805900,374,44
// Its prompts share nothing: each block has its own number. Ignores empty lines. kCorruption names
// `file` and the line. REQUIRES: times ascend; one that does not counts as the one before it.
Result<std::vector<RecordedRequest>> ParseAzureRecording(std::string_view text,
                                                         const std::string& file);
// Reads either format, by the file's first line. kNotFound when the file cannot be opened, kIoError
// when it cannot be read.
Result<std::vector<RecordedRequest>> ReadRecording(const std::string& path);

// Makes tokens below `vocab_size` with the lengths and the shared beginnings of the request: token
// i of a block is a function of the block's number and i. Without numbers for all blocks it is
// shorter.
std::vector<TokenId> PromptOf(const RecordedRequest& request, uint32_t vocab_size);

}  // namespace kvasir
