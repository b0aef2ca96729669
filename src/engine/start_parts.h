// What a start needs beside memory: the server secret, what the model is, and its image.
#pragma once

#include <memory>
#include <optional>

#include "base/secret.h"
#include "cache/identity.h"
#include "engine/assembly.h"
#include "import/file_watch.h"
#include "kvasir/engine.h"
#include "model/runner.h"
#include "text/tokenizer.h"

namespace kvasir {

struct ServerSecret {
  Secret secret;
  bool lasts;  // beyond this process
};

// The decision is in EngineOptions::state_dir.
Result<ServerSecret> SecretFor(const EngineOptions& options);

// Of the weights as they are computed with; remembered where the secret lasts.
Result<Digest> DigestFor(const Assembly& assembly, const ServerSecret& secret,
                         const EngineOptions& options);

// What decides a logit, but for the KV.
IdentityParts ContentParts(const ModelConfig& config, const Digest& weights,
                           const Tokenizer* tokenizer);
Identity IdentityFor(const Assembly& assembly, IdentityParts parts, const EngineOptions& options);

// Absent: nothing to keep (a shape's weights are made, not read), nowhere to keep it, or no secret
// that the next start would know it by.
std::optional<ImageOptions> ImagesFor(const Assembly& assembly, const Digest& weights,
                                      const ServerSecret& secret, const EngineOptions& options);

// Of all files that the model was read from, and its image.
std::unique_ptr<FileWatch> WatchFiles(const Runner& runner, const MemoryPlan& plan,
                                      const EngineOptions& options);

}  // namespace kvasir
