// The places of a session that bodies name: how many messages stay, and what is forgotten.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "kvasir/session.h"

namespace kvasir {

// Reads the number of messages that a body names; without one it is `all`. `forget`: nullptr where
// the call does not take it. kInvalidArgument names the field, as below.
Result<uint64_t> ReadCount(std::string_view body, std::optional<uint64_t> all, bool* forget,
                           std::vector<std::string>* ignored);

// Reads the index of a message in a path: -1 is the last one. kInvalidArgument says which there
// are.
Result<size_t> ReadIndex(std::string_view text, const SessionState& state);

// The messages or the part of one that a body of forget names.
using NamedText = std::variant<MessageRange, SessionPart>;
// Reads one of {"last": turns}, {"index", "begin", "end"}, {"segment"} and {"from", "to"}, both
// included; -1 is the last message. kNotFound: as FindSegment. O(messages).
Result<NamedText> ReadForget(std::string_view body, const SessionState& state);

}  // namespace kvasir
