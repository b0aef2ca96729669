// Sessions as the answers of /v1/sessions show them.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "api/chat_prompt.h"
#include "base/parts.h"
#include "http/http_message.h"
#include "kvasir/session.h"

namespace kvasir {

// Returns a session with the number of its messages; `tokens` is null where they are not counted.
nlohmann::ordered_json SessionJson(const SessionStore::Entry& entry);

// Returns the answer about a session that was made or changed. `ignored`: the fields of the request
// that nothing reads.
HttpResponse SessionResponse(const SessionStore::Entry& entry,
                             const std::vector<std::string>& ignored, int status = 200);

// Returns a page of a list. `unreadable`: how many sessions of the file its secret does not unseal;
// absent: they may be another tenant's.
HttpResponse SessionList(const SessionStore::Page& page, std::optional<uint64_t> unreadable);

// Returns a session with its messages and, with `with_ids`, the ids of its prompt.
Parts WholeSession(SessionStore::Entry entry, std::optional<ChatPrompt> prompt, bool with_ids);

}  // namespace kvasir
