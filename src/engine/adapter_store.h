// AdapterStore: the adapters of an engine that are loaded, by id and name.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/byte_budget.h"
#include "base/mutex.h"
#include "import/importer.h"
#include "import/lora.h"
#include "kvasir/adapters.h"
#include "kvasir/engine_options.h"
#include "kvasir/status.h"
#include "schedule/adapter_set.h"

namespace kvasir {

// Opens the adapters of a start and checks their limits. Errors as OpenLora and AddAdapters, with
// the field `lora`. O(tensors).
Result<std::vector<LoraAdapter>> OpenAdapters(const AdapterOptions& options,
                                              const ImportedModel& model);
// Returns the limit of the memory of all adapters. `opened`: those of the start.
uint64_t AdapterBudget(const AdapterOptions& options, std::span<const LoraAdapter> opened);
// Returns what a start allocates beside that while it reads their numbers.
uint64_t AdapterLoadBytes(std::span<const LoraAdapter> opened);
// Tells whether a start may have these adapters, with the errors of AddAdapters: a plan packs none.
Status CheckAdapters(const AdapterOptions& options, std::span<const LoraAdapter> opened,
                     const std::string& model_name);
// Reads all numbers and keeps none. Errors as AddAdapters. O(bytes).
Status CheckNumbers(std::span<const LoraAdapter> opened);
// Return how many Identities an owner's KV may have, and how many namespaces there are. `is_long`:
// RoPE longrope has two Identities for each list of adapters.
uint32_t IdentitiesFor(const EngineOptions& options, bool is_long);
uint32_t NamespacesFor(const EngineOptions& options, bool is_long);

// Its budget counts adapters that are loaded, and those that were unloaded while requests have
// them. A call that fails changes nothing. Thread-safe; must outlive the sets that it made.
class AdapterStore {
 public:
  // Returns the Identity of KV that is computed with adapters of this digest (AdapterSet::digest).
  using Identify = std::function<Identity(const Digest& adapters, bool is_long)>;
  enum class Names { kMustBeNew, kMayReplace };
  enum class Packing { kPacks, kOnlyCounts };  // kOnlyCounts: no request may have the adapter

  // `model_names`: ids that no adapter may have.
  AdapterStore(const AdapterOptions& options, ModelConfig config, uint64_t budget_bytes,
               std::vector<std::string> model_names, Identify identify);

  // Reads and packs an adapter. kMayReplace: one of this name goes, and its id is the new one's.
  // Errors as OpenLora and ReadLoraNumbers; kInvalidArgument for a name that is taken, a rank,
  // number or size beyond the limits, before a number is read. O(bytes), on the calling thread.
  Result<AdapterCard> Load(const AdapterSource& source, Names names);
  // Reads and packs an adapter that was opened already. Errors as Load.
  Result<AdapterCard> Add(const AdapterSource& source, const LoraAdapter& adapter, Names names,
                          Packing packing = Packing::kPacks);
  // Removes an adapter. Requests that were submitted before keep it. kNotFound: no adapter has this
  // name.
  Status Unload(std::string_view name);
  // Sets the scales of requests that say nothing of adapters; those of others become 0. Errors as
  // SetFor's.
  Status SetScales(std::span<const AdapterChoice> choices);
  std::vector<AdapterCard> Cards() const;  // by id

  // Returns what a request is computed with: its choices, or the adapters whose scale is not 0.
  // nullptr: none. kInvalidArgument, with the field `lora`, for an id that is not loaded or occurs
  // twice, or a scale that is beyond kMaxAdapterScale or not finite.
  Result<std::shared_ptr<const AdapterSet>> SetFor(
      const std::optional<std::vector<AdapterChoice>>& choices) const;

  uint64_t budget_bytes() const { return budget_.max_bytes(); }

 private:
  struct Loaded {
    AdapterCard card;
    std::shared_ptr<const PackedAdapter> packed;
    std::shared_ptr<AdapterUses> uses = std::make_shared<AdapterUses>();
  };
  using ById = std::map<uint64_t, Loaded>;

  static Status CheckName(const AdapterSource& source);
  std::string NameFor(const AdapterSource& source) const KV_REQUIRES(mutex_);
  bool IsTaken(const std::string& name) const KV_REQUIRES(mutex_);
  Status CheckLimits(const AdapterSource& source, const LoraAdapter& adapter) const;
  Result<std::optional<uint64_t>> Replaced(const std::string& name, Names names) const
      KV_REQUIRES(mutex_);
  Status CheckChoices(std::span<const AdapterChoice> choices) const KV_REQUIRES(mutex_);
  std::string Ids() const KV_REQUIRES(mutex_);

  const AdapterOptions options_;
  const ModelConfig config_;
  const std::vector<std::string> model_names_;
  const Identify identify_;
  mutable ByteBudget budget_;
  mutable Mutex mutex_;
  ById loaded_ KV_GUARDED_BY(mutex_);
  uint64_t next_id_ KV_GUARDED_BY(mutex_) = 0;
};

// Adds the adapters of a start. Errors as AdapterStore::Add, with the field `lora`.
Status AddAdapters(const AdapterOptions& options, std::span<const LoraAdapter> opened,
                   AdapterStore& store,
                   AdapterStore::Packing packing = AdapterStore::Packing::kPacks);

}  // namespace kvasir
