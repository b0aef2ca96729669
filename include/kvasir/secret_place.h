// SecretPlace: where the server secret lies.
#pragma once

#include <optional>
#include <string>

namespace kvasir {

// The folder and the file that a user names for the secret.
struct SecretPlace {
  std::optional<std::string> state_dir;  // EngineOptions::state_dir
  std::optional<std::string> file;       // EngineOptions::secret_file
};

}  // namespace kvasir
