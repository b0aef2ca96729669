#include "api/answer_pieces.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/ascii.h"
#include "base/digest.h"
#include "base/hex.h"

namespace kvasir {
namespace {

constexpr size_t kIdDigits = 24, kShortIdDigits = 9, kMaxWrittenId = 64;

std::shared_ptr<const AnswerReading> ThoughtsOnly(const AnswerReading& reading) {
  AnswerReading thoughts;
  thoughts.think = reading.think;
  thoughts.begins_inside_thought = reading.begins_inside_thought;
  return std::make_shared<const AnswerReading>(std::move(thoughts));
}

bool IsWord(std::string_view id) {
  return std::ranges::all_of(id, [](char c) { return IsAsciiAlnum(c) || c == '_' || c == '-'; });
}

}  // namespace

AnswerPieces::AnswerPieces(std::shared_ptr<const AnswerReading> reading, std::string answer_id,
                           uint32_t choice, const char* call_prefix)
    : reading_(std::move(reading)),
      answer_id_(std::move(answer_id)),
      call_prefix_(call_prefix),
      choice_(choice),
      parser_(reading_),
      thoughts_(ThoughtsOnly(*reading_)) {}

std::vector<AnswerEvent> AnswerPieces::Take(const Event& event) {
  std::vector<AnswerEvent> events;
  if (reading_->think) {
    for (const GeneratedToken& token : event.tokens) {
      const bool inside = thoughts_.inside_thought();
      thoughts_.Append(token.text, &events);
      events.clear();
      if (inside || thoughts_.inside_thought()) ++reasoning_tokens_;
    }
  }
  parser_.Append(event.text, &events);
  if (event.finish_reason != FinishReason::kNone) parser_.Finish(&events);
  for (AnswerEvent& one : events) {
    if (one.kind == AnswerEvent::Kind::kCallBegin) one.id = CallId(one.id);
  }
  return events;
}

std::string AnswerPieces::CallId(const std::string& written) {
  const bool is_short = reading_->calls->short_ids;
  const uint32_t index = num_ids_++;
  const bool fits = is_short ? written.size() == kShortIdDigits &&
                                   written.find_first_of("_-") == std::string::npos
                             : !written.empty() && written.size() <= kMaxWrittenId;
  if (fits && IsWord(written)) return written;
  const std::string id = ToHex(Sha256Of(fmt::format("{} {} {}", answer_id_, choice_, index)));
  return is_short ? id.substr(0, kShortIdDigits) : call_prefix_ + id.substr(0, kIdDigits);
}

}  // namespace kvasir
