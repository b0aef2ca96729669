#include "api/response_keeper.h"

#include <algorithm>
#include <memory>
#include <unordered_set>
#include <utility>

#include "api/session_answer.h"
#include "api/session_prompt.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/result.h"

namespace kvasir {
namespace {

constexpr auto kMarkOrder = std::memory_order_relaxed;

AnswerSpec WholeSpec(AnswerSpec spec) {
  spec.stream = false;
  return spec;
}

std::string IdWithoutPrefix(const Answer& answer) {
  return answer.id().substr(std::string_view(answer.spec().id_prefix).size());
}

// Says, once, why responses are not stored: clients have it in their answers.
void LogUnstored(const Error& why) {
  static std::atomic<bool> said{false};
  if (said.exchange(true, kMarkOrder)) return;
  Log(LogLevel::kWarning,
      "a response is not stored (\"store\": false in the answers of such requests; said once)",
      LogField("why", why.message));
}

std::unordered_set<const void*> OldPartsOf(const UnansweredResponse& response) {
  std::unordered_set<const void*> parts;
  if (!response.previous) return parts;
  for (const auto& message : response.previous->messages) parts.insert(message.get());
  parts.insert(response.previous->setup.get());
  return parts;
}

}  // namespace

ResponseKeeper::ResponseKeeper(const SessionStore& store, uint64_t removals,
                               UnansweredResponse response, const GenerateRequest& prompt,
                               const Answer& answer)
    : store_(store.Responses()),
      turn_(store_.Announce(prompt.tenant, answer.id())),
      removals_(removals),
      response_(std::move(response)),
      tenant_(prompt.tenant),
      space_(SpaceOf(prompt)),
      ids_(prompt.prompt),
      prompt_tokens_(prompt.prompt.size()),
      answer_at_(prompt.message_ends.empty() ? 0 : prompt.message_ends.back()),
      waits_for_disk_(store.file() != nullptr),
      answer_(WholeSpec(answer.spec()), 1, IdWithoutPrefix(answer), answer.created_unix_s(),
              answer.tokenizer()) {
  const std::unordered_set<const void*> old = OldPartsOf(response_);
  const SessionState& state = response_.state;
  for (const auto& message : state.messages) {
    if (!old.contains(message.get())) new_bytes_ += message->HeldBytes();
  }
  if (!old.contains(state.setup.get())) new_bytes_ += state.setup->HeldBytes();
}

void ResponseKeeper::Take(const Event& event) {
  answer_.Take(0, event);
  written_ += event.text;
  for (const GeneratedToken& token : event.tokens) ids_.push_back(token.id);
}

uint64_t ResponseKeeper::held_bytes() const {
  constexpr uint64_t kTurnBytes = 1024;
  return sizeof(*this) + kTurnBytes + new_bytes_ +
         response_.state.messages.capacity() * sizeof(void*) * 2 +
         response_.begins.capacity() * sizeof(response_.begins[0]) +
         ids_.capacity() * sizeof(TokenId) + written_.capacity() + answer_.held_bytes();
}

Status ResponseKeeper::Finish() {
  StoredMark& mark = *response_.form.stored;
  mark.completed_s.store(UnixS(), kMarkOrder);
  const Status stored = Store();
  turn_ = nullptr;
  if (stored) return {};
  mark.is_stored.store(false, kMarkOrder);
  if (stored.error().code != Code::kCancelled) LogUnstored(stored.error());
  return {};
}

Status ResponseKeeper::Store() {
  auto message = std::make_shared<SessionMessage>();
  message->role = "assistant";
  message->generated = true;
  SetWritten(std::move(written_), std::span(ids_).subspan(prompt_tokens_), *answer_.tokenizer(),
             message.get());
  const Answer::Choice& choice = answer_.choice(0);
  if (choice.read) SetSaid(choice.text, choice.read->reasoning, choice.read->calls, message.get());
  response_.begins.push_back({message->number, message->version, answer_at_});
  ResponsesWriter writer(response_.form);
  writer.Begin(answer_);
  const auto body = std::make_shared<const ResponseBody>(writer.Body(answer_).Rest());
  const std::shared_ptr<const SessionMessage> answer = std::move(message);
  const std::unordered_set<const void*> old = OldPartsOf(response_);
  const auto make = [&](SessionStore& own) -> Result<SessionState> {
    SessionState state = response_.state;
    state.messages.push_back(answer);
    state.messages.shrink_to_fit();
    for (auto& one : state.messages) {
      if (old.contains(one.get())) continue;
      KV_ASSIGN(one, own.KeepShared(one));
    }
    if (!old.contains(state.setup.get())) {
      KV_ASSIGN(state.setup, own.KeepShared(state.setup));
    }
    KV_ASSIGN(state.response, own.KeepShared(body));
    if (response_.previous) state.paths = response_.previous->paths;
    KV_ASSIGN(state.paths, WithoutForgotten(own, state.paths, NotContained(state),
                                            SessionStore::Room::kWithinLimit));
    KV_ASSIGN(state.paths,
              AddPath(own, state.paths, ids_, response_.begins, space_, LastPath::kLongStays));
    state.identity_changed = false;
    return state;
  };
  return store_.Store(tenant_, answer_.id(), removals_, make, response_.form.previous);
}

}  // namespace kvasir
