// ChatSession: the conversation of `kvasir chat`, with its branches. A client of sessions.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "api/chat_prompt.h"
#include "api/session_forget.h"
#include "cli/generation.h"
#include "cli/template_flags.h"
#include "kvasir/engine.h"
#include "kvasir/session.h"
#include "kvasir/session_file.h"

namespace kvasir::cli {

// What a chat begins with.
struct ChatStart {
  std::optional<std::string> system;  // the first message, also after Reset
  // Keeps the conversations; null: they end with the chat.
  std::shared_ptr<SessionFile> file;
  // The session of the file to go on with, if not a new one.
  std::optional<std::string> resume;
};

// Every call is all or nothing: an error leaves the conversation as it was. A message's index is
// that of /v1/sessions: the system message, where there is one, has 0. One thread at a time.
class ChatSession {
 public:
  // Takes `request`, which has what answers are generated with. kNotFound: the file has no such
  // session. Engine and choice must outlive it.
  static Result<ChatSession> Begin(Engine& engine, const TemplateChoice& choice,
                                   GenerateRequest request, ChatStart start);

  // Generates an answer and prints it while it comes.
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
  // Does the same with the last message of the user and what came after it.
  Result<Erasure> ForgetLast();
  // Begins a new conversation under the present name. The old one stays where a file keeps it; its
  // id then.
  Result<std::optional<std::string>> Reset();
  // Removes the conversations that this made and in which nothing was said. Returns those that the
  // file keeps, the present one first.
  struct Branch {
    std::string name, id;
    bool made_here = true;
  };
  Result<std::vector<Branch>> End();

  struct Line {
    std::string role, content;
    uint32_t tokens = 0;
  };
  Result<std::vector<Line>> Lines() const;
  // Returns the names of the conversations, the present one first.
  std::vector<std::string> Names() const;
  const std::string& id() const { return branches_.front().id; }
  bool on_disk() const { return store_->file() != nullptr; }
  Result<SessionStore::Entry> Read() const;  // the present one
  // Returns a name that is free.
  std::string NextName() const;
  // Returns the receipt of the last answer.
  const std::optional<Receipt>& receipt() const { return receipt_; }

 private:
  using TurnPtr = std::shared_ptr<SessionStore::Turn>;

  ChatSession(Engine& engine, ModelView model, GenerateRequest request,
              std::optional<std::string> system);
  Result<std::string> MakeSession();
  Status Resume(const std::string& id);
  // Adds the other conversations of the file that belong to this chat. O(bytes of the sessions).
  Status FindBranches(const std::string& chat);
  // Removes a conversation that this made where nothing was said in it. Whether it was removed.
  Result<bool> RemoveIfEmpty(const Branch& branch);
  Result<TurnPtr> TakeTurn() const;
  Status Answer(TurnPtr turn, SessionState state);
  ForgetScope Scope() const;
  Result<Erasure> Erase(SessionStore::Turn& turn, Forgetting forgetting);

  Engine& engine_;
  const ModelView model_;
  const GenerateRequest request_;
  std::optional<std::string> system_;
  std::unique_ptr<SessionStore> store_;
  std::vector<Branch> branches_;  // the present one first
  std::optional<Receipt> receipt_;
};

}  // namespace kvasir::cli
