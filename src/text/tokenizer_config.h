// What the files beside a tokenizer.json say of BOS and EOS.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "kvasir/status.h"
#include "kvasir/types.h"

namespace kvasir {

// What tokenizer_config.json says, or other files where it says nothing.
struct TokenizerConfig {
  std::optional<std::string> bos, eos;
  std::optional<TokenId> bos_id, eos_id;  // of tokens without a text in any file
  bool add_bos = false, add_eos = false;
  bool decides_bos = false, decides_eos = false;  // above counts whatever a post-processor adds
  // JSON of what the other files added, for digests; "" if they added nothing.
  std::string additions;
};

// Reads the texts of tokenizer_config.json and of special_tokens_map.json ("": there is no file).
// kCorruption names the file and what is wrong.
Result<TokenizerConfig> ParseTokenizerConfig(std::string_view tokenizer_config_json,
                                             std::string_view special_tokens_json);

}  // namespace kvasir
