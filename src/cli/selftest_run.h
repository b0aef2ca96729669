// Generations for selftest: a digest of every row of logits, and their comparison.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/digest.h"
#include "base/random.h"
#include "kvasir/engine.h"

namespace kvasir::cli {

using Tokens = std::vector<TokenId>;
Tokens Joined(Tokens tokens, const Tokens& more);
// Returns the first `count` tokens.
Tokens Prefix(const Tokens& tokens, size_t count);

// What a generation gave: a digest of the bits of each row that it computed, by (choice,
// position).
struct Generated {
  std::map<std::pair<uint32_t, uint32_t>, Digest> rows;
  std::vector<std::vector<TokenId>> answers;  // by choice
  Receipt receipt;
};

// Runs the requests, which come at one moment, and waits for all of them. Returns the error of any
// that fails.
Result<std::vector<Generated>> RunTogether(Engine& engine, std::vector<GenerateRequest> requests);
Result<Generated> RunAlone(Engine& engine, GenerateRequest request);

// One check: the number of compared rows and the first problem. It passes when rows were compared,
// none differs, and all expectations hold.
class Check {
 public:
  explicit Check(std::string name) : name_(std::move(name)) {}

  // Expects every row of `got` in `want` with the same bits.
  void Compare(const Generated& want, const Generated& got, const std::string& what);
  void CompareRow(const Digest& want, const Digest& got, const std::string& what);
  void Expect(bool condition, const std::string& what);

  const std::string& name() const { return name_; }
  uint64_t rows() const { return rows_; }
  uint64_t differ() const { return differ_; }
  const std::string& first_wrong() const { return first_wrong_; }
  bool passed() const { return rows_ > 0 && first_wrong_.empty(); }

 private:
  std::string name_;
  uint64_t rows_ = 0, differ_ = 0;
  std::string first_wrong_;  // "": no problem
};

// What the checks share: loads engines and makes prompts from a seed.
class Lab {
 public:
  // Loads the engine with the user's flags.
  static Result<Lab> Create(EngineOptions options);

  // Returns the prompt sizes of a check in tokens: one that ends inside a block, one at its edge, a
  // short one. (Only one for a large model.)
  const std::vector<uint32_t>& prompt_sizes() const { return prompt_sizes_; }
  // Draws a new prompt() and, for a model with an encoder, a source() of as many tokens, and
  // computes its reference: whole, alone, with the cache off.
  Status DrawPrompt(uint32_t size);

  Engine& engine() { return *engine_; }
  // Returns the options of an engine without a disk or a store.
  const EngineOptions& options() const { return options_; }
  // Returns the store that the user named; only one check uses it.
  const std::optional<RemoteOptions>& remote() const { return remote_; }
  Result<std::unique_ptr<Engine>> Load(const EngineOptions& options) const;

  const std::vector<TokenId>& prompt() const { return prompt_; }
  const std::vector<TokenId>& source() const { return source_; }  // of all requests; may be empty
  bool has_encoder() const { return engine_->card().decoder_start.has_value(); }
  const Generated& reference() const { return reference_; }  // of prompt() and its answer
  uint32_t answer_tokens() const { return answer_tokens_; }
  // Returns the length at which RoPE longrope changes its factors, where a prompt of so many tokens
  // is soon computed. options() then have a context in which no other check's prompt grows past it.
  std::optional<uint32_t> rope_switch() const { return rope_switch_; }
  std::vector<TokenId> RandomTokens(size_t count);

  // Returns a request for `prompt` and answer_tokens() greedy tokens; a digest of each row is kept.
  GenerateRequest Ask(std::vector<TokenId> prompt) const;
  // Runs such a request on `engine` with the cache off.
  Result<Generated> Cold(Engine& engine, const std::vector<TokenId>& prompt) const;

 private:
  explicit Lab(EngineOptions options) : options_(std::move(options)) {}

  EngineOptions options_;
  std::optional<RemoteOptions> remote_;
  std::unique_ptr<Engine> engine_;
  Random random_{20240917};
  std::vector<uint32_t> prompt_sizes_;
  std::vector<TokenId> prompt_, source_;
  uint32_t answer_tokens_ = 24;
  std::optional<uint32_t> rope_switch_;
  Generated reference_;
};

// Checks prompts for all of which the pool is too small: blocks are evicted and computed again.
Status Evicted(Lab& lab, Check& check);
// Checks two answers that grow until the pool holds only one of them: one gives up its blocks and
// goes on later.
Status Preempted(Lab& lab, Check& check);

// Checks answers that grow past rope_switch(). REQUIRES: there is one.
Status Crossed(Lab& lab, Check& check);

// Checks sources that begin alike or come again. REQUIRES: the model has an encoder.
Status Cross(Lab& lab, Check& check);

// Checks drafts: some tokens are right, some wrong.
Status Drafted(Lab& lab, Check& check);

// Checks sequences that drop tokens. REQUIRES: ModelCard::no_retention is empty.
Status Retained(Lab& lab, Check& check);

// Checks prompts with spans. REQUIRES: ModelCard::no_spans is empty.
// Tokens of its prompt, at least: two spans of 36, and what stands before and after them.
inline constexpr uint32_t kSpannedTokens = 96;
Status Spanned(Lab& lab, Check& check);

// Checks prompts that are computed with different adapters, and without. REQUIRES: the model has no
// encoder.
Status Adapters(Lab& lab, Check& check);

// Checks engines that share their cache through the store of --remote. REQUIRES: Lab::remote.
Status Remote(Lab& lab, Check& check);
// Checks an engine whose store does not answer. REQUIRES: the model has no encoder.
Status Unreached(Lab& lab, Check& check);

// Waits until all that an engine has computed is stored.
Status Flush(Engine& engine);

// Checks with a disk, in a temporary folder.
Status Restarted(Lab& lab, Check& check);
Status Loading(Lab& lab, Check& check);
Status Damaged(Lab& lab, Check& check);
Status Erased(Lab& lab, Check& check);
Status Forgotten(Lab& lab, Check& check);

// Runs all checks in order. A check that an error stops fails with that error.
std::vector<Check> RunChecks(Lab& lab, const std::function<void(const Check&)>& on_done);

}  // namespace kvasir::cli
