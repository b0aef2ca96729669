#include "policy/retention_policy.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>
#include <optional>
#include <vector>

#include "base/result.h"
#include "base/sizes.h"

namespace kvasir {
namespace {

constexpr std::array<const char*, kNumRetentions> kRetentionNames = {"full", "window",
                                                                     "sinks+window", "heavy"};
constexpr uint32_t kDefaultBudget = 2048, kDefaultSinks = 4;
constexpr uint32_t kSystemShare = 4;  // of the budget: a longer system message is not kept whole
constexpr uint32_t kMinHeavyRecent = 16;
constexpr float kNeighbourShare = 0.5f;  // of their sums, in the score of a block between them

Result<uint32_t> RetentionNumber(std::string_view key, std::string_view text) {
  const std::optional<uint64_t> number = ParseUint(text);
  if (number && *number <= UINT32_MAX) return static_cast<uint32_t>(*number);
  return FailField(Code::kInvalidArgument, "retention", "{}={} is not a number of tokens", key,
                   text);
}

// Reads "keep=N", what llama-server's --keep may be.
Result<int32_t> KeptNumber(std::string_view pair) {
  int32_t number = 0;
  const char* const end = pair.data() + pair.size();
  const auto [at, error] =
      std::from_chars(pair.data() + std::min<size_t>(5, pair.size()), end, number);
  if (error == std::errc() && at == end && number >= -1) return number;
  return FailField(Code::kInvalidArgument, "retention",
                   "{} is not a number of tokens, or -1 for the prompt", pair);
}

Status InRetentionRange(const char* field, uint32_t value, uint32_t least, uint32_t most,
                        const char* why) {
  if (value >= least && value <= most) return {};
  return FailField(Code::kInvalidArgument, field, "{} is not in [{}, {}]{}", value, least, most,
                   why);
}

Status CheckHeavyBudget(uint32_t budget, uint32_t ctx_size) {
  if (budget >= kMinHeavyBudget && budget <= ctx_size && budget % kHeavyBlock == 0) return {};
  return FailField(Code::kInvalidArgument, "retention.budget",
                   "{} is not a multiple of {} from {} to the context of {}: heavy keeps whole "
                   "blocks of {} tokens",
                   budget, kHeavyBlock, kMinHeavyBudget, ctx_size, kHeavyBlock);
}

}  // namespace

const char* ToString(Retention policy) { return kRetentionNames[static_cast<size_t>(policy)]; }

std::optional<Retention> ParseRetention(std::string_view name) {
  const auto* found = std::ranges::find(kRetentionNames, name);
  if (found == kRetentionNames.end()) return std::nullopt;
  return static_cast<Retention>(found - kRetentionNames.begin());
}

std::string RetentionNames() {
  std::string names;
  for (const char* name : kRetentionNames) names += (names.empty() ? "" : ", ") + std::string(name);
  return names;
}

Result<RetentionChoice> ParseRetentionChoice(std::string_view text) {
  const size_t colon = std::min(text.find(':'), text.size());
  RetentionChoice choice;
  const auto policy = ParseRetention(text.substr(0, colon));
  if (!policy) {
    return FailField(Code::kInvalidArgument, "retention", "unknown policy '{}' (known: {})",
                     text.substr(0, colon), RetentionNames());
  }
  choice.policy = *policy;
  if (colon < text.size() && *policy == Retention::kFull) {
    return FailField(Code::kInvalidArgument, "retention", "full: takes no numbers");
  }
  std::vector<std::string_view> keys;
  for (size_t at = colon + 1; at <= text.size();) {
    const std::string_view pair = text.substr(at, text.find(',', at) - at);
    at += pair.size() + 1;
    const std::string_view key = pair.substr(0, pair.find('='));
    if (std::ranges::count(keys, key) > 0) {
      return FailField(Code::kInvalidArgument, "retention", "{}: given twice; give it once", key);
    }
    keys.push_back(key);
    if (pair == "budget=context") {
      choice.keeps_context = true;
      continue;
    }
    if (key == "keep") {
      KV_ASSIGN(choice.keep, KeptNumber(pair));
      continue;
    }
    std::optional<uint32_t>* const field = key == "budget"   ? &choice.budget
                                           : key == "sinks"  ? &choice.sinks
                                           : key == "recent" ? &choice.recent
                                                             : nullptr;
    if (field == nullptr || key.size() == pair.size()) {
      return FailField(Code::kInvalidArgument, "retention",
                       "'{}' is not budget=N, sinks=N, keep=N or recent=N, separated by commas",
                       pair);
    }
    KV_ASSIGN(*field, RetentionNumber(key, pair.substr(key.size() + 1)));
  }
  if (choice.sinks && choice.keep) {
    return FailField(Code::kInvalidArgument, "retention",
                     "sinks and keep both say which first tokens stay; give one of them");
  }
  return choice;
}

Result<RetentionPolicy> RetentionPolicy::Create(const RetentionChoice& choice, const Text& text) {
  RetentionPolicy policy;
  policy.policy_ = choice.policy;
  policy.budget_ = choice.keeps_context
                       ? text.ctx_size
                       : choice.budget.value_or(std::max(
                             kMinRetentionBudget, std::min(text.ctx_size / 2, kDefaultBudget)));
  if (policy.is_heavy() && choice.budget && !choice.keeps_context) {
    KV_TRY(CheckHeavyBudget(*choice.budget, text.ctx_size));
  }
  KV_TRY(InRetentionRange("retention.budget", policy.budget_, kMinRetentionBudget, text.ctx_size,
                          ", up to the context"));
  const bool has_sinks = choice.policy != Retention::kWindow;
  if ((choice.sinks || choice.keep) && !has_sinks) {
    return FailField(Code::kInvalidArgument, choice.sinks ? "retention.sinks" : "retention.keep",
                     "is for the policies sinks+window and heavy, not for {}",
                     ToString(choice.policy));
  }
  if (choice.recent && !policy.is_heavy()) {
    return FailField(Code::kInvalidArgument, "retention.recent",
                     "is for the policy heavy, not for {}", ToString(choice.policy));
  }
  const bool keeps_system =
      text.system_tokens > 0 && text.system_tokens <= policy.budget_ / kSystemShare;
  policy.sinks_ = !has_sinks ? 0
                  : text.keep
                      ? std::min(*text.keep, policy.budget_ / 2)
                      : choice.sinks.value_or(keeps_system ? text.system_tokens : kDefaultSinks);
  KV_TRY(InRetentionRange("retention.sinks", policy.sinks_, 0, policy.budget_ / 2,
                          ", up to half of the budget"));
  policy.exact_tokens_ = choice.exact_tokens.value_or(text.prompt_tokens);
  KV_TRY(InRetentionRange("retention.exact_tokens", choice.exact_tokens.value_or(0), 0,
                          text.ctx_size, ", up to the context"));
  policy.recent_ = policy.budget_ - policy.sinks_;
  if (policy.is_heavy()) KV_TRY(policy.SetHeavy(choice, text));
  policy.max_positions_ = text.max_positions;
  policy.inexact_from_ =
      text.is_dropped ? policy.FirstDrop() : std::numeric_limits<uint32_t>::max();
  return policy;
}

Status RetentionPolicy::SetHeavy(const RetentionChoice& choice, const Text& text) {
  if (choice.keeps_context || !choice.budget) {
    budget_ = std::max(kMinHeavyBudget, budget_ / kHeavyBlock * kHeavyBlock);
  }
  KV_TRY(CheckHeavyBudget(budget_, text.ctx_size));
  recent_ = choice.recent.value_or(std::max(kMinHeavyRecent, budget_ / 8));
  return InRetentionRange("retention.recent", recent_, kMinHeavyRecent, budget_ / 4,
                          ", up to a quarter of the budget");
}

// heavy: the first decision point with more than `budget` tokens before it. Decision points are the
// end of the exact tokens, then each multiple of 64 that is at least 32 later.
uint32_t RetentionPolicy::FirstDrop() const {
  if (!is_heavy()) return std::max(exact_tokens_, budget_);
  if (exact_tokens_ > budget_) return exact_tokens_;
  return static_cast<uint32_t>(
      RoundUp(std::max(budget_ + 1, exact_tokens_ + kDecisionGap), kDecisionStep));
}

// Returns whether tokens until the next decision may see a block from farther than the model was
// trained for.
bool RetentionPolicy::IsFar(uint32_t block, uint32_t position) const {
  return uint64_t{block} * kHeavyBlock + max_positions_ < uint64_t{position} + kDecisionStep;
}

bool RetentionPolicy::Decide(uint32_t position, std::span<HeldBlock> held) const {
  const uint32_t first_recent = FirstRecentBlock(position);
  const auto is_safe = [&](const HeldBlock& one) {
    return one.block < sink_blocks() || one.block >= first_recent;
  };
  const auto tokens_of = [&](const HeldBlock& one) {
    return std::min(kHeavyBlock, position - one.block * kHeavyBlock);
  };
  uint32_t tokens = 0, safe_tokens = 0;
  bool has_far = false;
  for (size_t i = 0; i < held.size(); ++i) {
    HeldBlock& one = held[i];
    tokens += tokens_of(one);
    if (is_safe(one)) {
      safe_tokens += tokens_of(one);
    } else {
      has_far |= IsFar(one.block, position);
    }
    const bool has_before = i > 0 && held[i - 1].block + 1 == one.block;
    const bool has_after = i + 1 < held.size() && one.block + 1 == held[i + 1].block;
    one.score = one.sum + kNeighbourShare * ((has_before ? held[i - 1].sum : 0.0f) +
                                             (has_after ? held[i + 1].sum : 0.0f));
    one.stays = true;
  }
  const bool dropped_before = position > inexact_from_;
  if (tokens <= budget_ && !(has_far && dropped_before)) return false;
  uint32_t room = (budget_ - std::min(budget_, safe_tokens)) / kHeavyBlock;
  const auto rest_end =
      std::partition(held.begin(), held.end(), [&](const HeldBlock& one) { return !is_safe(one); });
  std::sort(held.begin(), rest_end, [](const HeldBlock& a, const HeldBlock& b) {
    return a.score != b.score ? a.score > b.score : a.block > b.block;
  });
  for (auto one = held.begin(); one != rest_end; ++one) {
    one->stays = room > 0 && !IsFar(one->block, position);
    room -= one->stays;
  }
  std::sort(held.begin(), held.end(),
            [](const HeldBlock& a, const HeldBlock& b) { return a.block < b.block; });
  return true;
}

}  // namespace kvasir
