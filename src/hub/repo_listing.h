// RepoListing: the files of a model, as a hub lists them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kvasir/status.h"

namespace kvasir::hub {

struct HubFile {
  std::string name;
  uint64_t size_bytes = 0;
  std::string blob;  // 64 hexadecimal digits: its SHA-256. 40: its git SHA-1
};

// The files of one commit. Every name is safe (IsSafeFile) and there once.
struct RepoListing {
  std::string commit;
  std::vector<HubFile> files;

  std::vector<std::string> Names() const;
};

// Reads the hub's answer to /api/models/REPO/revision/REVISION?blobs=true. kCorruption: it is not
// such an answer, or has a name that is not safe; the message says which.
Result<RepoListing> ParseListing(std::string_view json);

}  // namespace kvasir::hub
