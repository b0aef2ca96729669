// kvasir eval --spans: what spans cost this model.
#include "cli/eval_spans.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/result.h"
#include "cli/engine_flags.h"
#include "cli/interrupt.h"
#include "cli/progress.h"
#include "eval/span_quality.h"

namespace kvasir::cli {

Flag EvalSpansFlag() {
  return {
      "spans", "0,8,32",
      "instead of formats: the notes of the probes are four spans, with seams of so many tokens; "
      "right answers and KL beside the same prompts without spans"};
}

Result<int> RunEvalSpans(const Args& args) {
  for (const char* flag : {"formats", "text", "ids", "layers", "svg", "retention", "stream"}) {
    if (!args.Has(flag)) continue;
    return Fail(Code::kInvalidArgument, "--spans: measures probes and nothing else; leave out --{}",
                flag);
  }
  KV_ASSIGN(const EngineOptions options, EngineOptionsOf(args));
  KV_ASSIGN(const std::vector<uint64_t> asked, args.UintList("spans", 0, kMaxSeamTokens, {}));
  const std::vector<uint32_t> seams(asked.begin(), asked.end());
  ExitOnInterrupt();
  KV_ASSIGN(const std::unique_ptr<Engine> engine, LoadEngine(options));
  if (!engine->card().no_spans.empty()) {
    return Fail(Code::kInvalidArgument, "--spans: {}", engine->card().no_spans);
  }
  const std::string file = args.Text("recall").value_or(
      (std::filesystem::path(engine->card().path) / "eval.jsonl").string());
  KV_ASSIGN(const std::vector<eval::Probe> probes, eval::ReadProbes(file));
  Progress progress;
  KV_ASSIGN(const std::vector<eval::SpanQuality> rows,
            eval::MeasureSpans(*engine, probes, seams,
                               [&](const std::string& line) { progress.Show(line); }));
  progress.Clear();
  if (!args.Has("json")) {
    fmt::print("{}", eval::TableOf(rows));
    return kExitDone;
  }
  const nlohmann::ordered_json json = {{"model", engine->card().id},
                                       {"weights", engine->card().dtype},
                                       {"kv_format", engine->plan().kv_format},
                                       {"spans", eval::JsonOf(rows)}};
  fmt::print("{}\n", json.dump(2));
  return kExitDone;
}

}  // namespace kvasir::cli
