// CachedModel: what the cache of hubs holds.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "hub/hub_cache.h"

namespace kvasir::hub {

// One model of a snapshot (FileChoice).
struct CachedModel {
  std::string repo;
  std::string commit;
  std::vector<std::string> refs;  // the branches and tags that lead to the commit, in order
  std::string label;              // FileChoice::label
  std::filesystem::path path;     // for --model
  uint64_t bytes = 0;             // of its files, which models may share
  size_t files = 0, parts = 1;    // of a split GGUF file; fewer files than parts: some are missing
  std::vector<std::string> missing;  // FileChoice::missing
};

// Lists in order of repository and commit. Skips what Kvasir cannot run, such as data sets and
// models without safetensors and GGUF files. O(files of the cache).
std::vector<CachedModel> ListCache(const HubCache& cache);

// The branches and tags of `repo` and the commits that they lead to.
struct CachedRef {
  std::string name, commit;
};
std::vector<CachedRef> RefsOf(const HubCache& cache, std::string_view repo);

// Returns the names of the folders in `folder`, in order; none where it cannot be read.
std::vector<std::string> FoldersIn(const std::filesystem::path& folder);

}  // namespace kvasir::hub
