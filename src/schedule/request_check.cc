#include "schedule/request_check.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/result.h"
#include "base/sizes.h"
#include "base/utf8.h"
#include "kvasir/sampling_ranges.h"

namespace kvasir {
namespace {

Status CheckIds(const char* field, std::span<const TokenId> ids, uint32_t vocab_size) {
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] >= 0 && static_cast<uint32_t>(ids[i]) < vocab_size) continue;
    auto failed = FailField(Code::kInvalidArgument, field,
                            "token {} is outside the vocabulary [0, {})", ids[i], vocab_size);
    failed.value().index = i;
    return failed;
  }
  return {};
}

Status CheckSource(const GenerateRequest& spec, const RequestLimits& limits) {
  const bool has_encoder = limits.layout->num_cross_groups() > 0;
  if (!has_encoder && !spec.source.empty()) {
    return FailField(Code::kInvalidArgument, "source",
                     "{} for a model that has no encoder; give a prompt only",
                     CountText(spec.source.size(), "token"));
  }
  if (has_encoder && spec.source.empty()) {
    return FailField(Code::kInvalidArgument, "source",
                     "is missing: this model is an encoder-decoder, which answers to a source; "
                     "'kvasir translate' gives it one");
  }
  if (spec.source.size() > limits.ctx_size) {
    return FailField(Code::kInvalidArgument, "source",
                     "has {} tokens; the encoder reads at most {} at once", spec.source.size(),
                     limits.ctx_size);
  }
  return CheckIds("source", spec.source, limits.source_vocab_size);
}

Status CheckBeams(const GenerateRequest& spec, const RequestLimits& limits) {
  const auto refuse = [](const char* field, const char* why) {
    return FailField(Code::kInvalidArgument, field, "{}", why);
  };
  const BeamParams& beams = *spec.beams;
  if (limits.layout->num_cross_groups() == 0) {
    return refuse("beams", "beam search is for models with an encoder");
  }
  const uint32_t most = std::min(kMaxBeams, limits.parallel);
  if (beams.beams < 2 || beams.beams > most) {
    return FailField(Code::kInvalidArgument, "beams",
                     "{} is not in [2, {}]: each is one of the sequences that run at once "
                     "(--parallel), and at most {} are allowed",
                     beams.beams, most, kMaxBeams);
  }
  if (spec.n > beams.beams) {
    return FailField(Code::kInvalidArgument, "n", "{} hypotheses of {} beams; give more beams",
                     spec.n, beams.beams);
  }
  if (!std::isfinite(beams.length_penalty)) return refuse("length_penalty", "is not finite");
  if (spec.prompt.size() > 2) {
    return refuse("prompt", "beam search begins with a start token and at most one more");
  }
  if (spec.max_tokens == 0) return refuse("max_tokens", "is 0, and beam search needs a token");
  if (!spec.stop.empty()) return refuse("stop", "beam search has no stop strings");
  if (spec.format) return refuse("response_format", "beam search has no formats");
  if (spec.logprobs) return refuse("logprobs", "beam search has scores instead");
  return {};
}

// Checks what an embedding is made of: all rows of one prompt, or its last one.
Status CheckEmbeds(const GenerateRequest& spec, const RequestLimits& limits) {
  const auto refuse = [](const char* field, const char* why) {
    return FailField(Code::kInvalidArgument, field, "{}", why);
  };
  const RetentionChoice& retention = spec.retention ? *spec.retention : limits.retention;
  if (limits.layout->num_cross_groups() > 0) {
    return refuse("embeds", "an encoder-decoder model embeds no texts");
  }
  if (spec.max_tokens != 0) return refuse("max_tokens", "an embedding has no answer; give 0");
  if (spec.n != 1) return refuse("n", "a prompt has one embedding");
  if (spec.spans && !spec.spans->spans.empty()) {
    return refuse("cache.spans", "the embedding of a prompt with spans is not exact");
  }
  if (retention.policy != Retention::kFull) {
    return refuse("cache.retention", "an embedding is of all tokens; give the retention full");
  }
  if (spec.embeds == Pooling::kMean && spec.reuse != Reuse::kNothing) {
    return refuse("embeds", "the mean of all rows needs a prompt that reuses nothing");
  }
  return {};
}

Status CheckFields(const GenerateRequest& spec, const RequestLimits& limits) {
  KV_TRY(CheckSource(spec, limits));
  if (spec.prompt.empty()) {
    return FailField(Code::kInvalidArgument, "prompt", "has no tokens; give at least one");
  }
  if (spec.chunk_tokens == 0) {
    return FailField(Code::kInvalidArgument, "chunk_tokens",
                     "is 0; give at least 1, or none to let the engine decide");
  }
  KV_TRY(CheckIds("prompt", spec.prompt, limits.vocab_size));
  KV_TRY(CheckIds("prediction", spec.prediction, limits.vocab_size));
  KV_TRY(CheckIds("replayed", spec.replayed, limits.vocab_size));
  if (!spec.replayed.empty() && (spec.beams || spec.format)) {
    return FailField(Code::kInvalidArgument, "replayed",
                     "an answer is replayed without beams and without a format");
  }
  if (spec.draft_max.value_or(0) > kMaxDraft) {
    return FailField(Code::kInvalidArgument, "speculative.n_max", "{} is not in [0, {}]",
                     *spec.draft_max, kMaxDraft);
  }
  KV_TRY(CheckIds("stop_ids", spec.stop_ids, limits.vocab_size));
  if (spec.beams) {
    KV_TRY(CheckBeams(spec, limits));
  }
  if (spec.n < 1 || spec.n > limits.parallel) {
    return FailField(Code::kInvalidArgument, "n",
                     "{} is not in [1, {}], the number of sequences that run at once (--parallel)",
                     spec.n, limits.parallel);
  }
  if (spec.min_tokens > spec.max_tokens) {
    return FailField(Code::kInvalidArgument, "min_tokens", "{} is more than max_tokens, {}",
                     spec.min_tokens, spec.max_tokens);
  }
  if (spec.logprobs && *spec.logprobs > kMaxTopLogprobs) {
    return FailField(Code::kInvalidArgument, "top_logprobs", "{} is more than the limit of {}",
                     *spec.logprobs, kMaxTopLogprobs);
  }
  if (spec.scores_prompt && (!spec.logprobs || spec.reuse != Reuse::kNothing)) {
    return FailField(Code::kInvalidArgument, "scores_prompt",
                     "needs logprobs, and a prompt that reuses nothing");
  }
  if (spec.embeds) KV_TRY(CheckEmbeds(spec, limits));
  for (const std::string& stop : spec.stop) {
    if (limits.tokenizer == nullptr) {
      return FailField(Code::kInvalidArgument, "stop", "{}, or use stop ids instead of strings",
                       limits.no_text);
    }
    if (stop.empty()) return FailField(Code::kInvalidArgument, "stop", "a stop string is empty");
    if (FirstInvalidUtf8(stop) != stop.size()) {
      return FailField(Code::kInvalidArgument, "stop", "byte {} of a stop string is not UTF-8",
                       FirstInvalidUtf8(stop));
    }
  }
  return ValidateSampling(spec.sampling, limits.vocab_size);
}

// Returns the demand of the prompts only.
KvDemand DemandOf(const GenerateRequest& spec, const std::optional<SpanPlan>& spans,
                  const RequestLimits& limits) {
  const auto prompt = static_cast<uint32_t>(spec.prompt.size());
  KvDemand demand{.prompt_tokens = prompt,
                  .tokens = prompt,
                  .n = WidthOf(spec),
                  .shares_prompt = limits.cache_mode != CacheMode::kNone,
                  .source_tokens = static_cast<uint32_t>(spec.source.size())};
  if (!spans) return demand;
  const uint32_t block_tokens = limits.layout->block_tokens();
  demand.read_blocks = spans->BlocksNotWritten(block_tokens);
  demand.beside_blocks = static_cast<uint32_t>(spans->BlocksOfParts(block_tokens));
  return demand;
}

// Plans what of its prompt is read where it lies; absent: it has no spans.
Result<std::optional<SpanPlan>> SpansOf(const GenerateRequest& spec, const RequestLimits& limits) {
  if (!spec.spans || spec.spans->spans.empty()) return std::nullopt;
  const auto refuse = [](std::string_view why) {
    return FailField(Code::kInvalidArgument, "cache.spans", "{}", why);
  };
  if (!limits.no_spans.empty()) return refuse(limits.no_spans);
  const RetentionChoice& retention = spec.retention ? *spec.retention : limits.retention;
  if (retention.policy != Retention::kFull) {
    return refuse("a request has spans or drops tokens, not both; ask for the retention full");
  }
  if (spec.scores_prompt) return refuse("tokens that are read where they lie have no scores");
  auto plan = SpanPlan::Create(*spec.spans, static_cast<uint32_t>(spec.prompt.size()));
  if (plan) return *std::move(plan);
  plan.error().field = "cache." + plan.error().field.value_or("spans");
  return tl::unexpected(std::move(plan.error()));
}

// Returns the tokens of a first message that is the system's; 0: it is not.
uint32_t SystemTokens(const GenerateRequest& spec) {
  return spec.begins_with_system && !spec.message_ends.empty() ? spec.message_ends[0] : 0;
}

// Returns what its sequences keep; absent: all.
Result<std::optional<RetentionPolicy>> RetentionOf(const GenerateRequest& spec,
                                                   const RequestLimits& limits) {
  const RetentionChoice& choice = spec.retention ? *spec.retention : limits.retention;
  if (choice.policy == Retention::kFull) return std::nullopt;
  if (!limits.no_retention.empty()) {
    return FailField(Code::kInvalidArgument, "cache.retention", "{}", limits.no_retention);
  }
  const auto prompt = static_cast<uint32_t>(spec.prompt.size());
  std::optional<uint32_t> kept;  // as llama-server counts
  if (const auto keep = spec.llama_quirks.n_keep ? spec.llama_quirks.n_keep : choice.keep) {
    const bool has_bos = std::ranges::count(limits.bos, spec.prompt[0]) > 0;
    kept = *keep < 0 ? prompt : static_cast<uint32_t>(*keep) + has_bos;
  }
  const bool drops = limits.layout->num_full_groups() > 0;
  if (drops && choice.policy == Retention::kHeavy && limits.layout->block_tokens() != kHeavyBlock) {
    return FailField(Code::kInvalidArgument, "cache.retention",
                     "heavy keeps blocks of {} tokens, and this pool has blocks of {}; start with "
                     "--block-tokens {}",
                     kHeavyBlock, limits.layout->block_tokens(), kHeavyBlock);
  }
  auto policy = RetentionPolicy::Create(choice, {.ctx_size = limits.ctx_size,
                                                 .prompt_tokens = prompt,
                                                 .keep = kept,
                                                 .system_tokens = SystemTokens(spec),
                                                 .is_dropped = drops,
                                                 .max_positions = limits.max_positions});
  if (policy) return *policy;
  policy.error().field = "cache." + policy.error().field.value_or("retention");
  return tl::unexpected(std::move(policy.error()));
}

// Returns the largest prompt + answer of a sequence that drops tokens: it does not follow from
// context and pool, which only its exact tokens must fit.
Result<uint64_t> MaxRetained(const GenerateRequest& spec, const RetentionPolicy& policy,
                             const RequestLimits& limits) {
  const uint64_t prompt = spec.prompt.size(), answer = spec.max_tokens == 0 ? 0 : 1;
  const bool is_exact = policy.exact_tokens() >= prompt;
  const uint64_t positions =
      limits.has_learned_positions ? limits.max_positions : kMaxRetainedTokens;
  const uint64_t most = is_exact ? std::min<uint64_t>(limits.ctx_size, positions) : positions;
  if (prompt + answer > most) {
    auto refused =
        FailField(Code::kInvalidArgument, "prompt", "{} and {} to generate do not fit {} {}: {}",
                  CountText(prompt, "token"), answer,
                  is_exact ? "the context of" : "a sequence, which has at most", most,
                  is_exact ? "shorten the prompt, or lower cache.retention.exact_tokens"
                           : "shorten the prompt");
    refused.value().cause = Cause::kContext;
    refused.value().excess = {.prompt_tokens = prompt, .ctx_size = most};
    return refused;
  }
  const bool is_open = spec.max_tokens == std::numeric_limits<uint32_t>::max();
  return std::min(positions, prompt + (is_open ? limits.ctx_size : spec.max_tokens));
}

// Checks that the pool holds what a request with retention needs.
Status CheckRetained(const Request& request, const RequestLimits& limits) {
  const auto fits = [&](uint32_t most_full_tokens) {
    KvDemand demand = request.room.demand;
    demand.most_full_tokens = most_full_tokens;
    return demand.blocks(*limits.layout, limits.step_tokens) <= limits.num_blocks;
  };
  if (fits(request.room.demand.most_full_tokens)) return {};
  const RetentionPolicy& policy = *request.retention;
  const uint32_t exact = std::min(policy.exact_tokens(), request.room.demand.tokens);
  const uint32_t beside = policy.MostTokens(limits.layout->block_tokens()) - policy.budget();
  const uint32_t step = policy.is_heavy() ? kHeavyBlock : 1;
  uint32_t budget = policy.budget();
  while (budget > 0 && !fits(std::max(exact, budget + beside))) budget -= step;
  const uint32_t least = policy.is_heavy() ? kMinHeavyBudget : kMinRetentionBudget;
  if (budget >= least) {
    return FailField(Code::kInvalidArgument, "cache.retention.budget",
                     "{} tokens{} need more than the {} blocks of {} tokens that the pool has; the "
                     "largest budget that fits is {}",
                     policy.budget(),
                     request.spec.n > 1 ? fmt::format(" for {} choices", request.spec.n) : "",
                     limits.num_blocks, limits.layout->block_tokens(), budget);
  }
  if (fits(exact)) {
    return FailField(Code::kInvalidArgument, "cache.retention.budget",
                     "no budget fits{}: the least, {} tokens, needs more than the {} blocks of {} "
                     "tokens that the pool has; {}raise --kv-memory",
                     request.spec.n > 1 ? fmt::format(" for {} choices", request.spec.n) : "",
                     least, limits.num_blocks, limits.layout->block_tokens(),
                     request.spec.n > 1 ? "lower n or " : "");
  }
  return FailField(Code::kInvalidArgument, "prompt",
                   "{} exact tokens{} need more than the {} blocks of {} tokens that the pool has: "
                   "shorten the prompt, lower cache.retention.exact_tokens{} or raise --kv-memory",
                   exact, request.spec.n > 1 ? fmt::format(" for {} choices", request.spec.n) : "",
                   limits.num_blocks, limits.layout->block_tokens(),
                   request.spec.n > 1 ? ", lower n" : "");
}

// Returns the largest prompt + answer that fits context and pool. The last token is never computed:
// it needs a position, but no place in a block.
Result<uint64_t> MaxTokens(const GenerateRequest& spec, const std::optional<SpanPlan>& spans,
                           const RequestLimits& limits) {
  const uint64_t prompt = spec.prompt.size();
  const uint64_t answer = spec.max_tokens == 0 ? 0 : 1;
  uint64_t context = limits.ctx_size;
  std::string fix = "shorten the prompt";
  if (limits.ctx_size == limits.max_positions) {
    fix += "; the model was trained for no longer context";
  } else if (prompt + answer > limits.max_positions) {
    fix += fmt::format("; the model was trained for at most {}", limits.max_positions);
  } else {
    fix += ", or raise --ctx-size";
  }
  if (limits.no_retention.empty()) {
    fix += "; with --retention and --exact-tokens (cache.retention) it may be longer";
  }
  if (limits.cache_mode == CacheMode::kNone && context > kMaxTokensWithoutCache) {
    context = kMaxTokensWithoutCache;
    fix = "--cache none computes all tokens again for each token; use --cache prefix";
  }
  if (prompt + answer > context) {
    auto refused = FailField(Code::kInvalidArgument, "prompt",
                             "{} and {} to generate do not fit the context of {}: {}",
                             CountText(prompt, "token"), answer, context, fix);
    refused.value().cause = Cause::kContext;
    refused.value().excess = {.prompt_tokens = prompt, .ctx_size = context};
    return refused;
  }
  const uint64_t computed = DemandOf(spec, spans, limits)
                                .MaxTokens(*limits.layout, limits.step_tokens, limits.num_blocks);
  if (computed == 0 && limits.num_blocks < limits.pool_blocks) {
    return FailField(Code::kInvalidArgument, "prompt",
                     "{} tokens{} need more than the {} blocks of {} tokens that this tenant may "
                     "have (kv_max, and what is guaranteed to others): shorten the prompt{}",
                     prompt, spec.n > 1 ? fmt::format(" for {} choices", spec.n) : "",
                     limits.num_blocks, limits.layout->block_tokens(),
                     spec.n > 1 ? " or lower n" : "");
  }
  if (computed == 0) {
    return FailField(Code::kInvalidArgument, "prompt",
                     "{} tokens{} need more than the {} blocks of {} tokens that the pool has: "
                     "shorten the prompt{} or raise --kv-memory",
                     prompt, spec.n > 1 ? fmt::format(" for {} choices", spec.n) : "",
                     limits.num_blocks, limits.layout->block_tokens(),
                     spec.n > 1 ? ", lower n" : "");
  }
  return std::min(context, computed + answer);
}

}  // namespace

Result<std::unique_ptr<Request>> CheckRequest(GenerateRequest spec, EventSink sink,
                                              const RequestLimits& limits) {
  KV_TRY(CheckFields(spec, limits));
  KV_ASSIGN(const std::optional<RetentionPolicy> retention, RetentionOf(spec, limits));
  KV_ASSIGN(std::optional<SpanPlan> spans, SpansOf(spec, limits));
  const auto longest =
      retention ? MaxRetained(spec, *retention, limits) : MaxTokens(spec, spans, limits);
  KV_ASSIGN(const uint64_t max_total, longest);
  auto request = std::make_unique<Request>();
  const uint64_t prompt = spec.prompt.size();
  request->max_tokens =
      static_cast<uint32_t>(std::min<uint64_t>(spec.max_tokens, max_total - prompt));
  request->room.demand = DemandOf(spec, spans, limits);
  if (request->max_tokens > 0) request->room.demand.tokens += request->max_tokens - 1;
  request->spans.plan = std::move(spans);
  request->spec = std::move(spec);
  request->events.set_sink(std::move(sink));
  if (!retention) return request;
  request->retention = retention;
  if (request->room.demand.tokens > retention->inexact_from()) {
    request->room.demand.most_full_tokens =
        std::max(retention->exact_tokens(), retention->MostTokens(limits.layout->block_tokens()));
  }
  KV_TRY(CheckRetained(*request, limits));
  return request;
}

}  // namespace kvasir
