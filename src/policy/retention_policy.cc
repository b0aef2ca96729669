#include "policy/retention_policy.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <limits>

#include "base/result.h"

namespace kvasir {
namespace {

constexpr std::array<const char*, kNumRetentions> kRetentionNames = {"full", "window",
                                                                     "sinks+window"};
constexpr uint32_t kDefaultBudget = 2048, kDefaultSinks = 4;

Result<uint32_t> RetentionNumber(std::string_view key, std::string_view text) {
  uint32_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error == std::errc() && end == text.data() + text.size()) return number;
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
  text.remove_prefix(std::min(colon + 1, text.size()));
  while (!text.empty()) {
    const std::string_view pair = text.substr(0, text.find(','));
    text.remove_prefix(std::min(pair.size() + 1, text.size()));
    const std::string_view key = pair.substr(0, pair.find('='));
    if (pair == "budget=context") {
      choice.keeps_context = true;
      continue;
    }
    if (key == "keep") {
      KV_ASSIGN(choice.keep, KeptNumber(pair));
      continue;
    }
    std::optional<uint32_t>* const field = key == "budget"  ? &choice.budget
                                           : key == "sinks" ? &choice.sinks
                                                            : nullptr;
    if (field == nullptr || key.size() == pair.size()) {
      return FailField(Code::kInvalidArgument, "retention",
                       "'{}' is not budget=N or sinks=N, separated by commas", pair);
    }
    KV_ASSIGN(*field, RetentionNumber(key, pair.substr(key.size() + 1)));
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
  KV_TRY(InRetentionRange("retention.budget", policy.budget_, kMinRetentionBudget, text.ctx_size,
                          ", up to the context"));
  const bool has_sinks = choice.policy == Retention::kSinksWindow;
  if (choice.sinks && !has_sinks) {
    return FailField(Code::kInvalidArgument, "retention.sinks",
                     "is for the policy sinks+window, not for {}", ToString(choice.policy));
  }
  policy.sinks_ = !has_sinks  ? 0
                  : text.keep ? std::min(*text.keep, policy.budget_ / 2)
                              : choice.sinks.value_or(kDefaultSinks);
  KV_TRY(InRetentionRange("retention.sinks", policy.sinks_, 0, policy.budget_ / 2,
                          ", up to half of the budget"));
  policy.exact_tokens_ = choice.exact_tokens.value_or(text.prompt_tokens);
  KV_TRY(InRetentionRange("retention.exact_tokens", choice.exact_tokens.value_or(0), 0,
                          text.ctx_size, ", up to the context"));
  policy.inexact_from_ = text.is_dropped ? std::max(policy.exact_tokens_, policy.budget_)
                                         : std::numeric_limits<uint32_t>::max();
  return policy;
}

}  // namespace kvasir
