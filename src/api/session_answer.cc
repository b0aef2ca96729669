#include "api/session_answer.h"

#include <exception>
#include <nlohmann/json.hpp>
#include <utility>

#include "api/session_prompt.h"
#include "base/json_writer.h"
#include "base/result.h"

namespace kvasir {

using nlohmann::ordered_json;

SessionAnswer::SessionAnswer(std::shared_ptr<SessionStore::Turn> turn, SessionState state,
                             const GenerateRequest& prompt, std::vector<SessionPath::Begin> begins,
                             OnHangUp on_hang_up, const Tokenizer& tokenizer,
                             std::optional<AnswerPieces> pieces, std::shared_ptr<AskedChat> chat)
    : turn_(std::move(turn)),
      state_(std::move(state)),
      ids_(prompt.prompt),
      begins_(std::move(begins)),
      space_(SpaceOf(prompt)),
      prompt_tokens_(prompt.prompt.size()),
      waits_for_disk_(turn_->on_disk()),
      on_hang_up_(on_hang_up),
      tokenizer_(tokenizer),
      pieces_(std::move(pieces)),
      chat_(std::move(chat)) {
  answer_.role = "assistant";
  answer_.generated = true;
  const auto& ends = prompt.message_ends;
  begins_.push_back({answer_.number, answer_.version, ends.empty() ? 0 : ends.back()});
}

SessionAnswer::~SessionAnswer() {
  if (!turn_) return;
  try {
    const bool keeps = on_hang_up_ == OnHangUp::kKeepPartial && !answer_.content.empty();
    if (!keeps || !Keep()) WritePrompt();
  } catch (const std::exception&) {  // no memory: the session is as it was
  }
}

// Writes what the session has read to the file, though it has no answer.
void SessionAnswer::WritePrompt() {
  if (!waits_for_disk_) return;
  if (const auto entry = turn_->Read()) (void)turn_->Replace(*entry->state);
}

void SessionAnswer::Take(const Event& event) {
  answer_.content += event.text;
  for (const GeneratedToken& token : event.tokens) ids_.push_back(token.id);
}

Status SessionAnswer::Finish() {
  Status kept = Keep();
  if (!kept) WritePrompt();
  if (kept && chat_) chat_->Take(std::move(turn_));
  turn_ = nullptr;
  return kept;
}

void SetWritten(std::string written, std::span<const TokenId> ids, const Tokenizer& tokenizer,
                SessionMessage* answer) {
  const AnswerIds known = IdsOfAnswer(ids, written, tokenizer);
  answer->ids.assign(ids.begin(), ids.begin() + static_cast<ptrdiff_t>(known.count));
  answer->ids_bytes = known.bytes;
  answer->ids_read_back = known.reads_back == ReadsBack::kAnywhere;
  answer->content = std::move(written);
  answer->content.shrink_to_fit();
}

void SetSaid(std::string content, std::string reasoning, std::span<const ToolCall> calls,
             SessionMessage* answer) {
  if (content == answer->content) return;
  ordered_json message = {{"role", answer->role}, {"content", ""}};
  if (!reasoning.empty()) message["reasoning_content"] = std::move(reasoning);
  for (const ToolCall& call : calls) {
    message["tool_calls"].push_back(
        {{"id", call.id},
         {"type", "function"},
         {"function", {{"name", call.name}, {"arguments", call.arguments}}}});
  }
  SessionMessage::More more;
  more.fields = Dump(message);
  more.written = std::exchange(answer->content, std::move(content));
  answer->content.shrink_to_fit();
  answer->SetMore(std::move(more));
}

// Divides the answer into its content and what else the message has.
void SessionAnswer::ReadPieces() {
  std::vector<ToolCall> calls;
  std::string content, reasoning;
  Event whole;
  whole.text = answer_.content;
  whole.finish_reason = FinishReason::kStop;
  for (const AnswerEvent& event : pieces_->Take(whole)) {
    switch (event.kind) {
      case AnswerEvent::Kind::kContent:
        content += event.text;
        break;
      case AnswerEvent::Kind::kReasoning:
        reasoning += event.text;
        break;
      case AnswerEvent::Kind::kCallBegin:
        calls.push_back({.name = event.text, .arguments = "", .id = event.id});
        break;
      case AnswerEvent::Kind::kArguments:
        calls.back().arguments = event.text;
        break;
      case AnswerEvent::Kind::kCallEnd:
        break;
    }
  }
  SetSaid(std::move(content), std::move(reasoning), calls, &answer_);
}

Status SessionAnswer::Keep() {
  const std::span<const TokenId> generated = std::span(ids_).subspan(prompt_tokens_);
  SetWritten(std::exchange(answer_.content, {}), generated, tokenizer_, &answer_);
  if (pieces_) ReadPieces();
  std::vector<SessionMessage> messages;
  messages.push_back(std::move(answer_));
  KV_ASSIGN(SessionState changed, Append(turn_->store(), state_, std::move(messages)));
  KV_ASSIGN(changed.paths, AddPath(turn_->store(), changed.paths, std::move(ids_),
                                   std::move(begins_), std::move(space_)));
  changed.identity_changed = false;
  return turn_->Replace(std::move(changed));
}

}  // namespace kvasir
