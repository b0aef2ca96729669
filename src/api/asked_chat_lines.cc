// Which lines of a chat changed since the tenant asked another one.
#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "api/asked_chat.h"
#include "api/chat_message.h"
#include "base/ascii.h"

namespace kvasir {
namespace {

constexpr uint32_t kLeastRepeated = 64;  // tokens after a line that is named

// Returns the bytes of [begin, end) that a message, a tool or a variable has, without spaces around
// them.
std::string WrittenByUsers(const RenderedChat& chat, size_t begin, size_t end) {
  std::string written;
  auto range =
      std::ranges::upper_bound(chat.literal, begin, {}, &std::pair<size_t, size_t>::second);
  for (; range != chat.literal.end() && range->first < end; ++range) {
    const size_t from = std::max(range->first, begin);
    written += std::string_view(chat.text).substr(from, std::min(range->second, end) - from);
  }
  return std::string(Trimmed(written));
}

std::vector<std::string_view> LinesIn(std::string_view text) {
  std::vector<std::string_view> lines;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    lines.push_back(Trimmed(text.substr(0, end)));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return lines;
}

}  // namespace

struct AskedChat::ShownChat {
  JsonValue chat;
  RenderedChat text;
  std::vector<size_t> begins;  // of the first lines of the text, and their end
  JsonTree* tree;
};

void AskedChat::NoteHead(PromptHead head, const GenerateRequest& request, HeadSpace heads,
                         const Answer& answer) {
  head.parts.model = heads.DigestOf(request.adapter_digest.value_or(""));
  if (request.cache_salt) heads.AddSalt(*request.cache_salt, &head);
  heads_ = std::move(heads);
  if (answer.spec().compared) heads_.Compare(head, answer.spec().compared.get());
  lines_ = head.lines;
  head_number_ = heads_.Note(std::move(head), answer.id());
}

// Finds the message and the line of its text. The lines of a message are shown in their order, and
// a template writes others between them; those without text are passed over.
void AskedChat::Place(const ShownChat& shown, uint32_t line, VolatileLine* to) const {
  const auto& ends = shown.text.message_end;
  const auto message_of = [&](size_t at) {
    return static_cast<size_t>(std::ranges::upper_bound(ends, at) - ends.begin());
  };
  const size_t message = message_of(shown.begins[line]);
  if (message == ends.size()) return;
  size_t index = message;  // of a session, among those that its prompt leaves out too
  if (is_session_) {
    for (size_t i = 0; i <= index && i < state_.messages.size(); ++i) index += !IsShown(i);
  }
  to->message_index = static_cast<uint32_t>(index);
  MessageRoom room{.tree = shown.tree};
  const JsonValue& raw = shown.chat.Find("messages")->items()[message];
  const auto read = ReadMessage(raw, message, model_, &room);
  if (!read) return;
  constexpr size_t kLooked = 64;  // lines of the message that the template may leave out at once
  const std::vector<std::string_view> said = LinesIn(read->Find("content")->text());
  uint32_t first = line;
  while (first > 0 && message_of(shown.begins[first - 1]) == message) --first;
  size_t next = 0;
  for (uint32_t at = first; at <= line; ++at) {
    const std::string written = WrittenByUsers(shown.text, shown.begins[at], shown.begins[at + 1]);
    const size_t most = std::min(said.size(), next + kLooked);
    size_t found = next;
    while (found < most && (written.empty() || said[found] != written)) ++found;
    if (found == most) continue;
    next = found + 1;
    if (at == line) to->line = static_cast<uint32_t>(found);
  }
}

std::vector<VolatileLine> AskedChat::LinesOf(std::span<const LineChange> changes, uint32_t at_token,
                                             const JsonValue& chat, JsonTree* tree) const {
  if (changes.empty()) return {};
  JsonFields fields(chat);
  auto text = RenderMessages(fields, tree, model_);
  if (!text) return {};
  ShownChat shown{chat, std::move(*text), {}, tree};
  shown.begins = LineBegins(shown.text);
  if (shown.begins.size() != lines_.size() + 1) return {};
  std::vector<size_t> ends;
  for (const LineChange& change : changes) {
    ends.push_back(shown.begins[change.equal_begin]);
    ends.push_back(shown.begins[change.equal_end]);
  }
  const auto tokens = TokensBefore(shown.text, ends, model_);
  if (!tokens) return {};
  std::vector<VolatileLine> lines;
  for (size_t i = 0; i < changes.size(); ++i) {
    const uint32_t begin = std::max((*tokens)[2 * i], at_token);
    const uint32_t end = std::max((*tokens)[2 * i + 1], begin);
    if (end - begin < kLeastRepeated) continue;
    for (uint32_t k = 0; k < std::max(changes[i].num_lines, 1u); ++k) {
      Place(shown, changes[i].line + k, &lines.emplace_back());
    }
    lines.back().repeated_tokens = end - begin;
  }
  if (lines.size() > kMostVolatileLines) lines.clear();
  return lines;
}

}  // namespace kvasir
