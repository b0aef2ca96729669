// AnswerFormats: the grammars of the answers that requests ask for.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string_view>
#include <vector>

#include "base/mutex.h"
#include "grammar/grammar_store.h"
#include "kvasir/answer_format.h"
#include "text/tokenizer.h"

namespace kvasir {

// What a request with a format runs by.
struct CompiledFormat {
  std::shared_ptr<const Grammar> whole;    // null: any text
  std::shared_ptr<const Grammar> closing;  // from a thought's closing mark on; null: never needed
  TokenMasks* masks = nullptr;             // of the engine; null: neither is there
  const TokenTrie* words = nullptr;  // of the engine; null: not needed (SamplingParams::infill)
};

// Compiles and keeps grammars, and masks of the model's vocabulary, within one budget. The
// vocabulary's trie is made for the first request that needs it, in the budget too. Thread-safe.
class AnswerFormats {
 public:
  // tokenizer: null, or outlives this. `ends`: tokens that end an answer. `one_by_one`: where
  // memory is scarce, one grammar is compiled at a time.
  AnswerFormats(const Tokenizer* tokenizer, uint32_t vocab_size, std::vector<TokenId> ends,
                uint64_t budget_bytes, bool one_by_one = false);

  // Compiles on the caller's thread. Each owner has its own grammars: the time that a format takes
  // does not say that somebody else asked for it. kUnsupported: the tokenizer's tokens are not
  // bytes, or the vocabulary does not fit the budget. Errors as CompileAnswer's.
  Result<CompiledFormat> Compile(const AnswerFormat& format, std::string_view owner);
  // Returns what the model's tokens stand for, as GrammarTexts has them. Errors as Compile's, of
  // "samplers".
  Result<const TokenTrie*> Words();
  uint64_t bytes() const;  // in use; at most the budget

 private:
  Status MakeStore() KV_REQUIRES(mutex_);
  // Computes masks of places where many tokens may follow: a step would take longer for them.
  static void ComputeMasks(TokenMasks& masks, const Grammar& grammar);

  const Tokenizer* const tokenizer_;
  const uint32_t vocab_size_;
  const std::vector<TokenId> ends_;
  const uint64_t budget_bytes_;
  const bool one_by_one_;
  std::mutex compiling_;  // held while a grammar is compiled, where one_by_one_
  mutable Mutex mutex_;
  std::optional<Error> no_store_ KV_GUARDED_BY(mutex_);
  std::unique_ptr<GrammarStore> store_ KV_GUARDED_BY(mutex_);  // once made, it stays
  size_t dropped_spaces_ KV_GUARDED_BY(mutex_) = 0;
};

}  // namespace kvasir
