// Names of a hub on the command line.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "hub/pull.h"
#include "hub/repo_ref.h"
#include "kvasir/engine_options.h"
#include "kvasir/status.h"

namespace kvasir::cli {

// Use that a command makes of a model: a plan needs no weights.
enum class ModelUse : uint8_t { kRun, kPlan };

// Finds, where options.model (or else KVASIR_MODEL) does not exist as a path and reads as
// owner/name[@revision][:file or quant]: finds it in the Hugging Face cache, and sets options.model
// and model_name. kNotFound: it is not there, or weights that `use` needs are not. Other names stay
// as they are.
Status FindInHubCache(ModelUse use, EngineOptions* options);

// Finds owner/name[@revision][:file or quant] in the Hugging Face cache, or fetches it with
// PullModel where that does not hold all of it; sets options.model and model_name. Errors have the
// field "hf-repo".
Status FetchModel(const std::string& name, EngineOptions* options);

// Pulls the model as the environment says, with progress on a terminal. Errors as hub::Pull's.
Result<hub::PulledModel> PullModel(const hub::RepoRef& ref);

// Returns "1 file", "2 files".
std::string FileCount(size_t count);

// Returns the owner/name that a command needs; kInvalidArgument says what is wrong with `text`.
Result<hub::RepoRef> RequireRepoRef(std::string_view text);

// Says on stderr, at once, that another process has the lock of `ref`.
std::function<void()> WaitNotice(const hub::RepoRef& ref);

}  // namespace kvasir::cli
