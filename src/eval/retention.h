// RetentionComparison: what a sequence loses that drops tokens, against the same sequence with full
// attention.
#pragma once

#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "eval/measure.h"
#include "eval/statistics.h"
#include "eval/text.h"
#include "kvasir/engine.h"

namespace kvasir::eval {

// Answers to probes, and how many of them are right with full attention.
struct RightCount {
  uint64_t probes = 0, right = 0, exact_right = 0;
};

// A tenth of a text that is longer than the context. Beside it: full attention in windows of the
// context, each of which begins anew.
struct StreamPart {
  uint64_t tokens = 0;
  double perplexity = 0, fresh_perplexity = 0;
};

struct RetentionMeasured {
  RetentionChoice choice;
  std::string name;  // with all numbers: "heavy:budget=512,sinks=4,recent=64"
  uint32_t budget = 0, sinks = 0, recent = 0;
  Quality quality;  // of windows whose tokens are all under the policy; reference: full attention
  std::vector<DepthQuality> depths;
  // Answers to all probes, and to those whose fact is farther back than the budget. Their prompts
  // are exact, as a chat's are.
  RightCount all, far;
  // Answers to all probes after another question on the same context, and its answer: that one may
  // have dropped the fact, and this one reads its prompt anew.
  RightCount second;
  std::vector<StreamPart> stream;  // empty: not measured
};

// Measures with two engines of the same options, one after the other: no figure depends on
// threads, chunks or other measurements. One thread.
class RetentionComparison {
 public:
  struct Options {
    EngineOptions engine;  // with the KV format of both; its retention is not used
    uint64_t rows_bytes = uint64_t{64} << 20;  // rows of logits of full attention
    std::function<void(const std::string&)> say = [](const std::string&) {};
    std::function<Result<std::unique_ptr<Engine>>(EngineOptions)> load = Engine::Load;
  };

  static Result<std::unique_ptr<RetentionComparison>> Create(Options options);
  Engine& exact() { return *exact_; }

  // kInvalidArgument (field `retention`): what is wrong with the choice, or it would drop nothing.
  Result<RetentionMeasured> Prepare(const RetentionChoice& choice) const;
  Status MeasureText(const EvalText& text, RetentionMeasured* measured);
  Status MeasureProbes(std::span<const Probe> probes, RetentionMeasured* measured);
  // `window`: one text that may be longer than the context.
  Status MeasureStream(std::span<const TokenId> window, RetentionMeasured* measured);

 private:
  explicit RetentionComparison(Options options) : options_(std::move(options)) {}
  Status MeasureWindow(std::span<const TokenId> window, const RetentionMeasured& measured,
                       std::vector<RowFigures>* rows);
  Result<RightCount> Count(std::span<const std::vector<TokenId>> prompts,
                           std::span<const Probe> probes, const RetentionChoice& choice);

  Options options_;
  std::unique_ptr<Engine> exact_, bounded_;
};

// Returns how many tokens of a probe's prompt stand after the words that it asks for; 0: they do
// not stand in it.
Result<uint64_t> FactDistance(const Engine& engine, const Probe& probe, uint64_t prompt_tokens);

struct RetentionReport {
  std::string model, weights, kv_format, text;
  uint64_t tokens = 0, windows = 0, window_tokens = 0;
  std::vector<RetentionMeasured> measured;
};
std::string TablesOf(const RetentionReport& report);
nlohmann::ordered_json JsonOf(const RetentionReport& report);

}  // namespace kvasir::eval
