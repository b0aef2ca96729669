// BytesTokenizer: a tokenizer whose tokens are single bytes, and one that ends answers.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>

#include "text/byte_level.h"
#include "text/tokenizer.h"

namespace kvasir {

// Returns one in which the id of a byte is its value, and 256 ends answers.
inline std::unique_ptr<Tokenizer> BytesTokenizer() {
  std::string vocab;
  for (int byte = 0; byte < 256; ++byte) {
    std::string letter(ByteLevelChar(static_cast<uint8_t>(byte)));
    if (letter == "\"" || letter == "\\") letter.insert(0, "\\");
    vocab += (byte ? ",\"" : "\"") + letter + "\":" + std::to_string(byte);
  }
  auto made = Tokenizer::Parse(
      R"({"added_tokens":[{"id":256,"content":"<|end|>","special":true}],
          "normalizer":null,"post_processor":null,
          "pre_tokenizer":{"type":"ByteLevel","add_prefix_space":false,"use_regex":true},
          "decoder":{"type":"ByteLevel"},"model":{"type":"BPE","vocab":{)" +
          vocab + R"(},"merges":[]}})",
      R"({"eos_token":"<|end|>"})");
  EXPECT_TRUE(made) << made.error().message;
  return std::move(*made);
}

}  // namespace kvasir
