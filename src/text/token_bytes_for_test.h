// Checks Tokenizer::BytesOfTokens against Decode.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "base/random.h"
#include "base/utf8.h"
#include "text/tokenizer.h"

namespace kvasir {

// Checks random ids and ids of a text: their bytes, where they are UTF-8, are the text that they
// decode to. Returns how many texts were compared.
inline size_t ExpectBytesOfTokens(const Tokenizer& tokenizer) {
  const auto bytes = tokenizer.BytesOfTokens();
  EXPECT_TRUE(bytes.has_value());
  if (!bytes) return 0;
  size_t count = 0;
  const auto expect = [&](const std::vector<TokenId>& ids) {
    std::string joined;
    for (const TokenId id : ids) joined += bytes->of[static_cast<size_t>(id)];
    if (FirstInvalidUtf8(joined) != joined.size()) return;
    const size_t begin = std::min(joined.find_first_not_of(' '), joined.size());
    EXPECT_EQ(joined.substr(std::min(begin, bytes->dropped_spaces)),
              tokenizer.Decode(ids, SpecialTokens::kShow));
    ++count;
  };
  for (const std::string text : {"{\"a\": [1, 2.5]}", "  two spaces", "Zoë 日本 \U0001F600\n\t."}) {
    expect(tokenizer.Encode(text, {.add_special = false}).value());
  }
  Random random(7);
  for (int i = 0; i < 2000; ++i) {
    std::vector<TokenId> ids(1 + random.Below(4));
    for (TokenId& id : ids) id = static_cast<TokenId>(random.Below(tokenizer.vocab_size()));
    expect(ids);
  }
  return count;
}

}  // namespace kvasir
