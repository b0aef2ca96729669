#include "base/secret_place.h"

#include <filesystem>

#include "base/result.h"
#include "base/user_folders.h"

namespace kvasir {

Result<Secret> SecretAt(const SecretPlace& place) {
  if (place.file) return ReadSecret(*place.file);
  const std::filesystem::path state = StateDir(place.state_dir);
  std::error_code error;
  if (state.empty() || !std::filesystem::exists(state / "secret", error)) {
    return Fail(Code::kNotFound,
                "the state folder {} has no secret, so nothing that is kept is readable",
                state.string());
  }
  return LoadOrCreateSecret(state.string());
}

}  // namespace kvasir
