#include "engine/start_parts.h"

#include "backend/weight_choice.h"
#include "base/result.h"
#include "base/secret.h"
#include "base/user_folders.h"
#include "engine/model_files.h"
#include "kvasir/machine.h"

namespace kvasir {

namespace {

Result<ServerSecret> SecretOfThisProcess(const EngineOptions& options, std::string why) {
  const std::optional<DiskOptions>& disk = options.disk;
  if (disk && disk->folder && disk->cap_bytes != 0u) {
    return FailField(Code::kInvalidArgument, "disk",
                     "{} cannot be used, because the secret that encrypts it cannot be stored: {}",
                     *disk->folder, why);
  }
  KV_ASSIGN(const Secret secret, EphemeralSecret());
  return ServerSecret{secret, false, std::move(why)};
}

// Logs one message for every feature that needs a persistent secret, so that a log has it once.
void WarnOfLoss(const ServerSecret& secret, const EngineOptions& options) {
  if (!options.warn) return;
  options.warn(fmt::format(
      "no cache on the disk and no model images are kept, because their secret cannot be stored: "
      "{}",
      secret.why_not));
}

}  // namespace

Result<ServerSecret> SecretFor(const EngineOptions& options) {
  if (options.secret_file) {
    KV_ASSIGN(const Secret given, ReadSecret(*options.secret_file));
    return ServerSecret{given, true};
  }
  const std::string state_dir = StateDir(options.state_dir).string();
  if (state_dir.empty()) {
    return SecretOfThisProcess(
        options, "this user has no home folder; set XDG_STATE_HOME or STATE_DIRECTORY");
  }
  const Result<Secret> secret = LoadOrCreateSecret(state_dir);
  if (secret) return ServerSecret{*secret, true};
  if (secret.error().code == Code::kIoError) {
    return SecretOfThisProcess(options, secret.error().message);
  }
  return tl::unexpected(secret.error());
}

Result<Digest> DigestFor(const Assembly& assembly, const ServerSecret& secret,
                         const EngineOptions& options) {
  const auto progress = [&](uint64_t done, uint64_t total) {
    if (options.progress && total > 0) {
      options.progress("digest of the weights",
                       static_cast<double>(done) / static_cast<double>(total));
    }
  };
  std::optional<DigestMemory> memory;
  const std::filesystem::path cache_dir = CacheDir(options.cache_dir);
  if (!cache_dir.empty() && secret.lasts) memory = {cache_dir, secret.secret};
  KV_ASSIGN(const Digest stored, WeightsDigest(assembly.model, memory, progress));
  return ChosenDigest(stored, assembly.runner.weights);
}

Result<Disk> DiskFor(const Assembly& assembly, const ServerSecret& secret, const Identity& identity,
                     const EngineOptions& options) {
  if (!assembly.disk) return Disk();
  const bool is_named = options.disk->folder.has_value();
  const auto without = [&](std::string_view why) {
    if (options.warn) {
      options.warn(fmt::format("disk: the cache ends with this process, because {}", why));
    }
    return Disk();
  };
  if (!secret.lasts) {
    WarnOfLoss(secret, options);
    return Disk();
  }
  DiskTierOptions tier = *assembly.disk;
  if (tier.folder.empty()) return without("there is no cache folder; name one with --disk DIR");
  tier.secret = secret.secret;
  tier.identity = identity;
  tier.needs_durable = !is_named;
  Disk disk{std::make_unique<RealStorage>(), nullptr};
  auto opened = DiskTier::Open(tier, *disk.storage);
  if (!opened && is_named) {
    return FailField(Code::kInvalidArgument, "disk", "{}", opened.error().message);
  }
  if (!opened) return without(opened.error().message);
  disk.tier = std::move(*opened);
  return disk;
}

Result<Tiers> TiersFor(const Assembly& assembly, const ServerSecret& secret,
                       const Identity& identity, const EngineOptions& options) {
  Tiers tiers;
  const std::optional<RemoteTierOptions>& wanted = assembly.remote;
  KV_ASSIGN(tiers.disk,
            DiskFor(assembly, secret, wanted ? FleetIdentity(wanted->fleet, identity) : identity,
                    options));
  if (!wanted) return tiers;
  RemoteTierOptions remote = *wanted;
  remote.identity = identity;
  // Epochs lie beside what they speak of.
  if (tiers.disk.tier) {
    remote.has_disk = true;
    remote.epochs = tiers.disk.tier->store_folder() + "/epochs";
    remote.owners = tiers.disk.tier->Owners();
  } else if (const std::string state = StateDir(options.state_dir).string(); !state.empty()) {
    remote.epochs = state + "/fleet";
  }
  KV_ASSIGN(tiers.remote, RemoteTier::Open(remote));
  if (tiers.disk.tier) {
    tiers.pair = std::make_unique<TierPair>(*tiers.disk.tier, *tiers.remote);
  }
  return tiers;
}

IdentityParts ContentParts(const ModelConfig& config, const Digest& weights,
                           const Tokenizer* tokenizer) {
  IdentityParts parts;
  parts.weights = weights;
  parts.config = CanonicalText(config);
  if (tokenizer != nullptr) parts.tokenizer = tokenizer->digest();
  parts.numerics = kNumericsVersion;
  return parts;
}

namespace {

// How numbers lie in a block. Bytes on a disk outlive the build that wrote them: a change to
// where a number lies needs another name here.
constexpr const char* kLayoutVersion = "layout-1";

// Writes "full", "full:4/2 window(512):22/11", "full:12/1 cross:12/1": the kinds of layer groups;
// where not all layers are full, the layers and groups of each kind.
std::string GroupsText(const KvLayout& layout) {
  if (layout.num_full_groups() == layout.num_groups()) return "full";
  std::string text;
  for (const KvKind& kind : layout.kinds()) {
    size_t layers = 0;
    for (uint32_t i = 0; i < kind.num_groups; ++i) {
      layers += layout.group(kind.first_group + i).layers.size();
    }
    const uint32_t window = kind.reach.window;
    const char* name = kind.reach.kind == KvReach::Kind::kCross ? "cross" : "full";
    text += window == 0 ? fmt::format("{}:{}/{} ", name, layers, kind.num_groups)
                        : fmt::format("window({}):{}/{} ", window, layers, kind.num_groups);
  }
  text.pop_back();
  return text;
}

}  // namespace

Identity IdentityFor(IdentityParts content, const MemoryPlan& plan, const KvLayout& layout) {
  content.kv_format = plan.kv_format;
  content.layout = fmt::format("{} {} block_tokens {} tile {}", kLayoutVersion, GroupsText(layout),
                               layout.block_tokens(), kRunTokens);
  return IdentityOf(content);
}

Identity IdentityWith(IdentityParts content, const Digest& adapters, bool is_long,
                      const MemoryPlan& plan, const KvLayout& layout) {
  content.adapter = adapters;
  if (is_long) content.config += " rope=long";
  return IdentityFor(std::move(content), plan, layout);
}

std::optional<ImageOptions> ImagesFor(const Assembly& assembly, const Digest& weights,
                                      const ServerSecret& secret, const EngineOptions& options) {
  const std::filesystem::path cache_dir = CacheDir(options.cache_dir);
  if (assembly.model.mapped_files.empty() || cache_dir.empty() || options.image_cap_bytes == 0) {
    return std::nullopt;
  }
  if (!secret.lasts) {
    WarnOfLoss(secret, options);
    return std::nullopt;
  }
  return ImageOptions{ImageFolder(cache_dir), options.image_cap_bytes, secret.secret, weights,
                      options.warn};
}

std::unique_ptr<FileWatch> WatchFiles(const Runner& runner, const Runner* draft,
                                      const MemoryPlan& plan, const EngineOptions& options) {
  auto watch = std::make_unique<FileWatch>();
  const bool in_place = plan.mapped_bytes > 0;
  for (const Runner* one : {&runner, draft}) {
    if (one == nullptr) continue;
    for (const auto& file : one->source().mapped_files) {
      watch->Add(file, FileWatch::Path::kMustStay,
                 in_place ? FileWatch::Reads::kInEachStep : FileWatch::Reads::kWhileLoading);
    }
    if (one->image() != nullptr) {
      watch->Add(one->image(), FileWatch::Path::kMayGo, FileWatch::Reads::kInEachStep);
    }
  }
  watch->set_on_change(options.on_model_change);
  return watch;
}

}  // namespace kvasir
