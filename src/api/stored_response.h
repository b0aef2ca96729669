// Stored responses: the session that each of them is, and what it says as items.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "api/responses_writer.h"
#include "api/translated_chat.h"
#include "base/parts.h"
#include "kvasir/session.h"

namespace kvasir {

// Finds the caller's stored response of an id. kNotFound: it has none.
using FindResponse =
    std::function<Result<std::shared_ptr<const SessionState>>(std::string_view id)>;

// What a request goes on from, and what becomes of it.
struct ResponseChain {
  std::shared_ptr<const SessionState> previous;  // null: it goes on from nothing
  std::string instructions;
  bool drops_oldest = false;  // a full context drops the oldest turns; else it is an error
};

// A response to store: all but its answer.
struct UnansweredResponse {
  SessionState state;                            // its new parts are in no store yet
  std::shared_ptr<const SessionState> previous;  // whose parts are not new; null: none
  std::vector<SessionPath::Begin> begins;        // of messages in the prompt
  ResponsesForm form;
};

// The name of the part of the first message that is the instructions of its response alone: those
// that go on from it have others.
inline constexpr std::string_view kInstructionsPart = "instructions";
// Returns what the first message says beside them; absent: it says nothing else. REQUIRES: there
// is a message.
std::optional<std::string> WithoutInstructions(const SessionMessage& first);

// Returns the session that a chat is, whose marks go from its messages to chat.marks. Messages that
// the previous one has too are the same ones. Errors: as ReadChat's.
Result<SessionState> StateOf(TranslatedChat& chat, const ResponseChain& chain,
                             const ModelView& model);
// Reads the chat of such a session as ReadTranslated does, but answers stand in the prompt with the
// ids that were generated. Sets what the prompt drops, and where messages begin in it.
Result<OpenAiCall> ReadStateChat(TranslatedChat& chat, const ModelView& model, SessionState* state,
                                 std::vector<SessionPath::Begin>* begins);

// Which items a list has.
struct ItemPage {
  size_t limit = 20;
  bool is_ascending = false;
  std::string after;  // an id; "": it begins at the end
};
// Returns the list of the items that a stored response had as input, with what it goes on from, and
// without instructions. kNotFound: it has no item `after`. O(its text).
Result<std::string> InputItems(std::string_view id, const SessionState& state,
                               const ItemPage& page);

}  // namespace kvasir
