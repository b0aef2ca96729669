#include "api/written_answer.h"

namespace kvasir {
namespace {

std::optional<Error> ErrorOf(const Event& event) {
  if (event.error) return *event.error;
  if (event.finish_reason != FinishReason::kError &&
      event.finish_reason != FinishReason::kCancelled) {
    return std::nullopt;
  }
  return Error{Code::kUnavailable, "the generation was cancelled: the server is stopping"};
}

}  // namespace

WrittenAnswer::WrittenAnswer(AnswerSpec spec, size_t num_prompts, std::string id,
                             int64_t created_unix_s, const Tokenizer* tokenizer,
                             std::unique_ptr<AnswerWriter> writer)
    : answer_(std::move(spec), num_prompts, std::move(id), created_unix_s, tokenizer),
      writer_(std::move(writer)),
      told_progress_(answer_.choices().size()) {
  writer_->Begin(answer_);
}

std::string WrittenAnswer::Take(size_t prompt, const Event& event) {
  if (done()) return "";
  error_ = ErrorOf(event);
  if (!error_ && keeper_) {
    keeper_->Take(event);
    if (const Status kept = event.last ? keeper_->Finish() : Status(); !kept) error_ = kept.error();
  }
  if (error_) return "";
  const Answer::Step step = answer_.Take(prompt, event);
  writer_->See(answer_, step, event);
  if (!streams()) return "";
  std::string out;
  const bool answers = answer_.choice(step.choice).num_tokens > event.tokens.size();
  if (event.progress && answer_.spec().return_progress && !answers) {
    out = TakeProgress(step, *event.progress);
  }
  if (step.finishes || !event.tokens.empty() || !event.text.empty()) {
    out += writer_->StepEvents(answer_, step, event);
  }
  if (event.last) out += writer_->EndEvents(answer_, prompt);
  return out;
}

std::string WrittenAnswer::TakeProgress(const Answer::Step& step, const Progress& now) {
  std::string out;
  // What the cache had, before what was computed.
  if (!told_progress_[step.choice] && now.processed > now.cached) {
    out = writer_->ProgressEvent(
        answer_, step.choice, {.total = now.total, .processed = now.cached, .cached = now.cached});
  }
  told_progress_[step.choice] = true;
  return out + writer_->ProgressEvent(answer_, step.choice, now);
}

}  // namespace kvasir
