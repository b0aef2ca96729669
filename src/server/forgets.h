// Forgets: how sessions and slots have the engine forget what they name.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "api/session_forget.h"
#include "kvasir/session.h"
#include "server/call.h"
#include "server/kept_texts.h"
#include "server/outcome.h"

namespace kvasir {

// Returns whose cache the call is about, and what else its tenant says. The
// call's model must outlive it.
ForgetScope ScopeOf(const Call& call, const SessionStore& sessions);

// Returns an answer for a call that has changed its session: the engine forgets
// the requests, and the answer is `body` with the sums, or why the disk still
// has the session. The turn ends before it. REQUIRES: the call has a turn.
LaterAnswer ForgetAnswer(const Call& call, std::vector<ForgetRequest> requests, nlohmann::json body,
                         const Status& on_disk);
// Returns the same where it is not known what the session has read: everything of the caller leaves
// the cache.
LaterAnswer EraseAnswer(const Call& call, nlohmann::json body, const Status& on_disk);

// Deletes the session or response of the call's turn and forgets all of it. `object`: of the
// answer.
Outcome DeleteKept(const Call& call, const SessionStore& sessions, KeptTexts& texts,
                   const char* object);
// Does the same where no memory is left to read it: then all that the caller has in the cache goes.
Outcome DeleteUnreadKept(const Call& call, KeptTexts& texts, const char* object);

}  // namespace kvasir
