// What must be erased from the cache when a session, or a part of it, is forgotten.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "api/chat_prompt.h"
#include "kvasir/engine.h"
#include "kvasir/session.h"

namespace kvasir {

// The owner of a cache, and what else the same tenant says.
struct ForgetScope {
  const ModelView& model;
  std::string cache_owner;  // ForgetRequest::owner
  std::vector<std::shared_ptr<const SessionState>> others;
  // Where all layers have windows, blocks do not say what they come after: a forget takes all that
  // is not in a kept prompt. Else only what prompts have in common with the forgotten one matters.
  bool keeps_whole = false;
};

struct Forgetting {
  SessionState state;                   // the session without the part
  std::vector<ForgetRequest> requests;  // for Engine::Forget
};

// Takes a part out of a session. Errors: as Remove. O(ids of all paths of the session and of
// others).
Result<Forgetting> ForgetPart(SessionStore& store, const SessionState& state,
                              const SessionPart& part, const ForgetScope& scope);
// Returns what forgets a whole session.
std::vector<ForgetRequest> ForgetAll(const SessionState& state, const ForgetScope& scope);
// Returns what forgets a prompt that is in no session. REQUIRES: it has tokens.
ForgetRequest ForgetPrompt(std::vector<TokenId> ids, const std::optional<std::string>& cache_salt,
                           const ForgetScope& scope);

}  // namespace kvasir
