// Comparison: compares a model with f32 KV and the same model with other KV formats over a text.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "eval/statistics.h"
#include "eval/text.h"
#include "kvasir/engine.h"

namespace kvasir::eval {

struct KvChoice {
  std::string format;                 // for EngineOptions::kv_format
  std::vector<uint32_t> skip_layers;  // kept in f16
};

struct Answer {
  std::string text;
  bool right = false;
};

// One choice compared with f32.
struct Measured {
  KvChoice choice;
  std::string kv_format;  // canonical: "int8; f16 in layers 0, 15"
  uint64_t kv_bytes_per_token = 0;
  Quality quality;
  std::vector<DepthQuality> depths;
  std::vector<Answer> answers;  // to the probes, in their order; empty without probes
};

// Tells whether `text` contains `expect` as whole words, without a letter, digit or underscore
// beside it.
bool HasWords(std::string_view text, std::string_view expect);

inline constexpr const char* kEvalTenant = "eval";

// Computes the logits of the rows [from, tokens.size()) of a prompt into `out`, [rows][vocab].
// `cached`: the tokens before `from` may come from the cache, and all stay in it. source: of a
// model with an encoder.
Status ComputeRows(Engine& engine, std::span<const TokenId> source, std::span<const TokenId> tokens,
                   uint32_t from, bool cached, std::span<float> out);

// Returns the greedy answers to prompts, up to 64 tokens each, and whether they have the words that
// the probes expect. Reuses nothing. `retention` absent: the engine's.
Result<std::vector<Answer>> AnswerPrompts(Engine& engine,
                                          std::span<const std::vector<TokenId>> prompts,
                                          std::span<const Probe> probes,
                                          const std::optional<RetentionChoice>& retention);

// Returns memory for the KV of two of the longest sequences, and for the cache's metadata.
Result<uint64_t> KvMemoryFor(EngineOptions options);

struct ComparisonOptions {
  EngineOptions engine;  // model, weights, ctx_size, threads, ...; its kv_format is not used
  // Memory for rows of logits of the reference, and the same again for the other engine.
  uint64_t rows_bytes = uint64_t{64} << 20;
  // Several engines of a model with at most these weights may always be loaded.
  uint64_t small_weights_bytes = uint64_t{64} << 20;
  std::function<void(const std::string&)> say = [](const std::string&) {};  // progress
  std::function<Result<std::unique_ptr<Engine>>(EngineOptions)> load = Engine::Load;
};

// Runs windows in chunks whose logits fit rows_bytes. It keeps the reference's rows of a chunk,
// each other engine computes its rows of the same tokens, and threads compare them row by row.
// Later chunks of a window find the earlier tokens in the KV cache, whose hits equal misses bit
// for bit. So the figures depend only on model, text and format, not on threads, chunks or other
// measurements. Up to eight engines are loaded beside the reference for small models, and for
// models with shared weights as long as the engines add at most the size of the weights (or 256
// MiB); otherwise one. One thread.
class Comparison {
 public:
  // Loads the model with f32 KV. Errors: those of Engine::Load.
  static Result<std::unique_ptr<Comparison>> Create(ComparisonOptions options);

  // Returns the plan of an engine for a choice; errors say what is wrong with the choice.
  Result<MemoryPlan> PlanOf(const KvChoice& choice) const;
  Engine& reference() { return *reference_; }

  // Returns the figures of each choice over `text`, in their order, and its answers to `probes`.
  Result<std::vector<Measured>> Measure(std::span<const KvChoice> choices, const EvalText& text,
                                        std::span<const Probe> probes);
  // Returns the answers with f32 KV: greedy, up to 64 tokens. kInvalidArgument when a probe does
  // not fit the context.
  Result<std::vector<Answer>> AnswerReference(std::span<const Probe> probes);

 private:
  struct Candidate;
  bool is_small() const { return reference_->plan().weights_bytes <= options_.small_weights_bytes; }
  Status LoadReference();
  // Returns how many of the first `choices` are measured together.
  Result<size_t> GroupOf(std::span<const KvChoice> choices) const;
  explicit Comparison(ComparisonOptions options, uint32_t threads);
  EngineOptions OptionsFor(const KvChoice& choice) const;
  Result<std::vector<Measured>> MeasureGroup(std::span<const KvChoice> choices,
                                             const EvalText& text, std::span<const Probe> probes);
  Status CompareWindow(const EvalText& text, size_t index, std::vector<Candidate>& candidates);
  Result<std::vector<Answer>> AnswerProbes(Engine& engine, const std::string& name,
                                           std::span<const Probe> probes);

  ComparisonOptions options_;
  std::unique_ptr<Engine> reference_;
  ThreadPool pool_;
  std::vector<float> reference_rows_, rows_;  // [rows of a chunk][vocab]
};

}  // namespace kvasir::eval
