// How models write what they think and the tools that they call: found in their chat templates.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

namespace kvasir {

// What follows the mark of a call.
enum class CallBody : uint8_t {
  kJson,      // {"name", "arguments" or "parameters"}, or a list of these
  kNamed,     // NAME[ARGS]{...} or NAME[CALL_ID]ID[ARGS]{...}; or as kJson
  kDeepSeek,  // NAME<｜tool▁sep｜>{...} or function<｜tool▁sep｜>NAME and a block of ```json
  kXml,       // <function=NAME><parameter=KEY>VALUE</parameter>...</function>
};

// One row of the table in docs/tools.md.
struct CallFormat {
  std::string_view name;
  std::array<std::string_view, 2> evidence;  // both stand in the template
  CallBody body;
  std::string_view open;                 // the mark before a call or a list of calls
  std::string_view next;                 // a mark before a later call of the same list; or ""
  std::array<std::string_view, 3> ends;  // marks that may follow a call
  bool bare = false;                     // also without a mark, where the content begins
  bool short_ids = false;                // the template takes ids of nine letters and digits only
};

// Returns the format of a model with this chat template; "json" where no other is found. O(text).
const CallFormat& FindCallFormat(std::string_view chat_template);

struct ThinkMarks {
  std::string_view open, close;
};
// Null: the template has none.
const ThinkMarks* FindThinkMarks(std::string_view chat_template);
// What the end of a prompt says of the answer's thought: nothing; the answer begins inside it; or
// it is over, and none begins.
enum class PromptThought : uint8_t { kNone, kInside, kClosed };
PromptThought ThoughtAtEnd(const ThinkMarks& marks, std::string_view end_of_prompt);

// Returns every mark that an answer may have: where one is a special token, the answer must show
// it.
std::vector<std::string_view> MarksOf(const CallFormat& format);

// Returns all marks of the tables of calls and thoughts, each once.
const std::vector<std::string_view>& AllMarks();

// Parts of kNamed and kDeepSeek.
inline constexpr std::string_view kArgsMark = "[ARGS]", kCallIdMark = "[CALL_ID]";
inline constexpr std::string_view kDeepSeekCall = "<｜tool▁call▁begin｜>";
inline constexpr std::string_view kDeepSeekSeparator = "<｜tool▁sep｜>";

}  // namespace kvasir
