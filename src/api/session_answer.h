// SessionAnswer: puts the answer of a generation into its session.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "api/answer_keeper.h"
#include "api/answer_pieces.h"
#include "api/asked_chat.h"
#include "chat/tool_call.h"
#include "kvasir/session.h"

namespace kvasir {

// Gives the message of an answer the text that the model wrote, and its ids.
void SetWritten(std::string written, std::span<const TokenId> ids, const Tokenizer& tokenizer,
                SessionMessage* answer);
// Divides it into its content and what else the message has. REQUIRES: SetWritten.
void SetSaid(std::string content, std::string reasoning, std::span<const ToolCall> calls,
             SessionMessage* answer);

enum class OnHangUp { kDropAnswer, kKeepPartial };

// Holds the session's turn. Finish puts the answer into the session and ends the turn. Destroyed
// before that, it leaves the session's messages as they were; or, if asked, with the answer so far.
class SessionAnswer : public AnswerKeeper {
 public:
  // `state`: the session with the messages that come before the answer. `prompt`: what the answer
  // is generated from, in which messages begin as `begins` says. `pieces`: what reads the
  // answer; absent: all of it is content. `chat` gets the turn after the answer, to prepare the
  // next one; null: it ends. The tokenizer must outlive this.
  SessionAnswer(std::shared_ptr<SessionStore::Turn> turn, SessionState state,
                const GenerateRequest& prompt, std::vector<SessionPath::Begin> begins,
                OnHangUp on_hang_up, const Tokenizer& tokenizer,
                std::optional<AnswerPieces> pieces = std::nullopt,
                std::shared_ptr<AskedChat> chat = nullptr);
  ~SessionAnswer() override;

  void Take(const Event& event) override;
  Status Finish() override;
  bool waits_for_disk() const override { return waits_for_disk_; }
  uint64_t held_bytes() const override {
    return sizeof(*this) + ids_.capacity() * sizeof(TokenId) +
           begins_.capacity() * sizeof(begins_[0]) + answer_.content.capacity();
  }

 private:
  Status Keep();
  void ReadPieces();
  void WritePrompt();

  std::shared_ptr<SessionStore::Turn> turn_;  // null: it has ended
  SessionState state_;
  std::vector<TokenId> ids_;  // of prompt and answer
  std::vector<SessionPath::Begin> begins_;
  PathSpace space_;
  const size_t prompt_tokens_;
  const bool waits_for_disk_;
  const OnHangUp on_hang_up_;
  const Tokenizer& tokenizer_;
  std::optional<AnswerPieces> pieces_;
  const std::shared_ptr<AskedChat> chat_;
  SessionMessage answer_;
};

}  // namespace kvasir
