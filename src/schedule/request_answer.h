// How sampled tokens become the text and the events of a request's choices.
#pragma once

#include <span>

#include "kvasir/engine_event.h"
#include "kvasir/generate_request.h"
#include "schedule/request.h"
#include "text/tokenizer.h"

namespace kvasir {

// The part of a sampled token: it goes into the text, or it ends the answer (end of sequence,
// stop_ids).
enum class TokenRole { kText, kEnd };

// Adds event.tokens.back(), just sampled, to the sequence and, unless it ends the answer, to its
// text. Returns why the choice is done, or kNone when it goes on.
FinishReason AppendToken(Request& request, Sequence& sequence, TokenRole role, Event& event);

TextStream TextStreamFor(const Tokenizer& tokenizer, const GenerateRequest& spec);

// Adds a sequence for the request's next choice, or for a beam of its search: with the prompt's
// tokens, which `kv` holds or will hold. `tokenizer`: nullptr: the answer has no text.
Sequence& AddSequence(Request& request, KvSequence kv, const Tokenizer* tokenizer);

// Adds all tokens of an answer that came at once, and their text.
void AddAnswer(std::span<const TokenId> tokens, bool ended, const Tokenizer* tokenizer,
               const GenerateRequest& spec, Event& event);

// Ends the choice. Adds the text that was held back to its event, unless a stop string cuts it.
void FinishChoice(Request& request, uint32_t choice, FinishReason reason);

// Puts into the first choice's event how far the request is, if it asked for that. `processed`:
// tokens of the prompt.
void NoteProgress(Request& request, uint32_t processed);

}  // namespace kvasir
