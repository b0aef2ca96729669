#include "chat/answer_parser.h"

#include <algorithm>

#include "base/ascii.h"

namespace kvasir {
namespace {

using Kind = AnswerEvent::Kind;

constexpr size_t kMaxHeldBlanks = 256;   // more white space before a mark is not the mark's
constexpr size_t kMaxHeaderBytes = 512;  // of a call's name and id
// What an object may begin with that is a call without a mark.
constexpr std::string_view kFirstKeys[] = {"name", "type", "id", "arguments", "parameters"};

std::string_view SkipBlanks(std::string_view text) {
  while (!text.empty() && IsBlank(text.front())) text.remove_prefix(1);
  return text;
}

// Returns whether `text` begins the mark, or is all of it.
bool Begins(std::string_view mark, std::string_view text) { return mark.starts_with(text); }

}  // namespace

std::optional<ThoughtForm> ThoughtFormOf(std::string_view name) {
  if (name == "auto" || name == "deepseek") return ThoughtForm::kApart;
  if (name == "deepseek-legacy") return ThoughtForm::kBoth;
  if (name == "none") return ThoughtForm::kInContent;
  return std::nullopt;
}

AnswerParser::AnswerParser(std::shared_ptr<const AnswerReading> reading)
    : reading_(std::move(reading)) {
  if (reading_->think && reading_->begins_inside_thought) {
    at_ = At::kThought;
    begun_ = skips_blanks_ = true;
  }
}

void AnswerParser::Append(std::string_view piece, std::vector<AnswerEvent>* events) {
  events_ = events;
  for (const char c : piece) Take(c);
}

void AnswerParser::Finish(std::vector<AnswerEvent>* events) {
  events_ = events;
  switch (at_) {
    case At::kThought:
      GiveThought(held_);
      break;
    case At::kContent:
      GiveContent(held_);
      break;
    case At::kAfterCall:
      break;  // white space, or a mark that was cut off
    default:
      if (is_certain_) {
        GiveCallEvent({Kind::kCallEnd, "", ""});
      } else {
        GiveContent(call_);
      }
  }
  held_.clear();
  call_.clear();
}

void AnswerParser::Take(char c) {
  switch (at_) {
    case At::kThought:
      return InThought(c);
    case At::kContent:
      return InContent(c);
    case At::kCall:
      return InCall(c);
    case At::kHeader:
      return InHeader(c);
    case At::kValue:
      return InValue(c);
    case At::kXml:
      return InXml(c);
    case At::kAfterCall:
      return AfterCall(c);
  }
}

void AnswerParser::Give(Kind kind, std::string_view text) {
  if (text.empty()) return;
  if (!events_->empty() && events_->back().kind == kind) {
    events_->back().text += text;
  } else {
    events_->push_back({kind, std::string(text), ""});
  }
}

void AnswerParser::GiveContent(std::string_view text) { Give(Kind::kContent, text); }

void AnswerParser::GiveThought(std::string_view text) {
  if (thoughts_apart()) Give(Kind::kReasoning, text);
  if (thoughts_in_content()) GiveContent(text);
}

void AnswerParser::InThought(char c) {
  const std::string_view close = reading_->think->close;
  if (thoughts_apart() && skips_blanks_ && IsBlank(c)) {
    if (thoughts_in_content()) GiveContent({&c, 1});
    return;
  }
  skips_blanks_ = false;
  held_ += c;
  size_t certain = 0;
  while (certain < held_.size()) {
    const std::string_view rest = SkipBlanks(std::string_view(held_).substr(certain));
    if (rest.empty() && held_.size() - certain <= kMaxHeldBlanks) break;
    if (rest == close) {
      GiveThought(std::string_view(held_).substr(0, certain));
      if (thoughts_in_content()) GiveContent(std::string_view(held_).substr(certain));
      held_.clear();
      at_ = At::kContent;
      skips_blanks_ = !thoughts_in_content();
      return;
    }
    if (!rest.empty() && Begins(close, rest)) break;
    certain = rest.empty() ? held_.size() : held_.size() - rest.size() + 1;
  }
  GiveThought(std::string_view(held_).substr(0, certain));
  held_.erase(0, certain);
}

void AnswerParser::InContent(char c) {
  if (skips_blanks_ && IsBlank(c)) return;
  skips_blanks_ = false;
  held_ += c;
  const ThinkMarks* think = begun_ ? nullptr : reading_->think;
  const CallFormat* calls = reading_->calls;
  size_t certain = 0;
  while (certain < held_.size()) {
    const std::string_view rest = SkipBlanks(std::string_view(held_).substr(certain));
    if (rest.empty() && held_.size() - certain <= kMaxHeldBlanks) break;
    if (think && certain == 0 && rest == think->open) {
      if (thoughts_in_content()) GiveContent(held_);
      held_.clear();
      at_ = At::kThought;
      begun_ = skips_blanks_ = true;
      return;
    }
    const bool is_mark = calls && !calls->open.empty() && rest == calls->open;
    const bool is_bare =
        calls && calls->bare && !content_begun_ && certain == 0 && (rest == "{" || rest == "[");
    if (is_mark || is_bare) {
      GiveContent(std::string_view(held_).substr(0, certain));
      bare_ = is_bare;
      std::string text = held_.substr(certain);
      held_.clear();
      return BeginCall(std::move(text));
    }
    if (!rest.empty() && ((think && certain == 0 && Begins(think->open, rest)) ||
                          (calls && Begins(calls->open, rest)))) {
      break;
    }
    certain = rest.empty() ? held_.size() : held_.size() - rest.size() + 1;
    if (!rest.empty()) begun_ = content_begun_ = true;
  }
  GiveContent(std::string_view(held_).substr(0, certain));
  held_.erase(0, certain);
}

void AnswerParser::BeginCall(std::string text) {
  begun_ = content_begun_ = true;
  call_ = std::move(text);
  tail_ = call_.size();
  has_header_ = in_parameter_ = is_certain_ = false;
  at_ = At::kCall;
  if (!bare_) return;
  tail_ = call_.size() - 1;
  if (call_.back() == '[') in_list_ = true;
  if (call_.back() == '{') BeginValue(tail_);
}

void AnswerParser::BeginValue(size_t begin) {
  at_ = At::kValue;
  value_ = begin;
  scanner_ = JsonScanner();
  (void)scanner_.Append('{');
}

void AnswerParser::InCall(char c) {
  call_ += c;
  if (call_.size() > kMaxCallBytes) return NoCall(call_.size());
  if (IsBlank(c)) return;
  const size_t at = call_.size() - 1;
  const CallBody body = reading_->calls->body;
  const bool takes_json = body == CallBody::kJson || body == CallBody::kNamed;
  if (takes_json && c == '{') return BeginValue(at);
  if (takes_json && c == '[' && !in_list_) {
    in_list_ = true;
  } else if (body == CallBody::kXml && c == '<') {
    at_ = At::kXml;
    value_ = at;
  } else if ((body == CallBody::kNamed || body == CallBody::kDeepSeek) && c != '{' && !in_list_) {
    at_ = At::kHeader;
    value_ = at;
  } else {
    NoCall(tail_);
  }
}

void AnswerParser::InHeader(char c) {
  call_ += c;
  if (call_.size() - value_ > kMaxHeaderBytes) return NoCall(tail_);
  if (c != '{') return;
  has_header_ = true;
  tail_ = value_;  // the header
  BeginValue(call_.size() - 1);
  if (!reading_->marked_calls_are_certain) return;
  const std::string_view header = std::string_view(call_).substr(tail_, value_ - tail_);
  outside_ = 0;
  BeginCertain(ReadNamedCall(reading_->calls->body, header, "{}", reading_->tools));
}

// Begins the arguments, after their first byte, of a call whose name is certain.
void AnswerParser::BeginCertain(const std::optional<ToolCall>& call) {
  if (!call) return;
  is_certain_ = true;
  call_.clear();
  BeginCall(call->name, call->id);
  GiveCallEvent({Kind::kArguments, "{", ""});
}

void AnswerParser::InCertain(char c) {
  const bool was_inside = scanner_.depth() > outside_;
  const auto result = scanner_.Append(c);
  if (result == JsonScanner::Result::kBad) {  // not in a grammar
    CloseCall();
    return Take(c);
  }
  if (was_inside) GiveCallEvent({Kind::kArguments, std::string(1, c), ""});
  if (result == JsonScanner::Result::kEnd) CloseCall();
}

void AnswerParser::InValue(char c) {
  if (is_certain_) return InCertain(c);
  call_ += c;
  const auto result = scanner_.Append(c);
  if (result == JsonScanner::Result::kBad || call_.size() > kMaxCallBytes) {
    return NoCall(call_.size() - 1);
  }
  const std::string_view value = std::string_view(call_).substr(value_);
  if (bare_ && c == ':' && scanner_.depth() == 1 && value.find('"') != value.npos) {
    // Most objects that are answers end their waiting here.
    const size_t begin = value.find('"') + 1;
    const std::string_view key = value.substr(begin, value.find('"', begin) - begin);
    if (std::ranges::find(kFirstKeys, key) == std::end(kFirstKeys)) return NoCall(call_.size());
  }
  const bool is_certain =
      bare_ ? reading_->bare_calls_are_certain : reading_->marked_calls_are_certain;
  if (is_certain && !has_header_ && c == '{' && scanner_.depth() == 2) {
    outside_ = 1;
    return BeginCertain(ReadJsonCall(std::string(value) + "}}", true, reading_->tools));
  }
  if (result != JsonScanner::Result::kEnd) return;
  if (!has_header_) return EndCall(ReadJsonCall(value, bare_, reading_->tools));
  const std::string_view header = std::string_view(call_).substr(tail_, value_ - tail_);
  EndCall(ReadNamedCall(reading_->calls->body, header, value, reading_->tools));
}

void AnswerParser::InXml(char c) {
  call_ += c;
  if (call_.size() > kMaxCallBytes) return NoCall(call_.size());
  const std::string_view text = std::string_view(call_).substr(value_);
  constexpr std::string_view kBegin = "<function=";
  if (!Begins(kBegin, text.substr(0, kBegin.size()))) return NoCall(tail_);
  if (c == '=' && text.ends_with("<parameter=")) in_parameter_ = true;
  if (c != '>') return;
  if (text.ends_with("</parameter>")) in_parameter_ = false;
  if (!in_parameter_ && text.ends_with("</function>")) EndCall(ReadXmlCall(text, reading_->tools));
}

void AnswerParser::BeginCall(std::string name, std::string id) {
  ++num_calls_;
  is_dropped_ = !reading_->parallel && num_calls_ > 1;
  GiveCallEvent({Kind::kCallBegin, std::move(name), std::move(id)});
}

void AnswerParser::GiveCallEvent(AnswerEvent event) {
  if (is_dropped_) return;
  if (event.kind == Kind::kArguments) return Give(event.kind, event.text);
  events_->push_back(std::move(event));
}

void AnswerParser::EndCall(std::optional<ToolCall> call) {
  if (!call) return NoCall(call_.size());
  BeginCall(std::move(call->name), std::move(call->id));
  GiveCallEvent({Kind::kArguments, std::move(call->arguments), ""});
  CloseCall();
}

void AnswerParser::CloseCall() {
  GiveCallEvent({Kind::kCallEnd, "", ""});
  call_.clear();
  is_certain_ = false;
  at_ = At::kAfterCall;
}

void AnswerParser::NoCall(size_t certain) {
  const std::string rest = call_.substr(certain);
  GiveContent(std::string_view(call_).substr(0, certain));
  call_.clear();
  in_list_ = false;
  at_ = At::kContent;
  for (const char c : rest) Take(c);
}

void AnswerParser::AfterCall(char c) {
  const CallFormat& format = *reading_->calls;
  call_ += c;
  const std::string_view rest = SkipBlanks(call_);
  if (rest.empty()) return call_.clear();
  bool waits = false;
  for (const std::string_view end : format.ends) {
    if (end.empty() || !Begins(end, rest)) continue;
    waits = true;
    if (rest != end) continue;
    in_list_ = false;
    return call_.clear();
  }
  for (const std::string_view open : {format.open, format.next}) {
    if (open.empty() || !Begins(open, rest)) continue;
    waits = true;
    if (rest != open) continue;
    std::string text = std::move(call_);
    bare_ = in_list_ = false;
    BeginCall(std::move(text));
    if (open == format.next) tail_ = call_.size() - open.size();
    if (open == format.next) at_ = At::kHeader, value_ = tail_;
    return;
  }
  if (in_list_ && rest == "]") {
    in_list_ = false;
    return call_.clear();
  }
  // The next call of a list, or of several without marks.
  std::string_view item = rest;
  if (item.front() == ',' || (!in_list_ && item.front() == ';')) {
    item = SkipBlanks(item.substr(1));
  } else if (in_list_) {
    item = "x";
  }
  if (in_list_ || format.bare) {
    if (item.empty() && call_.size() <= kMaxHeldBlanks) return;
    if (item == "{") {
      tail_ = 0;
      return BeginValue(call_.size() - 1);
    }
  }
  if (waits) return;
  const std::string text(rest);
  call_.clear();
  in_list_ = false;
  at_ = At::kContent;
  for (const char one : text) Take(one);
}

}  // namespace kvasir
