#include "engine/draft_parts.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/file_name.h"
#include "base/result.h"
#include "engine/model_files.h"
#include "import/architecture.h"
#include "schedule/draft_model.h"

namespace kvasir {
namespace {

constexpr uint32_t kDraftStepTokens = 256;  // rows of a step that reads a prompt

// Says that an error is about the draft model.
Error OfDraft(const Error& error) {
  Error said = error;
  said.field = error.field == "kv_memory" ? "draft_kv_memory"
               : error.field == "shape"   ? "draft_shape"
                                          : "draft_model";
  return said;
}

// Returns why nothing can be drafted; absent: something can.
std::optional<std::string> WhyNot(const EngineOptions& options, const Assembly& model) {
  if (model.model.config.encoder) {
    return model.model.name + " is an encoder-decoder, for which nothing is drafted; leave it out";
  }
  if (options.cache_mode == CacheMode::kNone) {
    return "a cache of mode none drafts nothing; leave one of them out";
  }
  if (options.speculate == Speculate::kOff || options.draft_max == 0) {
    return "--speculate or --draft-max turns drafts off; leave out one of them or --draft-model";
  }
  return std::nullopt;
}

EngineOptions DraftOptions(const EngineOptions& options) {
  EngineOptions draft = options;
  const EngineOptions otherwise;
  draft.model = options.draft_model;
  draft.shape = options.draft_shape;
  draft.model_name.reset();
  draft.draft_model.reset();
  draft.draft_shape.reset();
  if (!draft.shape) draft.weights.reset();
  draft.kv_format = otherwise.kv_format;
  draft.kv_skip_layers.clear();
  draft.cache_mode = CacheMode::kPrefix;
  draft.kv_memory_bytes = options.draft_kv_memory_bytes;
  draft.ctx_size.reset();
  draft.step_tokens = std::max(kDraftStepTokens, options.parallel * DraftModel::kMostBehind);
  draft.speculate = Speculate::kOff;
  draft.retention = {};
  draft.disk.reset();
  draft.remote.reset();
  draft.events.reset();
  draft.adapters = {};
  draft.warn = nullptr;
  return draft;
}

// Assembles the draft model. `ctx_size`: of the model for which it drafts.
Result<Assembly> AssembleAlone(EngineOptions options, uint32_t ctx_size, Need need) {
  KV_ASSIGN(ImportedModel model, OpenModel(options, need));
  if (model.config.encoder) {
    return FailField(Code::kInvalidArgument, "draft_model",
                     "{} is an encoder-decoder; give a model that goes on from a prompt",
                     model.name);
  }
  // All sequences have one Identity: they are rotated by the short factors.
  ctx_size = std::min(model.config.max_positions, ctx_size);
  const RopeConfig& rope = model.config.rope;
  if (UsesLongFactors(rope, ctx_size)) {
    ctx_size = static_cast<uint32_t>(rope.original_max_positions);
  }
  options.ctx_size = ctx_size;
  return Assemble(options, std::move(model), need, SequencesAre::kDrafts);
}

std::string QuotedBytes(const std::string& bytes) { return "'" + Printable(bytes) + "'"; }

}  // namespace

Result<std::unique_ptr<Assembly>> AssembleDraft(const EngineOptions& options, const Assembly& model,
                                                Need need) {
  if (!options.draft_model && !options.draft_shape) return nullptr;
  if (const auto why = WhyNot(options, model)) {
    return FailField(Code::kInvalidArgument, "draft_model", "{}", *why);
  }
  Result<Assembly> draft = AssembleAlone(DraftOptions(options), model.ctx_size, need);
  if (!draft) return tl::unexpected(OfDraft(draft.error()));
  return std::make_unique<Assembly>(std::move(*draft));
}

void PlanDraft(const Assembly& a, const EngineOptions& options, MemoryPlan& plan) {
  if (!a.draft) return;
  const Assembly& draft = *a.draft;
  plan.draft_weights_bytes = draft.runner_plan.weights_bytes;
  plan.draft_kv_bytes = draft.cache_plan.total_bytes();
  plan.draft_scratch_bytes = draft.runner_plan.scratch_bytes +
                             DraftModel::BytesFor(draft.model.config.vocab_size,
                                                  a.model.config.vocab_size, options.parallel);
  plan.mapped_bytes += draft.runner_plan.mapped_bytes;
  plan.request_bytes += draft.plan.request_bytes - options.request_memory_bytes;
}

Status CheckDraftVocabulary(const Tokenizer* model, const Tokenizer* draft) {
  if (model == nullptr && draft == nullptr) return {};
  if (model == nullptr || draft == nullptr) {
    return FailField(Code::kInvalidArgument, "draft_model",
                     "the {} has no vocabulary, so nothing shows that its ids are the other's",
                     model == nullptr ? "model" : "draft model");
  }
  const auto of_model = model->BytesOfTokens(), of_draft = draft->BytesOfTokens();
  const uint32_t size = std::min(model->vocab_size(), draft->vocab_size());
  for (uint32_t i = 0; i < size; ++i) {
    const auto id = static_cast<TokenId>(i);
    const bool has_bytes = of_model && of_draft;
    const std::string one = has_bytes ? of_model->of[i] : std::string(model->TokenText(id));
    const std::string other = has_bytes ? of_draft->of[i] : std::string(draft->TokenText(id));
    if (one == other && model->IsSpecial(id) == draft->IsSpecial(id)) continue;
    return FailField(Code::kInvalidArgument, "draft_model",
                     "its vocabulary is another one: token {} is {} in the model and {} in the "
                     "draft model; give a draft model with the model's vocabulary",
                     id, QuotedBytes(one), QuotedBytes(other));
  }
  return {};
}

Result<DraftModelOnEngine> LoadDraft(Assembly draft, const Tokenizer* tokenizer,
                                     const ServerSecret& secret, const EngineOptions& options) {
  Result<ModelText> text = LoadText(TakeText(draft.model));
  if (!text) return tl::unexpected(OfDraft(text.error()));
  KV_TRY(CheckDraftVocabulary(tokenizer, text->tokenizer.get()));
  EngineOptions of_draft = DraftOptions(options);
  of_draft.warn = options.warn;
  Result<Digest> weights = DigestFor(draft, secret, of_draft);
  if (!weights) return tl::unexpected(OfDraft(weights.error()));
  draft.runner.images = ImagesFor(draft, *weights, secret, of_draft);
  const IdentityParts content = ContentParts(draft.model.config, *weights, text->tokenizer.get());
  const auto progress = [&](double share) {
    if (options.progress) options.progress("weights of the draft model", share);
  };
  DraftModelOnEngine loaded;
  auto runner = Runner::Create(std::move(draft.model), draft.runner, progress);
  if (!runner) return tl::unexpected(OfDraft(runner.error()));
  loaded.runner = std::move(*runner);
  loaded.parts = {.runner = loaded.runner.get(),
                  .identity = IdentityFor(content, draft.plan, draft.cache.layout),
                  .ctx_size = draft.ctx_size,
                  .max_rows = draft.runner.max_rows};
  draft.cache.secret = secret.secret;
  KV_ASSIGN(loaded.cache, KvCache::Create(std::move(draft.cache)));
  loaded.parts.cache = loaded.cache.get();
  return loaded;
}

}  // namespace kvasir
