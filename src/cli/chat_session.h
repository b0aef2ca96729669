// ChatSession: the conversation of `kvasir chat`, with its branches. A client of sessions.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/generation.h"
#include "kvasir/engine.h"
#include "kvasir/session.h"
#include "server/chat_prompt.h"

namespace kvasir::cli {

// Every call is all or nothing: an error leaves the conversation as it was. A message's index is
// that of /v1/sessions: the system message, where there is one, has 0. One thread at a time.
class ChatSession {
 public:
  // `own` replaces the model's template; nullptr: the model's. What answers are generated with is
  // in `request`. `system` is the first message, also after Reset. Engine and template must outlive
  // it.
  static Result<ChatSession> Begin(Engine& engine, const ChatTemplate* own, GenerateRequest request,
                                   std::optional<std::string> system);

  // Both print the answer while it comes.
  Status Say(std::string text);
  // Gives a message another text; what came after it goes. One of the user is answered anew.
  Status Edit(size_t index, std::string text);
  Status SetSystem(std::string text);
  // Takes back the last message of the user and what came after it; returns it.
  Result<std::string> Undo();
  // Goes on in a copy under another name. kInvalidArgument: there is one of this name.
  Status Fork(std::string name);
  Status Switch(std::string_view name);
  // Takes a message out, and the KV of it and of all after it out of the cache. Waits.
  Result<Erasure> Forget(size_t index);
  // A new conversation under the present name.
  Status Reset();

  struct Line {
    std::string role, content;
    uint32_t tokens = 0;
  };
  Result<std::vector<Line>> Lines() const;
  // Of the conversations, the present one first.
  std::vector<std::string> Names() const;
  // A name that is free.
  std::string NextName() const;
  // Of the last answer.
  const std::optional<Receipt>& receipt() const { return receipt_; }

 private:
  struct Branch {
    std::string name, id;
  };
  using TurnPtr = std::shared_ptr<SessionStore::Turn>;

  ChatSession(Engine& engine, const ChatTemplate* own, GenerateRequest request,
              std::optional<std::string> system);
  Result<std::string> MakeSession();
  const std::string& id() const { return branches_.front().id; }
  Result<TurnPtr> TakeTurn() const;
  Result<SessionStore::Entry> Read() const;
  Status Answer(TurnPtr turn, SessionState state);

  Engine& engine_;
  const ModelView model_;
  const GenerateRequest request_;
  std::optional<std::string> system_;
  std::unique_ptr<SessionStore> store_;
  std::vector<Branch> branches_;  // the present one first
  std::optional<Receipt> receipt_;
};

}  // namespace kvasir::cli
