// OtherPrompts: what a tenant's other sessions say, which a forget of one of them leaves in the
// cache.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "api/session_prompt.h"
#include "kvasir/engine.h"
#include "kvasir/session.h"

namespace kvasir {

// The owner of a cache, and what else the same tenant says.
struct ForgetScope {
  const ModelView& model;
  std::string cache_owner;  // ForgetRequest::owner of what is read now
  std::vector<std::shared_ptr<const SessionState>> others;
  // Where all layers have windows, blocks do not say what they come after: a forget takes all that
  // is not in a kept prompt. Else only what prompts have in common with the forgotten one matters.
  bool keeps_whole = false;

  // Returns the owner of the cache that a path was read in.
  const std::string& OwnerOf(const PathSpace& space) const {
    return space.owner ? *space.owner : cache_owner;
  }
  // Returns whether a request forgets from the namespace of a path.
  bool IsIn(const PathSpace& space, const ForgetRequest& request) const {
    return OwnerOf(space) == request.owner && space.salt == request.cache_salt &&
           space.adapters == request.adapters;
  }
};

// The prompts of the other sessions. Those that a session has not read yet are rendered, at most
// kMostRenderedBytes of text in all: of more sessions only the messages count with which the
// session begins that forgets. One thread.
class OtherPrompts {
 public:
  static constexpr size_t kMostRenderedBytes = size_t{1} << 20;

  // `own` is the session that forgets, `now` its prompt, if it has one. All must outlive this.
  OtherPrompts(const ForgetScope& scope, const SessionState& own, const SessionPrompt* now)
      : scope_(scope), own_(own), now_(now) {}

  // Returns those that have the first token of what a request forgets. O(paths of others, and ids
  // that they share with it).
  std::vector<std::vector<TokenId>> For(const ForgetRequest& request);

 private:
  using Ids = std::vector<TokenId>;
  void FindEnds();
  void FindUnread();
  Ids UnreadOf(const SessionState& state, size_t* bytes_left) const;

  const ForgetScope& scope_;
  const SessionState& own_;
  const SessionPrompt* const now_;
  std::optional<std::vector<std::vector<uint32_t>>> ends_;  // [others][paths]: ids that they say
  std::optional<std::vector<Ids>> unread_;
};

}  // namespace kvasir
