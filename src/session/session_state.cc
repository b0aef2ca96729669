// The parts of a session's state: how many bytes they hold, and that they are wiped.
#include <algorithm>
#include <atomic>
#include <string>
#include <utility>

#include "base/wipe.h"
#include "kvasir/session.h"

namespace kvasir {
namespace {

// What an object takes beside itself that a shared pointer owns: counts, deleter, what the heap
// adds.
constexpr uint64_t kSharedBytes = 144;

// Returns what a text has allocated beside itself.
uint64_t HeapBytes(const std::string& text) {
  static const size_t inside = std::string().capacity();
  return text.capacity() > inside ? text.capacity() + 1 : 0;
}

}  // namespace

SessionMessage::More::~More() {
  for (std::string* text : {&fields, &written}) Wipe(text);
  for (MessageSegment& segment : segments) Wipe(&segment.name);
}

SessionMessage::More SessionMessage::More::WithoutWritten() const {
  More more;
  more.fields = fields;
  more.segments = segments;
  return more;
}

SessionMessage::~SessionMessage() {
  for (std::string* text : {&role, &content}) Wipe(text);
  Wipe(&ids);
}

const SessionMessage::More& SessionMessage::more() const {
  static const More kNone;
  return more_ ? *more_ : kNone;
}

void SessionMessage::SetMore(More more) {
  const bool has_some = !more.fields.empty() || !more.written.empty() || !more.segments.empty();
  more_ = has_some ? std::make_unique<const More>(std::move(more)) : nullptr;
}

uint64_t SessionMessage::NewNumber() {
  static std::atomic<uint64_t> next{0};  // relaxed: a name
  return next.fetch_add(1, std::memory_order_relaxed);
}

uint64_t SessionMessage::HeldBytes() const {
  uint64_t bytes = kSharedBytes + sizeof(*this) + HeapBytes(role) + HeapBytes(content) +
                   ids.capacity() * sizeof(TokenId);
  if (!more_) return bytes;
  bytes += sizeof(*more_) + HeapBytes(more_->fields) + HeapBytes(more_->written) +
           more_->segments.capacity() * sizeof(MessageSegment);
  for (const MessageSegment& segment : more_->segments) bytes += HeapBytes(segment.name);
  return bytes;
}

SessionSetup::~SessionSetup() {
  for (std::string* text : {&fields, &sampling, &metadata, &origin}) Wipe(text);
}

uint64_t SessionSetup::HeldBytes() const {
  return kSharedBytes + sizeof(*this) + model.capacity() + fields.capacity() + sampling.capacity() +
         metadata.capacity() + HeapBytes(origin);
}

ResponseBody::~ResponseBody() { Wipe(&json); }

uint64_t ResponseBody::HeldBytes() const { return kSharedBytes + sizeof(*this) + HeapBytes(json); }

SessionPath::~SessionPath() { Wipe(&ids); }

uint64_t SessionPath::HeldBytes() const {
  return kSharedBytes + sizeof(*this) + ids.capacity() * sizeof(TokenId) +
         begins.capacity() * sizeof(begins[0]) + (space.owner ? HeapBytes(*space.owner) : 0) +
         (space.salt ? HeapBytes(*space.salt) : 0) + HeapBytes(space.adapters);
}

std::string TitleOf(const SessionState& state) {
  constexpr size_t kMostCharacters = 60;
  const auto first = std::ranges::find_if(
      state.messages, [](const auto& message) { return message->role == "user"; });
  if (first == state.messages.end()) return {};
  std::string title;
  size_t characters = 0, word_end = 0;
  for (const char byte : (*first)->content) {
    const bool is_space = byte == ' ' || (byte >= '\t' && byte <= '\r');
    if (is_space && title.size() == word_end) continue;  // one space between words, none before
    if ((byte & 0xC0) != 0x80 && characters++ == kMostCharacters) {
      if (!is_space && word_end > 0) title.resize(word_end - 1);
      return title + "\u2026";
    }
    title += is_space ? ' ' : byte;
    if (is_space) word_end = title.size();
  }
  if (title.ends_with(' ')) title.pop_back();
  return title;
}

uint64_t SessionState::HeldBytes() const {
  return kSharedBytes + sizeof(*this) + messages.capacity() * sizeof(messages[0]) +
         paths.capacity() * sizeof(paths[0]);
}

}  // namespace kvasir
