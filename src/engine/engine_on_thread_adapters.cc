// What EngineOnThread does with adapters: loading, and those of a request.
#include "base/hex.h"
#include "engine/engine_on_thread.h"

namespace kvasir {
namespace {

tl::unexpected<Error> NoRoomForAdapters() {
  return Fail(Code::kUnsupported,
              "this engine was started without room for adapters; start it with --lora or "
              "--lora-dir");
}

tl::unexpected<Error> ReplacedMeanwhile() {
  return Fail(Code::kUnavailable, "an adapter of the request was replaced meanwhile; try again");
}

}  // namespace

Result<AdapterCard> EngineOnThread::LoadAdapter(const AdapterSource& source, AdapterNames names) {
  if (!parts_.adapters) return NoRoomForAdapters();
  return parts_.adapters->Load(source, names == AdapterNames::kMayReplace
                                           ? AdapterStore::Names::kMayReplace
                                           : AdapterStore::Names::kMustBeNew);
}

Status EngineOnThread::UnloadAdapter(std::string_view name) {
  if (parts_.adapters) return parts_.adapters->Unload(name);
  return Fail(Code::kNotFound, "no adapter of the name '{}' is loaded", name);
}

Status EngineOnThread::SetAdapterScales(std::span<const AdapterChoice> choices) {
  if (parts_.adapters) return parts_.adapters->SetScales(choices);
  if (choices.empty()) return {};
  return NoRoomForAdapters();
}

std::vector<AdapterCard> EngineOnThread::Adapters() const {
  return parts_.adapters ? parts_.adapters->Cards() : std::vector<AdapterCard>();
}

// Returns the adapters of a request; nullptr: it has none.
Result<std::shared_ptr<const AdapterSet>> EngineOnThread::AdaptersOf(
    const GenerateRequest& spec) const {
  if (parts_.adapters) return parts_.adapters->SetFor(spec.adapters);
  if (!spec.adapters || spec.adapters->empty()) return nullptr;
  return FailField(Code::kInvalidArgument, "lora",
                   "no adapter with the id {} is loaded (loaded: none)", spec.adapters->front().id);
}

Status EngineOnThread::ChooseAdapters(GenerateRequest& request) const {
  KV_ASSIGN(const auto set, AdaptersOf(request));
  std::string digest = set ? ToHex(set->digest) : "";
  if (request.adapter_digest && *request.adapter_digest != digest) return ReplacedMeanwhile();
  request.adapter_digest = std::move(digest);
  if (request.adapters) return {};
  request.adapters.emplace();
  if (set) *request.adapters = set->choices;
  return {};
}

// Sets what a request is computed with, and says so in its receipt.
Status EngineOnThread::TakeAdapters(Request& request) const {
  KV_ASSIGN(const auto set, AdaptersOf(request.spec));
  const std::string digest = set ? ToHex(set->digest) : "";
  if (request.spec.adapter_digest && *request.spec.adapter_digest != digest) {
    return ReplacedMeanwhile();
  }
  if (!set) return {};
  request.receipt.adapters = set->used;
  request.receipt.adapter_digest = digest;
  request.adapters = AdapterSeat(set);
  return {};
}

}  // namespace kvasir
