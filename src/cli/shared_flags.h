// Flags that several commands take.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

#include "cli/args.h"

namespace kvasir::cli {

// Returns the flag as one that only --help-expert shows.
Flag Expert(Flag flag);

// Returns the flags of commands about a model: which, its weights and KV format, threads, the log.
std::vector<Flag> ModelFlags();
// Returns the flags of commands that look into the cache folder: --cache-dir.
std::vector<Flag> CacheDirFlags();
// Returns the flags of commands that load a model: all of these, where its threads run, and the
// size of its images.
std::vector<Flag> LoadFlags();
// Returns the flags of commands that have a cache: --kv-memory, --ctx-size, --parallel, --cache,
// --eviction and more.
std::vector<Flag> CacheFlags();
// Returns the values of --eviction for help: "lru (default: used longest ago), s3fifo (used once)".
std::string EvictionChoicesText();
// Returns the flags of commands that may fetch their model first: --hf-repo.
std::vector<Flag> FetchFlags();
// Returns the flags of servers: which requests run, and which wait.
std::vector<Flag> SchedulingFlags();
std::vector<Flag> QueueFlags();
// Returns the flags of servers and their plans: memory beside the cache.
std::vector<Flag> RequestFlags();
// --disk and its limits. A server keeps its cache in the cache folder where no flag names another;
// a command of one prompt keeps it only where a folder is named.
enum class DiskDefault : uint8_t { kNone, kCacheFolder };
std::vector<Flag> DiskFlags(DiskDefault otherwise);
// --remote and what belongs to it.
std::vector<Flag> RemoteFlags();
// Returns the flags that run and chat have in common: template, sampling, the model, its cache and
// disk.
std::vector<Flag> AnswerFlags();
// Returns the flags of parts that do not exist yet; each is refused with the part's name.
std::vector<Flag> AbsentFlags();

std::vector<Flag> Join(std::initializer_list<std::vector<Flag>> lists);

}  // namespace kvasir::cli
