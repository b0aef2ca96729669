#include "text/score_merges.h"

#include <algorithm>
#include <string>
#include <string_view>

#include "base/result.h"

namespace kvasir {
namespace {

constexpr TokenId kNone = -1;

// [id]: the longest other text that texts[id] begins with; kNone: none does. Empty texts stand for
// ids without a token. In sorted order the texts that a text begins with stand before it, the
// longest last.
std::vector<TokenId> LongestPrefixes(const std::vector<std::string>& texts) {
  std::vector<TokenId> order;
  for (size_t id = 0; id < texts.size(); ++id) {
    if (!texts[id].empty()) order.push_back(static_cast<TokenId>(id));
  }
  const auto text = [&](TokenId id) -> const std::string& {
    return texts[static_cast<size_t>(id)];
  };
  std::ranges::sort(order, {}, text);
  std::vector<TokenId> longest(texts.size(), kNone), open;
  for (const TokenId id : order) {
    while (!open.empty() && !text(id).starts_with(text(open.back()))) open.pop_back();
    if (!open.empty()) longest[static_cast<size_t>(id)] = open.back();
    open.push_back(id);
  }
  return longest;
}

}  // namespace

Result<ScoreMerges> MergesByScore(const Vocabulary& vocabulary, uint64_t max_merges) {
  std::vector<std::string> texts;
  for (const VocabularyToken& token : vocabulary.tokens) {
    texts.push_back(token.kind == TokenKind::kNormal ? token.text : "");
  }
  const std::vector<TokenId> prefix = LongestPrefixes(texts);
  for (std::string& text : texts) std::ranges::reverse(text);
  const std::vector<TokenId> suffix = LongestPrefixes(texts);
  const auto size = [&](TokenId id) { return texts[static_cast<size_t>(id)].size(); };
  ScoreMerges found;
  for (size_t id = 0; id < texts.size(); ++id) {
    // Prefixes from the longest on meet suffixes from the longest on.
    std::vector<TokenId> rights;
    for (TokenId right = suffix[id]; right != kNone; right = suffix[static_cast<size_t>(right)]) {
      rights.push_back(right);
    }
    found.steps += rights.size();
    for (TokenId left = prefix[id]; left != kNone; left = prefix[static_cast<size_t>(left)]) {
      ++found.steps;
      const size_t rest = texts[id].size() - size(left);
      while (!rights.empty() && size(rights.back()) < rest) rights.pop_back();
      if (rights.empty()) break;
      if (size(rights.back()) != rest) continue;
      if (found.merges.size() == max_merges) {
        return Fail(Code::kCorruption,
                    "{}: its {} tokens make more than {} merges; put the model's tokenizer.json "
                    "beside the file",
                    vocabulary.file, texts.size(), max_merges);
      }
      found.merges.push_back({left, rights.back(), static_cast<TokenId>(id)});
    }
  }
  return found;
}

}  // namespace kvasir
