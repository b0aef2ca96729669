// GenerationStarter: makes a generation of a request that a protocol has parsed.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "api/asked_chat.h"
#include "api/generation_call.h"
#include "observe/span_exporter.h"
#include "server/call.h"
#include "server/outcome.h"
#include "server/slots.h"

namespace kvasir {

// Adds to parsed requests what the server says of them: tenant, id, time limit, priority, trace,
// the answer and its memory. Thread-safe.
class GenerationStarter {
 public:
  // `spans`: where traced requests go; null: none are traced. The others must outlive this and the
  // answers.
  GenerationStarter(const ServerOptions& options, const Engine& engine, const ModelView& model,
                    Slots& slots, std::shared_ptr<SpanExporter> spans);

  // Returns a GenerationStart, or the error's answer. `prompt_field`: what the request calls its
  // prompt.
  Outcome Start(Result<GenerationCall> call, const Call& from, std::string prompt_field);
  // Keeps the chat until its answer has come, if something follows from it: it explains a miss by
  // its answers or by the lines of other chats, or prepares the next turn. `heads`: the tenant's.
  void Follow(std::shared_ptr<AskedChat> chat, const HeadSpace& heads, bool has_answers,
              bool prepares, GenerationStart* start) const;
  // Starts a chat, and keeps it as the chat completion `chat`; "": it is not one.
  Outcome StartChat(Result<GenerationCall> call, std::string chat, const Call& from,
                    std::string prompt_field, TurnPreparer& preparer);
  // Sets the smallest of the times that the body, the header and the operator allow.
  void LimitTime(const HttpRequest& head, GenerateRequest* request) const;

 private:
  // Keeps a chat completion, by its body. The others must outlive it.
  void FollowChat(std::string body, const Call& from, TurnPreparer& preparer,
                  GenerationStart* start) const;
  Status Trace(std::string_view traceparent, const std::string& id, GenerateRequest& request) const;
  void NoteUnseen(std::span<const std::string> names);

  const ServerOptions& options_;
  const Engine& engine_;
  const ModelView& model_;
  Slots& slots_;
  const std::shared_ptr<SpanExporter> spans_;  // requests share it until they end
  const std::string fingerprint_;
  const uint64_t max_answer_bytes_;
  std::atomic<bool> noted_tools_{false}, noted_messages_{false};
};

}  // namespace kvasir
