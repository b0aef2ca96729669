// Reads random tokens with a grammar, for its fuzzers.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/random.h"
#include "grammar/matcher.h"
#include "grammar/token_masks.h"

namespace kvasir {

// Draws legal tokens of a small vocabulary, as an answer would. Aborts where Advance takes a token
// that the mask does not have, or nothing can follow in spite of what the matcher says.
inline void ReadWith(std::shared_ptr<const Grammar> grammar, uint64_t seed) {
  std::vector<std::string> texts;
  for (int byte = 0; byte < 256; ++byte) texts.emplace_back(1, static_cast<char>(byte));
  for (const char* text :
       {"\",", "{\"", "\":", "}]", "ab", "aaa", "12", " \n", "\xC3\xA4", "true"}) {
    texts.emplace_back(text);
  }
  texts.emplace_back();
  const auto end = static_cast<TokenId>(texts.size() - 1);
  TokenMasks masks(std::make_shared<const TokenTrie>(texts, std::vector<TokenId>{end}), 1 << 16);
  std::vector<uint64_t> words(MaskWords(masks.trie().num_tokens()));
  Random random(seed);
  Matcher matcher(std::move(grammar));
  for (int step = 0; step < 40; ++step) {
    matcher.Mask(masks, words);
    KV_CHECK(IsLegal(words, end) == matcher.Accepts());
    std::vector<TokenId> legal;
    for (TokenId id = 0; id < end; ++id) {
      if (IsLegal(words, id)) legal.push_back(id);
    }
    KV_CHECK(legal.empty() || !matcher.IsAtEnd());
    const auto any = static_cast<TokenId>(random.Below(static_cast<uint64_t>(end)));
    Matcher copy = matcher;
    KV_CHECK(!copy.Advance(texts[static_cast<size_t>(any)]) || IsLegal(words, any));
    if (legal.empty()) return;
    const TokenId next = legal[random.Below(legal.size())];
    if (!matcher.Advance(texts[static_cast<size_t>(next)])) return;  // too many places
  }
}

}  // namespace kvasir
