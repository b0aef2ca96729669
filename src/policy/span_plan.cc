#include "policy/span_plan.h"

#include <charconv>

#include "base/bytes.h"
#include "base/result.h"

namespace kvasir {
namespace {

// Reads a number at the beginning of `text`, and takes it off.
std::optional<uint32_t> TakeNumber(std::string_view& text) {
  uint32_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc()) return std::nullopt;
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  return number;
}

Status CheckSpan(const PromptSpans& choice, size_t index, uint32_t prompt_tokens) {
  const PromptSpan& span = choice.spans[index];
  const auto refuse = [&](const std::string& what) {
    auto failed =
        FailField(Code::kInvalidArgument, "spans", "[{}, {}] {}", span.begin, span.end, what);
    failed.value().index = index;
    return failed;
  };
  if (span.begin >= span.end) return refuse("is empty or runs backwards");
  if (span.end > prompt_tokens) {
    return refuse("ends after the prompt, which has " + std::to_string(prompt_tokens) + " tokens");
  }
  if (index == 0 || choice.spans[index - 1].end <= span.begin) return {};
  return refuse("begins before the end of the span before it, " +
                std::to_string(choice.spans[index - 1].end));
}

}  // namespace

Result<std::vector<PromptSpan>> ParsePromptSpans(std::string_view text) {
  std::vector<PromptSpan> spans;
  for (std::string_view rest = text; spans.empty() || !rest.empty();) {
    const auto begin = TakeNumber(rest);
    const bool has_colon = begin && rest.starts_with(':');
    if (has_colon) rest.remove_prefix(1);
    const auto end = has_colon ? TakeNumber(rest) : std::nullopt;
    if (!end || (!rest.empty() && (rest[0] != ',' || rest.size() == 1))) {
      return FailField(Code::kInvalidArgument, "spans",
                       "'{}' is not a list of BEGIN:END, such as 21:61,61:98", text);
    }
    if (!rest.empty()) rest.remove_prefix(1);
    spans.push_back({*begin, *end});
  }
  return spans;
}

Result<SpanPlan> SpanPlan::Create(const PromptSpans& choice, uint32_t prompt_tokens) {
  if (choice.spans.size() > kMaxSpans) {
    return FailField(Code::kInvalidArgument, "spans", "{} spans; a prompt has at most {}",
                     choice.spans.size(), kMaxSpans);
  }
  if (choice.seam > kMaxSeamTokens) {
    return FailField(Code::kInvalidArgument, "seam", "{} is not in [0, {}]", choice.seam,
                     kMaxSeamTokens);
  }
  for (size_t i = 0; i < choice.spans.size(); ++i) {
    KV_TRY(CheckSpan(choice, i, prompt_tokens));
  }
  SpanPlan plan;
  plan.choice_ = choice;
  if (choice.spans.empty()) return plan;
  const uint32_t first = choice.spans[0].begin;
  plan.head_ = choice.head.value_or(first);
  if (plan.head_ > first) {
    return FailField(Code::kInvalidArgument, "span_head",
                     "{} is not in [0, {}], up to the first span", plan.head_, first);
  }
  for (const PromptSpan& span : choice.spans) {
    if (span.end - span.begin < kMinSpanTokens || span.begin == plan.head_) continue;
    const uint32_t read_begin = std::min(span.begin + choice.seam, span.end);
    const uint32_t read_end = std::min(span.end, prompt_tokens - 1);
    if (read_begin >= read_end) continue;
    plan.parts_.push_back({span.begin, read_begin, read_end, span.end, span.begin - plan.head_});
  }
  return plan;
}

std::vector<TokenId> SpanPlan::TextOf(const Part& part, std::span<const TokenId> prompt) const {
  std::vector<TokenId> text;
  text.reserve(TokensOf(part));
  text.assign(prompt.begin(), prompt.begin() + head_);
  text.insert(text.end(), prompt.begin() + part.begin, prompt.begin() + part.end);
  return text;
}

uint32_t SpanPlan::NumBefore(uint32_t position) const {
  const auto after = std::ranges::upper_bound(parts_, position, {}, &Part::read_end);
  return static_cast<uint32_t>(after - parts_.begin());
}

uint32_t SpanPlan::RowsFrom(uint32_t position) const {
  if (!IsInexact(position)) return inexact_from() - position;
  const uint32_t next = NumBefore(position);
  if (next == parts_.size()) return std::numeric_limits<uint32_t>::max();
  return parts_[next].read_begin - std::min(position, parts_[next].read_begin);
}

uint32_t SpanPlan::ReadBefore(uint32_t position) const {
  uint32_t tokens = 0;
  for (const Part& part : parts_) {
    tokens += std::min(std::max(position, part.read_begin), part.read_end) - part.read_begin;
  }
  return tokens;
}

uint32_t SpanPlan::BlocksNotWritten(uint32_t block_tokens) const {
  uint64_t blocks = 0;
  for (const Part& part : parts_) {
    const uint64_t first = CeilDiv(part.read_begin, block_tokens);
    blocks += std::max<uint64_t>(first, part.read_end / block_tokens) - first;
  }
  return static_cast<uint32_t>(blocks);
}

uint64_t SpanPlan::BlocksOf(const Part& part, uint32_t block_tokens) const {
  // One more for the copy of a block that it shares with others and goes on in.
  return CeilDiv(TokensOf(part), block_tokens) - head_ / block_tokens + 1;
}

uint64_t SpanPlan::BlocksOfParts(uint32_t block_tokens) const {
  uint64_t blocks = 0;
  for (const Part& part : parts_) blocks += BlocksOf(part, block_tokens);
  return blocks;
}

}  // namespace kvasir
