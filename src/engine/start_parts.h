// The parts of a start beside memory: the server secret, the model's identity, and its image.
#pragma once

#include <memory>
#include <optional>

#include "base/secret.h"
#include "cache/identity.h"
#include "engine/assembly.h"
#include "import/file_watch.h"
#include "kvasir/engine_options.h"
#include "kvasir/plan.h"
#include "model/runner.h"
#include "remote/remote_tier.h"
#include "text/tokenizer.h"
#include "tier/disk_tier.h"
#include "tier/tier_pair.h"

namespace kvasir {

struct ServerSecret {
  Secret secret;
  bool lasts;                // stored, so later processes have it too
  std::string why_not = {};  // it does not last
};

// Reads or makes the secret by the rules at EngineOptions::state_dir and secret_file.
// kInvalidArgument: options.disk names a folder, and the secret that it would be encrypted under
// cannot be stored.
Result<ServerSecret> SecretFor(const EngineOptions& options);

// Returns the digest of the weights in the format that computes; remembered if the secret is
// stored.
Result<Digest> DigestFor(const Assembly& assembly, const ServerSecret& secret,
                         const EngineOptions& options);

// The disk tier and the files below it.
struct Disk {
  std::unique_ptr<Storage> storage;
  std::unique_ptr<DiskTier> tier;  // nullptr: there is none
};

// The cache's tiers.
struct Tiers {
  Disk disk;
  std::unique_ptr<RemoteTier> remote;  // nullptr: --remote is not given
  std::unique_ptr<TierPair> pair;      // of the two, where both are there

  // Returns what the cache sees; nullptr: neither disk nor remote.
  Tier* seen() const {
    if (pair) return pair.get();
    return remote ? static_cast<Tier*>(remote.get()) : disk.tier.get();
  }
};
// Opens the tiers that are wanted. A store that is down is not an error.
Result<Tiers> TiersFor(const Assembly& assembly, const ServerSecret& secret,
                       const Identity& identity, const EngineOptions& options);
// Opens the disk tier. An error where options.disk names a folder that cannot be used; a warning
// where it is the default one.
Result<Disk> DiskFor(const Assembly& assembly, const ServerSecret& secret, const Identity& identity,
                     const EngineOptions& options);

// Returns the parts of the Identity that decide a logit, without the KV.
IdentityParts ContentParts(const ModelConfig& config, const Digest& weights,
                           const Tokenizer* tokenizer);
Identity IdentityFor(IdentityParts content, const MemoryPlan& plan, const KvLayout& layout);
// Returns the same of KV that is computed with adapters of this digest (zero: without), or rotated
// by the long factors of RoPE longrope.
Identity IdentityWith(IdentityParts content, const Digest& adapters, bool is_long,
                      const MemoryPlan& plan, const KvLayout& layout);

// Absent when there is nothing to keep (a shape's weights are generated), no folder, or no stored
// secret that the next start could verify the image with.
std::optional<ImageOptions> ImagesFor(const Assembly& assembly, const Digest& weights,
                                      const ServerSecret& secret, const EngineOptions& options);

// Watches all files that the model was read from, and its image; those of the draft model too.
// `draft`: nullptr without one.
std::unique_ptr<FileWatch> WatchFiles(const Runner& runner, const Runner* draft,
                                      const MemoryPlan& plan, const EngineOptions& options);

}  // namespace kvasir
