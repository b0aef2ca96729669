// What must be erased from the cache when a session, or a part of it, is forgotten.
#pragma once

#include <span>
#include <vector>

#include "api/other_prompts.h"
#include "kvasir/engine.h"
#include "kvasir/session.h"

namespace kvasir {

struct Forgetting {
  SessionState state;                   // the session without the part
  std::vector<ForgetRequest> requests;  // for Engine::Forget
};

// Returns what forgets messages of a session. `changed`: the session in which they are gone, or
// have another text. O(ids of all paths of the session and of others).
Forgetting ForgetMessages(SessionStore& store, const SessionState& state, SessionState changed,
                          const MessageRange& messages, const ForgetScope& scope);
// Takes a part out of a session. Errors: as Remove. O(the same).
Result<Forgetting> ForgetPart(SessionStore& store, const SessionState& state,
                              const SessionPart& part, const ForgetScope& scope);
// Returns what forgets a whole session.
std::vector<ForgetRequest> ForgetAll(const SessionState& state, const ForgetScope& scope);
// Returns what forgets a prompt that is in no session. REQUIRES: it has tokens.
ForgetRequest ForgetPrompt(std::vector<TokenId> ids, const PathSpace& space,
                           const ForgetScope& scope);

}  // namespace kvasir
