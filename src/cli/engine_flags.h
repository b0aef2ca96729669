// Flags that several commands take, and the EngineOptions made from them.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/args.h"
#include "cli/hub_model.h"
#include "kvasir/engine.h"
#include "server/server.h"

namespace kvasir::cli {

// Of commands about a model: which, its weights and KV format, threads, the log.
std::vector<Flag> ModelFlags();
// --cache-dir: of commands that look into that folder.
std::vector<Flag> CacheDirFlags();
// Of commands that load a model: all of these, where its threads run, and what may be kept in the
// folder.
std::vector<Flag> LoadFlags();
// --kv-memory, --ctx-size, --parallel, --cache, --eviction, --block-tokens: for commands that have
// a cache.
std::vector<Flag> CacheFlags();
std::vector<Flag> QueueFlags();  // of requests that wait
// --hf-repo: of commands that may fetch their model first.
std::vector<Flag> FetchFlags();
// --request-memory: for commands about a server.
std::vector<Flag> SchedulingFlags();
std::vector<Flag> RequestFlags();
// --temperature, --top-k, ..., --stop: for commands that generate.
std::vector<Flag> SamplingFlags();
// Those of a server: what they say holds for requests that do not say otherwise.
std::vector<Flag> DefaultFlags();
Result<RequestDefaults> ReadDefaults(const Args& args);
// --disk and its limits. A server keeps its cache in the cache folder where no flag names another;
// a command of one prompt keeps it only where a folder is named.
enum class DiskDefault : uint8_t { kNone, kCacheFolder };
std::vector<Flag> DiskFlags(DiskDefault otherwise);
// A line that says what of the disk's cap cannot be used, because blocks on it are at most 2^18;
// empty where all of it can.
std::string UnusableCapLine(std::string_view begin, uint64_t cap_bytes, const MemoryPlan& plan);
// What run and chat have in common: template, sampling, the model, its cache and disk.
std::vector<Flag> AnswerFlags();
// Flags of parts that do not exist yet; each is refused with the part's name.
std::vector<Flag> AbsentFlags();

std::vector<Flag> Join(std::initializer_list<std::vector<Flag>> lists);

// Absent too where it is empty.
std::optional<std::string> CacheDirOf(const Args& args);
// Reads the given flags of those above and sets the log's level. Also checks KVASIR_TARGET. What
// the library warns of goes to the log, each sentence once.
Result<EngineOptions> EngineOptionsOf(const Args& args,
                                      DiskDefault disk_otherwise = DiskDefault::kNone,
                                      ModelUse use = ModelUse::kRun);
// Reads sampling, stop strings and max_tokens of a request. The default temperature is 0, so that
// the same command line gives the same answer again.
Status ReadSampling(const Args& args, GenerateRequest& request);
// What the model's makers say of sampling, where no flag does.
void TakeDefaults(const Args& args, const SamplingDefaults& defaults, SamplingParams& sampling);
// --generation-config: of commands that sample.
std::vector<Flag> GenerationConfigFlags();
// Comma-separated ids, in order, as given. Errors name the flag.
Result<std::vector<TokenId>> ParseIds(const std::string& text, const std::string& flag = "ids");

// Engine::Load with progress on a terminal, after more than a second.
Result<std::unique_ptr<Engine>> LoadEngine(EngineOptions options);

}  // namespace kvasir::cli
