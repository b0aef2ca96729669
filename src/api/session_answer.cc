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

// The file learns what the session has read, though it has no answer.
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

// Divides the answer into its content and what else the message has.
void SessionAnswer::ReadPieces() {
  ordered_json calls = ordered_json::array();
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
        calls.push_back({{"id", event.id},
                         {"type", "function"},
                         {"function", {{"name", event.text}, {"arguments", ""}}}});
        break;
      case AnswerEvent::Kind::kArguments:
        calls.back()["function"]["arguments"] = event.text;
        break;
      case AnswerEvent::Kind::kCallEnd:
        break;
    }
  }
  if (content == answer_.content) return;
  ordered_json message = {{"role", answer_.role}, {"content", ""}};
  if (!reasoning.empty()) message["reasoning_content"] = std::move(reasoning);
  if (!calls.empty()) message["tool_calls"] = std::move(calls);
  SessionMessage::More more;
  more.fields = Dump(message);
  more.written = std::exchange(answer_.content, std::move(content));
  more.written.shrink_to_fit();
  answer_.SetMore(std::move(more));
}

Status SessionAnswer::Keep() {
  const std::span<const TokenId> generated = std::span(ids_).subspan(prompt_tokens_);
  const AnswerIds known = IdsOfAnswer(generated, answer_.content, tokenizer_);
  answer_.ids.assign(generated.begin(), generated.begin() + static_cast<ptrdiff_t>(known.count));
  answer_.ids_bytes = known.bytes;
  answer_.ids_read_back = known.reads_back == ReadsBack::kAnywhere;
  if (pieces_) ReadPieces();
  answer_.content.shrink_to_fit();
  std::vector<SessionMessage> messages;
  messages.push_back(std::move(answer_));
  KV_ASSIGN(SessionState changed, Append(turn_->store(), state_, std::move(messages)));
  KV_ASSIGN(changed.paths, AddPath(turn_->store(), changed.paths, std::move(ids_),
                                   std::move(begins_), std::move(space_)));
  changed.identity_changed = false;
  return turn_->Replace(std::move(changed));
}

}  // namespace kvasir
