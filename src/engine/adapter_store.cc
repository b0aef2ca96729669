#include "engine/adapter_store.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <utility>

#include "base/hex.h"
#include "base/result.h"
#include "base/sizes.h"

namespace kvasir {
namespace {

// The budget with --lora-dir and without --lora-memory.
constexpr uint64_t kLaterAdapterBytes = uint64_t{256} << 20;
constexpr size_t kMostNameBytes = 256;
constexpr std::string_view kAnyModel = "default";  // the model, whatever its name, in requests
// Ids of namespaces have 16 bits. Beyond these, owners share what is left.
constexpr uint32_t kMostNamespaces = 65'000;

// Takes the memory of a packed adapter, until the last owner is gone.
Result<std::shared_ptr<ByteShare>> TakeShare(ByteBudget& budget, const LoraAdapter& adapter) {
  const uint64_t bytes = PackedAdapter::BytesFor(adapter);
  if (!budget.Take(bytes)) {
    if (bytes > budget.max_bytes()) {
      return Fail(Code::kInvalidArgument,
                  "the adapter takes {} bytes, more than the {} of --lora-memory; give it at least "
                  "so many",
                  bytes, budget.max_bytes());
    }
    return Fail(Code::kInvalidArgument,
                "the adapter takes {} bytes, and {} of the {} of --lora-memory are taken; unload "
                "another one, or give more",
                bytes, budget.taken_bytes(), budget.max_bytes());
  }
  return std::make_shared<ByteShare>(budget, bytes);
}

// Packs an adapter. Its memory is counted before a number is read, until the last owner is gone.
Result<std::shared_ptr<const PackedAdapter>> PackWithin(ByteBudget& budget,
                                                        const LoraAdapter& adapter,
                                                        uint32_t num_layers,
                                                        AdapterStore::Packing packing) {
  KV_ASSIGN(std::shared_ptr<ByteShare> share, TakeShare(budget, adapter));
  if (packing == AdapterStore::Packing::kOnlyCounts) {
    return std::shared_ptr<const PackedAdapter>(share, nullptr);
  }
  KV_ASSIGN(std::shared_ptr<const PackedAdapter> packed,
            PackedAdapter::Create(adapter, num_layers));
  const PackedAdapter* const raw = packed.get();
  return std::shared_ptr<const PackedAdapter>(raw, [packed, share](const PackedAdapter*) mutable {
    packed.reset();
    share.reset();
  });
}

Result<LoraAdapter> OpenSource(const AdapterSource& source, const ModelConfig& config) {
  constexpr uint32_t kSyntheticRank = 8;
  if (source.seed) return SyntheticLora(config, kSyntheticRank, *source.seed);
  return OpenLora(source.path, config);
}

// Says that an error is about an adapter of the start.
tl::unexpected<Error> OfStart(Error error) {
  error.field = "lora";
  return tl::unexpected(std::move(error));
}

Digest ListDigest(const std::vector<AppliedAdapter>& applied) {
  Sha256 sha;
  sha.Update("kvasir adapters 1\n").UpdateU64(applied.size());
  for (const AppliedAdapter& one : applied) sha.Update(std::as_bytes(std::span(one.digest)));
  return sha.Finish();
}

}  // namespace

Result<std::vector<LoraAdapter>> OpenAdapters(const AdapterOptions& options,
                                              const ImportedModel& model) {
  std::vector<LoraAdapter> adapters;
  for (const AdapterSource& source : options.load) {
    auto adapter = OpenSource(source, model.config);
    if (!adapter) return OfStart(adapter.error());
    adapters.push_back(std::move(*adapter));
  }
  KV_TRY(CheckAdapters(options, adapters, model.name));
  return adapters;
}

uint64_t AdapterBudget(const AdapterOptions& options, std::span<const LoraAdapter> opened) {
  if (!options.any()) return 0;
  if (options.memory_bytes) return *options.memory_bytes;
  uint64_t bytes = 0;
  for (const LoraAdapter& adapter : opened) bytes += PackedAdapter::BytesFor(adapter);
  return options.loads_later ? std::max(bytes, kLaterAdapterBytes) : bytes;
}

uint64_t AdapterLoadBytes(std::span<const LoraAdapter> opened) {
  uint64_t bytes = 0;  // one is read after the other
  for (const LoraAdapter& adapter : opened) bytes = std::max(bytes, LoraRowBytes(adapter));
  return bytes;
}

Status AddAdapters(const AdapterOptions& options, std::span<const LoraAdapter> opened,
                   AdapterStore& store, AdapterStore::Packing packing) {
  for (size_t i = 0; i < options.load.size(); ++i) {
    const auto card =
        store.Add(options.load[i], opened[i], AdapterStore::Names::kMustBeNew, packing);
    if (!card) return OfStart(card.error());
  }
  return {};
}

Status CheckNumbers(std::span<const LoraAdapter> opened) {
  for (const LoraAdapter& adapter : opened) {
    const auto read = ReadLoraNumbers(adapter, [](auto&&...) {});
    if (!read) return OfStart(read.error());
  }
  return {};
}

Status CheckAdapters(const AdapterOptions& options, std::span<const LoraAdapter> opened,
                     const std::string& model_name) {
  AdapterStore store(options, {}, AdapterBudget(options, opened), {model_name}, {});
  return AddAdapters(options, opened, store, AdapterStore::Packing::kOnlyCounts);
}

uint32_t IdentitiesFor(const EngineOptions& options, bool is_long) {
  const uint32_t lists = options.adapters.any() ? options.adapters.max_loaded + 1 : 1;
  return lists * (is_long ? 2 : 1);
}

uint32_t NamespacesFor(const EngineOptions& options, bool is_long) {
  return std::min(options.max_tenants * IdentitiesFor(options, is_long),
                  std::max(kMostNamespaces, options.max_tenants * (is_long ? 2 : 1)));
}

AdapterStore::AdapterStore(const AdapterOptions& options, ModelConfig config, uint64_t budget_bytes,
                           std::vector<std::string> model_names, Identify identify)
    : options_(options),
      config_(std::move(config)),
      model_names_(std::move(model_names)),
      identify_(std::move(identify)),
      budget_(budget_bytes) {}

// Returns the name that is given; or the end of the path, or all of it where others have its end.
std::string AdapterStore::NameFor(const AdapterSource& source) const {
  if (source.name) return *source.name;
  std::filesystem::path path = std::filesystem::path(source.path).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();
  const std::string end = (path.extension() == ".gguf" ? path.stem() : path.filename()).string();
  return IsTaken(end) ? source.path : end;
}

bool AdapterStore::IsTaken(const std::string& name) const {
  return std::ranges::find(model_names_, name) != model_names_.end() ||
         std::ranges::any_of(loaded_,
                             [&](const auto& entry) { return entry.second.card.name == name; });
}

Status AdapterStore::CheckName(const AdapterSource& source) {
  if (source.name == kAnyModel) {
    return FailField(Code::kInvalidArgument, "lora_name",
                     "the name '{}' is taken: it stands for the model; give another one",
                     kAnyModel);
  }
  if (source.name && (source.name->empty() || source.name->size() > kMostNameBytes)) {
    return FailField(Code::kInvalidArgument, "lora_name",
                     "the name has {} bytes; give one of 1 to {}", source.name->size(),
                     kMostNameBytes);
  }
  return {};
}

Status AdapterStore::CheckLimits(const AdapterSource& source, const LoraAdapter& adapter) const {
  if (adapter.max_rank() > options_.max_rank) {
    return Fail(Code::kInvalidArgument,
                "{}: its rank of {} is more than the {} of --max-lora-rank; give that more",
                source.path, adapter.max_rank(), options_.max_rank);
  }
  if (std::isfinite(source.scale) && std::abs(source.scale) <= kMaxAdapterScale) return {};
  return Fail(Code::kInvalidArgument, "{}: a scale of {} is not in [-{}, {}]", source.path,
              source.scale, kMaxAdapterScale, kMaxAdapterScale);
}

// Returns the id of the adapter whose place a new one of this name takes.
Result<std::optional<uint64_t>> AdapterStore::Replaced(const std::string& name, Names names) const {
  if (std::ranges::find(model_names_, name) != model_names_.end()) {
    return FailField(Code::kInvalidArgument, "lora_name",
                     "the name '{}' is taken by the model; give the adapter another one", name);
  }
  for (const auto& [id, loaded] : loaded_) {
    if (loaded.card.name != name) continue;
    if (names == Names::kMayReplace) return std::optional(id);
    return FailField(Code::kInvalidArgument, "lora_name",
                     "the name '{}' is taken by an adapter that is loaded; give another name, or "
                     "replace that one (load_inplace)",
                     name);
  }
  if (loaded_.size() < options_.max_loaded) return std::optional<uint64_t>();
  return Fail(Code::kInvalidArgument, "--max-loras allows {}, and so many are loaded; unload one",
              CountText(loaded_.size(), "adapter"));
}

Result<AdapterCard> AdapterStore::Load(const AdapterSource& source, Names names) {
  KV_TRY(CheckName(source));
  {
    const MutexLock lock(mutex_);  // so that a taken name costs no reading
    KV_TRY(Replaced(NameFor(source), names));
  }
  KV_ASSIGN(const LoraAdapter adapter, OpenSource(source, config_));
  return Add(source, adapter, names);
}

Result<AdapterCard> AdapterStore::Add(const AdapterSource& source, const LoraAdapter& adapter,
                                      Names names, Packing packing) {
  KV_TRY(CheckName(source));
  KV_TRY(CheckLimits(source, adapter));
  KV_ASSIGN(auto packed, PackWithin(budget_, adapter, config_.num_layers, packing));
  Loaded loaded{.card = {.path = source.path,
                         .is_model = source.name.has_value(),
                         .scale = source.scale,
                         .digest = packed ? ToHex(packed->DigestWith(1)) : "",
                         .rank = adapter.max_rank(),
                         .bytes = PackedAdapter::BytesFor(adapter)},
                .packed = std::move(packed)};
  const MutexLock lock(mutex_);
  loaded.card.name = NameFor(source);
  KV_ASSIGN(const std::optional<uint64_t> replaced, Replaced(loaded.card.name, names));
  loaded.card.id = replaced.value_or(next_id_);
  if (!replaced) {
    ++next_id_;
  } else {  // scale and figures are the name's, whatever has it
    const Loaded& old = loaded_.at(*replaced);
    loaded.card.scale = old.card.scale;
    loaded.card.is_model = loaded.card.is_model || old.card.is_model;
    loaded.uses = old.uses;
  }
  const AdapterCard card = loaded.card;
  loaded_.insert_or_assign(card.id, std::move(loaded));
  return card;
}

Status AdapterStore::Unload(std::string_view name) {
  const MutexLock lock(mutex_);
  const size_t gone =
      std::erase_if(loaded_, [&](const auto& entry) { return entry.second.card.name == name; });
  if (gone > 0) return {};
  return Fail(Code::kNotFound, "no adapter of the name '{}' is loaded", name);
}

std::vector<AdapterCard> AdapterStore::Cards() const {
  const MutexLock lock(mutex_);
  std::vector<AdapterCard> cards;
  for (const auto& [id, loaded] : loaded_) {
    cards.push_back(loaded.card);
    cards.back().waiting = loaded.uses->waiting.load(std::memory_order_relaxed);
    cards.back().running = loaded.uses->running.load(std::memory_order_relaxed);
  }
  return cards;
}

// Returns the ids that are loaded, as a text.
std::string AdapterStore::Ids() const {
  std::string ids;
  for (const auto& [id, loaded] : loaded_) ids += (ids.empty() ? "" : ", ") + std::to_string(id);
  return ids.empty() ? "none" : ids;
}

Status AdapterStore::CheckChoices(std::span<const AdapterChoice> choices) const {
  for (size_t i = 0; i < choices.size(); ++i) {
    const AdapterChoice& choice = choices[i];
    if (!loaded_.contains(choice.id)) {
      return FailField(Code::kInvalidArgument, "lora",
                       "no adapter with the id {} is loaded (loaded: {})", choice.id, Ids());
    }
    for (size_t j = 0; j < i; ++j) {
      if (choices[j].id != choice.id) continue;
      return FailField(Code::kInvalidArgument, "lora", "the id {} occurs twice", choice.id);
    }
    if (std::isfinite(choice.scale) && std::abs(choice.scale) <= kMaxAdapterScale) continue;
    return FailField(Code::kInvalidArgument, "lora", "the scale {} of id {} is not in [-{}, {}]",
                     choice.scale, choice.id, kMaxAdapterScale, kMaxAdapterScale);
  }
  return {};
}

Status AdapterStore::SetScales(std::span<const AdapterChoice> choices) {
  const MutexLock lock(mutex_);
  KV_TRY(CheckChoices(choices));
  for (auto& [id, loaded] : loaded_) loaded.card.scale = 0;
  for (const AdapterChoice& choice : choices) loaded_.at(choice.id).card.scale = choice.scale;
  return {};
}

Result<std::shared_ptr<const AdapterSet>> AdapterStore::SetFor(
    const std::optional<std::vector<AdapterChoice>>& choices) const {
  auto set = std::make_shared<AdapterSet>();
  {
    const MutexLock lock(mutex_);
    std::vector<AdapterChoice> chosen;
    if (choices) {
      KV_TRY(CheckChoices(*choices));
      chosen = *choices;
    } else {
      for (const auto& [id, loaded] : loaded_) chosen.push_back({id, loaded.card.scale});
    }
    for (const AdapterChoice& choice : chosen) {
      if (choice.scale == 0) continue;
      const Loaded& loaded = loaded_.at(choice.id);
      set->applied.push_back(
          {loaded.packed.get(), choice.scale, loaded.packed->DigestWith(choice.scale)});
      set->held.push_back(loaded.packed);
      set->choices.push_back(choice);
      set->uses.push_back(loaded.uses);
      set->used.push_back({loaded.card.name, choice.scale, loaded.card.digest});
    }
  }
  if (set->applied.empty()) return nullptr;
  std::ranges::sort(set->applied, {}, &AppliedAdapter::digest);
  set->digest = ListDigest(set->applied);
  set->identity = identify_(set->digest, false);
  set->long_identity = identify_(set->digest, true);
  return set;
}

}  // namespace kvasir
