// RetentionChoice: what a sequence keeps of itself when it grows, as a user asks for it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "kvasir/status.h"

namespace kvasir {

// What a token sees of those before it, once it is not one of the exact ones: all; the last
// `budget` tokens; the first `sinks` and the last budget - sinks; the blocks of 16 tokens that
// later tokens weighed most. docs/retention.md defines each.
enum class Retention : uint8_t { kFull, kWindow, kSinksWindow, kHeavy };
inline constexpr uint32_t kNumRetentions = 4;
const char* ToString(Retention policy);  // "full", "window", "sinks+window", "heavy"
std::optional<Retention> ParseRetention(std::string_view name);
std::string RetentionNames();  // "full, window, sinks+window, heavy", for messages

// The longest prompt and answer of a sequence that does not keep all.
inline constexpr uint32_t kMaxRetainedTokens = 1 << 20;
inline constexpr uint32_t kMinRetentionBudget = 16;
// Tokens of a block that heavy keeps or drops whole; its budget is a multiple of them.
inline constexpr uint32_t kHeavyBlock = 16;
inline constexpr uint32_t kMinHeavyBudget = 64;

// Absent numbers: the defaults of RetentionPolicy.
struct RetentionChoice {
  Retention policy = Retention::kFull;
  std::optional<uint32_t> budget;  // tokens that a token sees at most, itself included
  std::optional<uint32_t> sinks;   // the first tokens of the text, which stay
  std::optional<uint32_t> recent;  // of heavy: the last tokens, whose blocks a decision keeps
  bool keeps_context = false;      // instead of a budget: the context, whatever its size
  // Instead of sinks, as llama-server's n_keep counts them: without a BOS; -1: the prompt; at most
  // half of the budget.
  std::optional<int32_t> keep;
  // Tokens before this one see all before them; absent: the prompt's.
  std::optional<uint32_t> exact_tokens;

  bool operator==(const RetentionChoice&) const = default;
};

// Reads "POLICY" or "POLICY:budget=N,sinks=N,recent=N". kInvalidArgument (field "retention") says
// what is wrong: an unknown policy or key, or what is not a number.
Result<RetentionChoice> ParseRetentionChoice(std::string_view text);

// What retention did to a request: of its longest choice.
struct RetentionReceipt {
  Retention policy = Retention::kFull;
  uint32_t budget = 0, sinks = 0, recent = 0;
  uint32_t kept = 0,
           dropped = 0;    // tokens that the last computed one sees, and those that it lacks
  uint32_t decisions = 0;  // that dropped blocks by their weights; windows need none
  // The first token that misses one before it; absent: none did.
  std::optional<uint32_t> inexact_from;
};

}  // namespace kvasir
