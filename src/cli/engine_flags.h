// EngineOptions, and the engine, made from the flags of a command.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "cli/args.h"
#include "cli/hub_model.h"
#include "cli/shared_flags.h"
#include "kvasir/engine.h"

namespace kvasir::cli {
// Reads the flags of LoadFlags, CacheFlags, DiskFlags and those of servers that are given, and sets
// the log's level. Also checks KVASIR_TARGET. Warnings of the library go to the log, each sentence
// once.
Result<EngineOptions> EngineOptionsOf(const Args& args,
                                      DiskDefault disk_otherwise = DiskDefault::kNone,
                                      ModelUse use = ModelUse::kRun);

// Returns the flag --exact-tokens of commands of one prompt, and what it makes of the engine's
// retention; absent: it was not given.
Flag ExactTokensFlag();
Result<std::optional<RetentionChoice>> ExactTokensOf(const Args& args,
                                                     const EngineOptions& options);

// Says how much of the disk's cap cannot be used, because at most 2^18 blocks are kept; empty where
// all of it can.
std::string UnusableCapLine(std::string_view begin, uint64_t cap_bytes, const MemoryPlan& plan);

// Calls Engine::Load, and shows progress on a terminal after more than a second.
Result<std::unique_ptr<Engine>> LoadEngine(EngineOptions options);

}  // namespace kvasir::cli
