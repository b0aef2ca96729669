// AskedChat: the chat that an answer is generated for, until what follows from it is done.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "api/answer.h"
#include "api/chat_prompt.h"
#include "api/turn_preparer.h"
#include "kvasir/engine_event.h"
#include "kvasir/generate_request.h"
#include "kvasir/session.h"

namespace kvasir {

// A chat completion, or a generate of a session. Says why its prompt diverged from what the cache
// has, and prepares the next turn: one call at a time.
class AskedChat {
 public:
  // Nothing is kept of a longer body: then a miss is `diverged`, and no turn is prepared.
  static constexpr size_t kMaxBodyBytes = size_t{1} << 20;
  static constexpr size_t kMostVolatileLines = 4;

  // `body`: of a chat completion. The others must outlive this.
  AskedChat(std::string body, const ModelView& model, TurnPreparer& preparer);
  // `state`: of a session, with what the answer answers.
  AskedChat(SessionState state, const ModelView& model, TurnPreparer& preparer);

  // Keeps the head of the prompt of `request`, which `answer` will answer, and has a miss explained
  // by those of chats before. Does the comparison that the answer has, if it has one.
  void NoteHead(PromptHead head, const GenerateRequest& request, HeadSpace heads,
                const Answer& answer);

  // Has the next turn prepared after the answer to `request`. REQUIRES: the request has its tenant,
  // and may share the cache.
  void PrepareAfter(const GenerateRequest& request);
  bool prepares() const { return request_.has_value(); }
  // Adds to the answer's text, of a chat completion.
  void Take(const Event& event) {
    if (prepares() && !is_session_) answer_ += event.text;
  }
  // Takes the turn of a session that has the answer. The turn ends when the next one was prepared.
  void Take(std::shared_ptr<SessionStore::Turn> turn) { turn_ = std::move(turn); }

  // Tells whether Explain may find another reason, or find lines. O(messages after the
  // miss).
  bool MayExplain(const Miss& miss) const;
  struct Explained {
    MissReason reason;
    std::vector<VolatileLine> lines;
  };
  // Returns the reason of the miss, or what kDiverged comes from; and which lines changed since a
  // chat that the tenant asked before, where the miss comes from that: at most kMostVolatileLines,
  // each with as many equal lines after it as have 64 tokens, or next to such a one. O(a few
  // renderings + lines of the tenant's chats).
  Explained Explain(const Miss& miss) const;
  // Renders what the next turn will show of this chat, and has it computed while nothing else
  // waits. What a session reads then is among its paths first. O(text).
  void PrepareNext();

  // Returns the bytes beside the parts of a session's state, which its store counts.
  uint64_t held_bytes() const;
  size_t work_bytes() const { return work_bytes_; }  // of text that is rendered

 private:
  Result<JsonValue> Chat(JsonTree* tree) const;
  bool IsShown(size_t index) const;  // of a session: its prompt has this message
  bool MayHaveOtherReason(const Miss& miss) const;
  MissReason ReasonOf(const Miss& miss, const JsonValue& chat, JsonTree* tree) const;
  std::vector<VolatileLine> LinesOf(std::span<const LineChange> changes, uint32_t at_token,
                                    const JsonValue& chat, JsonTree* tree) const;
  // Returns, for a session, whether an answer is at the missed message or after it.
  bool MayBeRewritten(const Miss& miss) const;
  // Tells whether something that the session has read goes on after the missed token.
  bool MayBeRetokenized(const Miss& miss) const;
  bool IsRetokenized(const Miss& miss) const;
  Result<ChatPrompt> NextOfBody() const;
  Result<ChatPrompt> NextOfSession();
  GenerateRequest RequestFor(ChatPrompt prompt) const;

  // Where the lines' places are found: what the template wrote, and the messages.
  struct ShownChat;
  void Place(const ShownChat& shown, uint32_t line, VolatileLine* to) const;

  const std::string body_;
  const SessionState state_;
  const bool is_session_;
  const ModelView& model_;
  TurnPreparer& preparer_;
  const uint64_t epoch_;  // of the preparer, when the answer was asked for
  size_t work_bytes_ = 0;
  // What a prepared request takes over: whose cache it uses, and how.
  struct Sharing {
    std::string tenant;
    std::optional<std::string> cache_owner, cache_salt;
    bool use_disk;
    RemoteUse use_remote;
    std::optional<std::vector<AdapterChoice>> adapters;
    std::optional<std::string> adapter_digest;
  };
  std::optional<Sharing> request_;
  HeadSpace heads_;
  std::vector<uint64_t> lines_;
  uint64_t head_number_ = 0;
  std::string answer_;
  std::shared_ptr<SessionStore::Turn> turn_;
};

}  // namespace kvasir
