#include "model/weight_loader.h"

#include <fmt/format.h>

#include "base/result.h"
#include "base/thread_pool.h"
#include "import/file_watch.h"
#include "import/model_config.h"
#include "model/model_image.h"
#include "simd/target.h"

namespace kvasir {
namespace {

// Returns a digest of everything that decides an image's payload, except its format, which the
// image's header has.
Digest ImageKey(const ImportedModel& model, const Digest& weights) {
  Sha256 key;
  key.Update("kvasir model image 1\n").Update(std::as_bytes(std::span(weights)));
  key.Update(CanonicalText(model.config));
  // The table of sinusoids is packed too; it is as long as the context, which no answer depends on.
  if (model.config.sinusoids) key.Update(fmt::format(" positions={}", model.config.max_positions));
  return key.Finish();
}

void Warn(const ImageOptions& options, const std::string& text) {
  if (options.warn) options.warn(text);
}

// Absent when there is no usable image.
std::optional<PackedWeights> FromImage(const ImportedModel& model,
                                       const std::optional<WeightChoice>& choice,
                                       const ImageOptions& options, const ModelImages& images,
                                       ThreadPool& pool) {
  const uint64_t bytes = PlanPacked(model, choice).arena_bytes;
  auto opened = images.Open(ImageKey(model, options.weights), bytes, pool);
  if (!opened) {
    Warn(options, opened.error().message + "; the weights are packed again");
    return std::nullopt;
  }
  if (!*opened) return std::nullopt;
  PackedWeights weights = Adopt(model, choice, Arena::Over((*opened)->payload.data(), bytes));
  weights.image = (*opened)->file;
  return weights;
}

// Packs weights, and fails if the files changed since the digest that names the image was computed:
// the image would get other weights under this name.
Result<PackedWeights> PackUnchanged(const ImportedModel& model,
                                    const std::optional<WeightChoice>& choice, ThreadPool& pool,
                                    const std::function<void(double)>& progress) {
  Result<PackedWeights> weights = Pack(model, choice, pool, progress);
  KV_TRY(
      CheckWhileLoading(model.mapped_files));  // first, because a change explains an error of Pack
  return weights;
}

}  // namespace

Result<PackedWeights> LoadWeights(const ImportedModel& model,
                                  const std::optional<WeightChoice>& choice, uint32_t threads,
                                  const std::optional<ImageOptions>& options,
                                  const std::function<void(double)>& progress) {
  ThreadPool pool(threads, &EnterComputeThread);
  KV_TRY(pool.status());
  if (!options) return PackUnchanged(model, choice, pool, progress);
  const ModelImages images(options->folder, options->cap_bytes, options->secret);
  if (auto weights = FromImage(model, choice, *options, images, pool)) return std::move(*weights);
  KV_ASSIGN(PackedWeights weights, PackUnchanged(model, choice, pool, progress));
  const std::string format = choice ? std::string(choice->name) : WeightsName(MainFormat(model));
  const Status written = images.Write(ImageKey(model, options->weights), {model.name, format},
                                      weights.arena.bytes(), pool);
  // A folder without write permission is somebody's decision, so there is no warning.
  if (!written && written.error().code != Code::kPermissionDenied) {
    Warn(*options, written.error().message + "; each start packs the weights again");
  }
  return weights;
}

}  // namespace kvasir
