// SessionGenerator: answers in sessions.
#pragma once

#include "api/turn_preparer.h"
#include "server/call.h"
#include "server/generation_starter.h"
#include "server/outcome.h"

namespace kvasir {

// Thread-safe. The calls have a turn in the session.
class SessionGenerator {
 public:
  // REQUIRES: both outlive this and the answers.
  SessionGenerator(GenerationStarter& generations, TurnPreparer& preparer)
      : generations_(generations), preparer_(preparer) {}

  // Starts the answer to the session's last message.
  Outcome Generate(const Call& call);
  // Prepares the next turn after an answer that the client gave.
  void PrepareAppended(const Call& call);

 private:
  GenerationStarter& generations_;
  TurnPreparer& preparer_;
};

}  // namespace kvasir
