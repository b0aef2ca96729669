// Comparison: a model with f32 KV and the same model with other KV formats, side by side over a
// text.
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
  std::string format;                 // as EngineOptions::kv_format
  std::vector<uint32_t> skip_layers;  // kept in f16
};

struct Answer {
  std::string text;
  bool right = false;
};

// One choice beside f32.
struct Measured {
  KvChoice choice;
  std::string kv_format;  // canonical: "int8; f16 in layers 0, 15"
  uint64_t kv_bytes_per_token = 0;
  Quality quality;
  std::vector<DepthQuality> depths;
  std::vector<Answer> answers;  // to the probes, in their order; empty: not asked
};

// Whether `text` has `expect` as whole words: no letter, digit or underscore beside it.
bool HasWords(std::string_view text, std::string_view expect);

struct ComparisonOptions {
  EngineOptions engine;  // model, weights, ctx_size, threads, ...; its kv_format is not used
  // Logits in memory at once: as many rows of the reference as fit, and the same of the other.
  uint64_t rows_bytes = uint64_t{64} << 20;
  // Weights of a model of which several engines are loaded without a thought.
  uint64_t small_weights_bytes = uint64_t{64} << 20;
  std::function<void(const std::string&)> say = [](const std::string&) {};  // progress
  std::function<Result<std::unique_ptr<Engine>>(EngineOptions)> load = Engine::Load;
};

// Windows are run in segments whose logits fit rows_bytes: the reference's rows of a segment are
// kept, each other engine computes its own of the same tokens, and threads compare them row by row.
// Segments of a window but the first find what was before in the KV cache, whose hits equal misses
// bit for bit. So figures depend on model, text and format alone: not on threads, segments or what
// else is measured. Up to eight engines are loaded beside the reference: of small models, and of
// others whose weights are shared, as long as what they add takes no more than the weights (or 256
// MiB); else one. One thread.
class Comparison {
 public:
  // Loads the model with f32 KV. Errors: those of Engine::Load.
  static Result<std::unique_ptr<Comparison>> Create(ComparisonOptions options);

  // The plan of an engine for a choice; errors name what is wrong with it.
  Result<MemoryPlan> PlanOf(const KvChoice& choice) const;
  Engine& reference() { return *reference_; }

  // The figures of each choice over `text`, in their order, and its answers to `probes`.
  Result<std::vector<Measured>> Measure(std::span<const KvChoice> choices, const EvalText& text,
                                        std::span<const Probe> probes);
  // The answers with f32 KV: greedy, up to 64 tokens. kInvalidArgument: a probe that does not fit
  // the context.
  Result<std::vector<Answer>> AnswerReference(std::span<const Probe> probes);

 private:
  struct Candidate;
  bool is_small() const { return reference_->plan().weights_bytes <= options_.small_weights_bytes; }
  Status LoadReference();
  // How many of `choices`, from the first, are measured together.
  Result<size_t> GroupOf(std::span<const KvChoice> choices) const;
  explicit Comparison(ComparisonOptions options, uint32_t threads);
  EngineOptions OptionsFor(const KvChoice& choice) const;
  Result<std::vector<Measured>> MeasureGroup(std::span<const KvChoice> choices,
                                             const EvalText& text, std::span<const Probe> probes);
  Status CompareWindow(std::span<const TokenId> window, std::vector<Candidate>& candidates);
  Result<std::vector<Answer>> AnswerProbes(Engine& engine, const std::string& name,
                                           std::span<const Probe> probes);

  ComparisonOptions options_;
  std::unique_ptr<Engine> reference_;
  ThreadPool pool_;
  std::vector<float> reference_rows_, rows_;  // [rows of a segment][vocab]
};

}  // namespace kvasir::eval
