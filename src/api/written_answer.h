// WrittenAnswer: an answer and the writer that gives it a form.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "api/answer.h"
#include "api/answer_keeper.h"
#include "api/answer_writer.h"
#include "base/parts.h"
#include "kvasir/engine_event.h"

namespace kvasir {

// Takes the events of an answer and gives what to send. One thread at a time.
class WrittenAnswer {
 public:
  // `tokenizer` may be null and must outlive this. `id` is without its prefix.
  WrittenAnswer(AnswerSpec spec, size_t num_prompts, std::string id, int64_t created_unix_s,
                const Tokenizer* tokenizer, std::unique_ptr<AnswerWriter> writer);

  // REQUIRES: no event was taken yet.
  void KeepIn(std::unique_ptr<AnswerKeeper> keeper) { keeper_ = std::move(keeper); }
  // Counts what else stays until the answer's end counts in held_bytes().
  void Hold(uint64_t bytes) { other_bytes_ += bytes; }
  // Returns the keeper: who takes it passes the later events to it.
  std::unique_ptr<AnswerKeeper> TakeKeeper() { return std::move(keeper_); }
  bool keeps_on_disk() const { return keeper_ && keeper_->waits_for_disk(); }

  // Takes one event of a prompt's request. Returns what to stream now; "" when not streaming.
  std::string Take(size_t prompt, const Event& event);

  bool done() const { return answer_.open_prompts() == 0 || error_; }
  // Returns the first error. Later events are ignored; the caller should cancel the other requests.
  const std::optional<Error>& error() const { return error_; }
  std::string PingEvent() const { return writer_->PingEvent(answer_); }
  std::string ErrorEvent(const Error& error) const { return writer_->ErrorEvent(error); }
  // Returns the whole stream of a request without prompts.
  std::string EmptyStream() const { return writer_->EmptyStream(answer_); }
  // Returns the whole answer; `this` must outlive it. REQUIRES: done() without error(), not
  // streaming.
  Parts Body() const { return writer_->Body(answer_); }
  // Counts the bytes that this holds until its end, except text that waits in a stream; grows with
  // each event.
  uint64_t held_bytes() const { return HeldBeside() + answer_.held_bytes(); }
  // Returns the expected limit of held_bytes() for `tokens` generated tokens:
  // Answer::ExpectedBytes.
  uint64_t ExpectedBytes(uint64_t tokens) const {
    return HeldBeside() + answer_.ExpectedBytes(tokens);
  }
  const std::string& id() const { return answer_.id(); }
  bool streams() const { return answer_.spec().stream; }
  const Answer& answer() const { return answer_; }
  const AnswerWriter& writer() const { return *writer_; }

 private:
  uint64_t HeldBeside() const {
    return other_bytes_ + writer_->held_bytes() + (keeper_ ? keeper_->held_bytes() : 0);
  }
  std::string TakeProgress(const Answer::Step& step, const Progress& now);

  Answer answer_;
  const std::unique_ptr<AnswerWriter> writer_;
  std::unique_ptr<AnswerKeeper> keeper_;
  std::vector<bool> told_progress_;  // [choice]: an event told of it
  std::optional<Error> error_;
  uint64_t other_bytes_ = 0;
};

}  // namespace kvasir
