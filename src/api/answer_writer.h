// AnswerWriter: a protocol's form of an answer.
#pragma once

#include <cstdint>
#include <string>

#include "api/answer.h"
#include "base/parts.h"
#include "kvasir/engine_event.h"

namespace kvasir {

// Writes one answer, as a body or as server-sent events ("" where there is nothing to say). Each
// protocol has its own, which the protocol's parser makes. One thread at a time.
class AnswerWriter {
 public:
  virtual ~AnswerWriter() = default;

  // Returns the Content-Type of a stream; lives for ever.
  virtual const char* StreamType() const { return "text/event-stream; charset=utf-8"; }
  // Begins an answer: comes before any event.
  virtual void Begin(const Answer& /*answer*/) {}
  // Sees every event without an error, right after the answer has taken it.
  virtual void See(const Answer& /*answer*/, const Answer::Step& /*step*/, const Event& /*event*/) {
  }
  // Returns what a stream says of tokens or text, or of the end of a choice.
  virtual std::string StepEvents(const Answer& answer, const Answer::Step& step,
                                 const Event& event) = 0;
  // Returns what a stream says of a prompt that is being read, if the request asks for it.
  virtual std::string ProgressEvent(const Answer& answer, uint32_t choice,
                                    const Progress& progress) = 0;
  // Returns what a stream says after the last event of a prompt. No open prompts: the stream ends.
  virtual std::string EndEvents(const Answer& answer, size_t prompt) = 0;
  // Returns the whole stream of a request that has nothing to generate, if there are such.
  virtual std::string EmptyStream(const Answer& /*answer*/) const { return ""; }
  // Returns what a stream says after a while without an event, so that no proxy on the way, nor the
  // client, ends it.
  virtual std::string PingEvent(const Answer& /*answer*/) { return ": ping\n\n"; }
  // Returns the event that ends a stream which had begun before the error.
  virtual std::string ErrorEvent(const Error& error) const = 0;
  // Returns the whole answer, unless it streams; both must outlive the result.
  virtual Parts Body(const Answer& answer) const = 0;
  // Counts the bytes that this holds beside the answer.
  virtual uint64_t held_bytes() const = 0;
};

}  // namespace kvasir
