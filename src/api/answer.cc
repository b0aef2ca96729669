#include "api/answer.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace kvasir {
namespace {

constexpr uint64_t kTextBytes = 8;  // average of a token, with the spare capacity of strings

// Memory of the deques of each choice, which allocate a first block.
constexpr uint64_t kDequeBytes = 512 + 64 + 2 * 16;

}  // namespace

Answer::Answer(AnswerSpec spec, size_t num_prompts, std::string id, int64_t created_unix_s,
               const Tokenizer* tokenizer)
    : spec_(std::move(spec)),
      tokenizer_(tokenizer),
      id_(spec_.id_prefix + id),
      created_unix_s_(created_unix_s),
      choices_(num_prompts * spec_.n),
      receipts_(spec_.keeps_receipts ? num_prompts : 0),
      prompt_timings_(receipts_.size()),
      open_prompts_(num_prompts),
      open_choices_(choices_.size()) {
  held_bytes_ = sizeof(Answer) + choices_.size() * (sizeof(Choice) + 3 * kDequeBytes) +
                receipts_.size() * (sizeof(Receipt) + sizeof(Timings));
  for (const std::string& text : spec_.echo) held_bytes_ += sizeof(text) + text.capacity();
  for (size_t i = 0; spec_.reading && i < choices_.size(); ++i) {
    choices_[i].read.reset(
        new Pieces{AnswerPieces(spec_.reading, id_, static_cast<uint32_t>(i), spec_.call_prefix)});
    held_bytes_ += sizeof(Pieces) + choices_[i].read->pieces.held_bytes();
  }
  scored_prompts_.resize(spec_.scored_from.size());
  for (size_t i = 0; i < spec_.scored_from.size(); ++i) {
    scored_texts_.push_back(tokenizer_->StartDecoder(SpecialTokens::kShow));
    AddScored(i, {.id = spec_.scored_from[i], .logprob = kNoLogprob});
  }
}

// Takes a token of a prompt. The first one may not be in the echo: the tokenizer may have added it.
void Answer::AddScored(size_t prompt, GeneratedToken token) {
  scored_texts_[prompt]->Append(token.id, &token.text);
  const bool is_first = std::isnan(token.logprob);
  if (is_first && !spec_.echo[prompt].starts_with(token.text)) token.text.clear();
  const uint64_t bytes = ScoredTokens::TokenBytes(token.top.size());
  if (spec_.stream) {
    held_bytes_ += bytes + sizeof(token);
    scored_prompts_[prompt].push_back(std::move(token));
    return;
  }
  for (size_t i = 0; i < spec_.n; ++i) choices_[prompt * spec_.n + i].scored.Add(token);
  held_bytes_ += bytes * spec_.n;
}

uint64_t Answer::ExpectedBytes(uint64_t tokens) const {
  uint64_t token_bytes = kTextBytes, scored_bytes = 0;
  if (spec_.keeps_ids) token_bytes += sizeof(TokenId);
  if (spec_.logprobs) {
    const uint64_t of_token = ScoredTokens::TokenBytes(*spec_.logprobs);
    token_bytes += of_token;
    if (!spec_.stream) scored_bytes = spec_.scored_tokens * of_token;
  }
  return held_bytes_ + tokens * token_bytes + scored_bytes;
}

std::string_view Answer::EchoOf(size_t choice) const {
  return spec_.echo.empty() ? std::string_view() : spec_.echo[PromptOf(choice)];
}

std::span<const GeneratedToken> Answer::ScoredPrompt(size_t prompt) const {
  return scored_prompts_.empty() ? std::span<const GeneratedToken>() : scored_prompts_[prompt];
}

std::optional<uint64_t> Answer::reasoning_tokens() const {
  // Without calls and marks: the prompt has closed the thought, which has no tokens here.
  if (!spec_.reading || (!spec_.reading->think && spec_.reading->calls)) return std::nullopt;
  uint64_t tokens = 0;
  for (const Choice& choice : choices_) tokens += choice.read->pieces.reasoning_tokens();
  return tokens;
}

Answer::Step Answer::Take(size_t prompt, const Event& event) {
  Step step = {.choice = static_cast<uint32_t>(prompt * spec_.n + event.choice)};
  Choice& choice = choices_[step.choice];
  choice.num_tokens += static_cast<uint32_t>(event.tokens.size());
  step.finishes =
      event.finish_reason != FinishReason::kNone && choice.finish == FinishReason::kNone;
  if (step.finishes) {
    choice.finish = event.finish_reason;
    choice.stop_match = event.stop_match;
    --open_choices_;
  }
  for (const GeneratedToken& token : event.scored) AddScored(prompt, token);
  if (choice.read && (step.finishes || !event.tokens.empty() || !event.text.empty())) {
    const uint64_t held = choice.read->pieces.held_bytes();
    step.pieces = choice.read->pieces.Take(event);
    held_bytes_ += choice.read->pieces.held_bytes() - held;
  }
  if (!spec_.stream) Collect(&choice, event, std::exchange(step.pieces, {}));
  if (event.last) {
    AddReceipt(prompt, event);
    --open_prompts_;
  }
  return step;
}

void Answer::Collect(Choice* choice, const Event& event, std::vector<AnswerEvent> pieces) {
  const auto text_bytes = [choice] {
    return choice->text.capacity() + (choice->read ? choice->read->reasoning.capacity() : 0);
  };
  const uint64_t before = text_bytes();
  if (!choice->read) choice->text += event.text;
  for (AnswerEvent& piece : pieces) {
    switch (piece.kind) {
      case AnswerEvent::Kind::kContent:
        choice->text += piece.text;
        break;
      case AnswerEvent::Kind::kReasoning:
        choice->read->reasoning += piece.text;
        break;
      case AnswerEvent::Kind::kCallBegin:
        choice->read->calls.push_back({std::move(piece.text), "", std::move(piece.id)});
        choice->read->calls_at.push_back(choice->text.size());
        held_bytes_ +=
            sizeof(ToolCall) + sizeof(size_t) + choice->read->calls.back().name.capacity();
        break;
      case AnswerEvent::Kind::kArguments:
        choice->read->calls.back().arguments += piece.text;
        held_bytes_ += piece.text.size();
        break;
      case AnswerEvent::Kind::kCallEnd:
        break;
    }
  }
  held_bytes_ += text_bytes() - before;
  for (const GeneratedToken& token : event.tokens) {
    if (spec_.keeps_ids) {
      choice->ids.push_back(token.id);
      held_bytes_ += sizeof(TokenId);
    }
    if (!spec_.logprobs) continue;
    choice->scored.Add(token);
    held_bytes_ += ScoredTokens::TokenBytes(token.top.size());
  }
}

void Answer::AddReceipt(size_t prompt, const Event& event) {
  uint32_t with_tokens = 0, longest = 0;
  for (const Choice& choice : std::span(choices_).subspan(prompt * spec_.n, spec_.n)) {
    with_tokens += choice.num_tokens > 0;
    longest = std::max(longest, choice.num_tokens);
  }
  const Receipt& one = event.receipt;
  const Timings timings = kvasir::TimingsOf(one, event.completion_tokens, with_tokens, longest);
  if (spec_.keeps_receipts) {
    receipts_[prompt] = one;
    prompt_timings_[prompt] = timings;
  }
  timings_.Add(timings);
  completion_tokens_ += event.completion_tokens;
  if (open_prompts_ == num_prompts()) {
    receipt_ = one;
    return;
  }
  receipt_.Add(one);
}

}  // namespace kvasir
