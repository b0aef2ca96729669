// The flags of kvasir eval that say what is measured.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/args.h"
#include "eval/measure.h"
#include "kvasir/engine.h"

namespace kvasir::cli {

// What one run of the command compares.
struct EvalOptions {
  std::vector<eval::KvChoice> choices;
  std::optional<std::string> text, ids;       // at most one of them
  std::optional<std::string> source, target;  // languages of the lines of text, and of answers
  std::optional<TokenId> target_id;           // of answers to sources of ids
  uint64_t tokens = 0;
  std::optional<std::string> recall;  // a file, or "off"
  std::optional<bool> layers;         // absent: only for small models
  double max_kl = 0;
  std::optional<std::string> svg;
};

// Reads and checks the flags. `engine`: what other flags say of it. An error names the flag.
Result<EvalOptions> ReadEvalOptions(const Args& args, const EngineOptions& engine);

}  // namespace kvasir::cli
