// The prompt that a session stands for.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "kvasir/session.h"
#include "server/chat_prompt.h"

namespace kvasir {

struct SessionPrompt {
  // message_ends and message_begins: of all messages of the session; one that is left out ends
  // where the one before it does.
  ChatPrompt chat;
  uint32_t dropped = 0;  // as SessionState::dropped; more than there if the context was full
};

// Tokens of prompt and answer: what the session was made with, and at most the model's context now.
uint32_t MaxContextOf(const SessionState& state, const ModelView& model);

// The prompt that asks for the next answer: the template's rendering of the messages, as
// /v1/chat/completions would render them (with continue_final_message: false), encoded as it would
// be, but with the ids that were generated wherever an answer of the session stands in it byte for
// byte (unless the setup says otherwise). A session without messages has an empty prompt. Errors:
// as RenderMessages and EncodeChat; kExhausted, of max_context, where it does not fit MaxContextOf
// with one token of answer, however long it is, and the setup drops nothing, or the last turn alone
// does not fit. O(text).
Result<SessionPrompt> PromptOf(const SessionState& state, const ModelView& model);

// The same, and where a message begins in it, or a byte of its content.
struct PlacedPrompt {
  SessionPrompt prompt;
  size_t first_token;  // the first one that has text from there; their number: the prompt has none
};
Result<PlacedPrompt> PlaceOf(const SessionState& state, size_t index,
                             std::optional<size_t> content_byte, const ModelView& model);

// Where messages begin in a prompt of the session, without those that it leaves out.
std::vector<SessionPath::Begin> BeginsOf(const SessionState& state, const ChatPrompt& prompt);

// How many of the ids stand for a beginning of an answer's text, and for how many bytes of it:
// the end of sequence and what a stop string cut off stand for nothing.
struct AnswerIds {
  size_t count = 0;
  size_t bytes = 0;
  ReadsBack reads_back = ReadsBack::kUnknown;
};
AnswerIds IdsOfAnswer(std::span<const TokenId> ids, std::string_view text,
                      const Tokenizer& tokenizer);

}  // namespace kvasir
