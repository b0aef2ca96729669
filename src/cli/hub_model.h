// Names of a hub on the command line.
#pragma once

#include <functional>
#include <string_view>

#include "hub/repo_ref.h"
#include "kvasir/engine.h"
#include "kvasir/status.h"

namespace kvasir::cli {

// Where options.model (or else KVASIR_MODEL) does not exist as a path and reads as
// owner/name[@revision][:file or quant]: finds it in the Hugging Face cache, and sets options.model
// and model_name. kNotFound: it is not there. Other names stay as they are.
Status FindInHubCache(EngineOptions* options);

// "1 file", "2 files".
std::string FileCount(size_t count);

// The owner/name that a command needs; kInvalidArgument says what is wrong with `text`.
Result<hub::RepoRef> RequireRepoRef(std::string_view text);

// Says on stderr, at once, that another process has the lock of `ref`.
std::function<void()> WaitNotice(const hub::RepoRef& ref);

}  // namespace kvasir::cli
