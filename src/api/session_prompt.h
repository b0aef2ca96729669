// The prompt that a session stands for.
#pragma once

#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "api/chat_prompt.h"
#include "api/tokens_text.h"
#include "kvasir/session.h"

namespace kvasir {

struct SessionPrompt {
  // message_ends and message_begins: of all messages of the session; one that is left out ends
  // where the one before it does.
  ChatPrompt chat;
  uint32_t dropped = 0;  // as SessionState::dropped; more than there if the context was full
};

// Returns the most tokens of prompt and answer: what the session was made with, and at most the
// model's context now.
uint32_t MaxContextOf(const SessionState& state, const ModelView& model);

// Clips an answer to what MaxContextOf leaves after the prompt, unless the request drops tokens:
// then it may pass that. `otherwise`: EngineOptions::retention.
void ClipAnswer(const SessionState& state, const ModelView& model, size_t prompt_tokens,
                const RetentionChoice& otherwise, GenerateRequest* request);

// Returns the prompt that asks for the next answer: the template's rendering of the messages, as
// /v1/chat/completions would render them (with continue_final_message: false), encoded as it would
// be, but with the ids that were generated wherever an answer of the session stands in it byte for
// byte (unless the setup says otherwise). A session without messages has an empty prompt. Errors:
// as RenderMessages and EncodeChat; kExhausted, of max_context, where it does not fit MaxContextOf
// with one token of answer, however long it is, and the setup drops nothing, or the last turn alone
// does not fit. O(text).
Result<SessionPrompt> PromptOf(const SessionState& state, const ModelView& model);

// Returns the same of all messages that are shown, also where they are longer than the context: an
// answer that dropped tokens may have passed it. kExhausted: it is longer than
// ModelView::max_text_tokens. O(text).
Result<SessionPrompt> WholePromptOf(const SessionState& state, const ModelView& model);

// The prompt of a session, and where a text stands in it: a part of a message's content, or all
// that the template writes of the message.
struct PlacedPrompt {
  SessionPrompt prompt;
  // The first and the last token that have text of it. Both are the number of tokens where the
  // prompt has none of it.
  size_t first_token = 0, last_token = 0;
  // What the template wrote after the message's content, up to its first special token: no content
  // has one. Without one, up to the last token that has no text of what comes after the message.
  std::vector<TokenId> closing = {};
};
// `part`: absent, or where the content does not stand in the prompt byte for byte: all of it.
Result<PlacedPrompt> PlaceOf(const SessionState& state, size_t index,
                             std::optional<ContentBytes> part, const ModelView& model);

// Returns where messages begin in a prompt of the session, without those that it leaves out.
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

// Returns the namespace of the cache that a request uses.
PathSpace SpaceOf(const GenerateRequest& request);

// Notes that the session has read this prompt of `state` (BeginsOf), whatever becomes of the
// answer: else it could not be forgotten. Before the answer begins; kExhausted: the store has no
// room for it. Disk, where the prompt begins in a new way. REQUIRES: the turn has come.
Status NotePrompt(SessionStore::Turn& turn, const GenerateRequest& prompt,
                  std::vector<SessionPath::Begin> begins, SessionState* state);

}  // namespace kvasir
