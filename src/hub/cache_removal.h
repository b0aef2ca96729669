// Removes models from the cache of hubs.
#pragma once

#include <cstdint>
#include <functional>

#include "hub/hub_cache.h"
#include "hub/repo_ref.h"
#include "kvasir/status.h"

namespace kvasir::hub {

struct Removed {
  size_t num_files = 0;      // links of snapshots
  uint64_t freed_bytes = 0;  // of blobs to which no snapshot has a link any more
};

// Removes the files that `ref` means: of one revision or of all, and of one model (its choice) or
// all. A blob goes with its last link; a snapshot and the refs that lead to it with its last file;
// the repository, with the beginnings of files that a pull left, with its last snapshot. Waits
// (`wait` is called before) while another program writes one of the blobs. kNotFound: the cache has
// no such model; the message says what it has.
Result<Removed> RemoveModel(const HubCache& cache, const RepoRef& ref,
                            const std::function<void()>& wait);

}  // namespace kvasir::hub
