#include "grammar/grammar_store.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/json_tree.h"
#include "base/result.h"
#include "grammar/gbnf.h"
#include "grammar/json_schema.h"
#include "grammar/regular_expression.h"

namespace kvasir {
namespace {

uint64_t BytesOf(const Grammar& grammar) { return grammar.bytes() + 128; }  // and the list's

Result<std::shared_ptr<const Grammar>> CompileGrammar(GrammarLanguage language,
                                                      std::string_view text) {
  if (language == GrammarLanguage::kGbnf) return CompileGbnf(text);
  if (language == GrammarLanguage::kRegularExpression) return CompileRegularExpression(text);
  JsonTree tree;
  const auto value = tree.Parse(text);
  if (!value) {
    return Fail(Code::kInvalidArgument, "the text is not JSON, or nests more than 128 deep");
  }
  if (language != GrammarLanguage::kTexts) {
    return CompileJsonSchema(*value, language == GrammarLanguage::kStrictJsonSchema
                                         ? SchemaStrictness::kStrict
                                         : SchemaStrictness::kLoose);
  }
  std::vector<std::string_view> texts;
  for (const JsonValue& item :
       value->kind() == JsonValue::Kind::kArray ? value->items() : std::span<const JsonValue>()) {
    if (!item.is_string()) return Fail(Code::kInvalidArgument, "a choice is not a string");
    texts.push_back(item.text());
  }
  return CompileTexts(texts);
}

}  // namespace

GrammarStore::GrammarStore(std::shared_ptr<const TokenTrie> trie, uint64_t budget_bytes)
    : grammar_budget_bytes_(budget_bytes / 4),
      masks_(std::move(trie), budget_bytes - budget_bytes / 4) {}

uint64_t GrammarStore::bytes() const {
  const MutexLock lock(mutex_);
  return bytes_ + masks_.bytes();
}

Result<std::shared_ptr<const Grammar>> GrammarStore::Get(GrammarLanguage language,
                                                         std::string_view text) {
  Sha256 sha;
  const Digest digest = sha.UpdateU64(static_cast<uint64_t>(language)).Update(text).Finish();
  {
    const MutexLock lock(mutex_);
    const auto found = std::find_if(kept_.begin(), kept_.end(),
                                    [&](const Kept& kept) { return kept.digest == digest; });
    if (found != kept_.end()) {
      kept_.splice(kept_.begin(), kept_, found);
      return found->grammar;
    }
  }
  KV_ASSIGN(std::shared_ptr<const Grammar> grammar, CompileGrammar(language, text));
  Keep(digest, grammar);
  return grammar;
}

void GrammarStore::Keep(const Digest& digest, std::shared_ptr<const Grammar> grammar) {
  const MutexLock lock(mutex_);
  const uint64_t bytes = BytesOf(*grammar);
  // Another thread may have been faster: then both are kept until they go.
  if (bytes > grammar_budget_bytes_) return;
  while (bytes_ + bytes > grammar_budget_bytes_) {
    bytes_ -= BytesOf(*kept_.back().grammar);
    kept_.pop_back();
  }
  kept_.push_front({digest, std::move(grammar)});
  bytes_ += bytes;
}

}  // namespace kvasir
