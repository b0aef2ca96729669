// AnswerParser: thoughts, content and tool calls out of the text of an answer, while it comes.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "chat/answer_format.h"
#include "chat/json_scanner.h"
#include "chat/tool_call.h"

namespace kvasir {

// Where the thoughts of answers are: given as such; in the content, with their marks; or in both.
enum class ThoughtForm : uint8_t { kApart, kInContent, kBoth };
// Reads the names of `reasoning_format`: "auto" and "deepseek", "none", "deepseek-legacy". Absent:
// another name.
std::optional<ThoughtForm> ThoughtFormOf(std::string_view name);

// How the answers to a request are read. The tables of chat/answer_format.h live for ever.
struct AnswerReading {
  const ThinkMarks* think = nullptr;  // null: nothing is a thought
  ThoughtForm thoughts = ThoughtForm::kApart;
  bool begins_inside_thought = false;
  const CallFormat* calls = nullptr;  // null: nothing is a call
  std::vector<ToolSpec> tools;        // a call of any other one is content
  bool parallel = true;               // else only the first call counts; later ones are dropped
  // Calls follow their grammar (chat/answer_grammar.h): those after a mark, or those without one
  // too. What begins the arguments of such a call is a call, unless the answer is cut.
  bool marked_calls_are_certain = false, bare_calls_are_certain = false;
};

struct AnswerEvent {
  enum class Kind : uint8_t {
    kReasoning,  // text: a piece of the thought
    kContent,    // text: a piece of what the user reads
    kCallBegin,  // text: the tool's name; id: the call's, if the model wrote one
    kArguments,  // text: a piece of the arguments, JSON
    kCallEnd,
  };
  Kind kind;
  std::string text, id;
};

// Reads one answer byte by byte, so that the result is the same wherever its text is cut: the
// joined texts of each kind, and the order of the kinds.
//
// A thought stands where the answer begins, white space aside. A call without a mark stands where
// the content begins. White space next to a mark belongs to the mark. Text that begins a mark waits
// until it is certain; a call waits until its arguments are complete, and everything up to
// kMaxCallBytes that turns out to be no call is content, as it was written. A call that is certain
// waits for its name only, and its JSON arguments come in pieces; XML waits to become JSON. A mark
// that is cut off after a call is dropped. Memory: O(the call that waits). One thread at a time.
class AnswerParser {
 public:
  static constexpr size_t kMaxCallBytes = size_t{1} << 20;

  explicit AnswerParser(std::shared_ptr<const AnswerReading> reading);

  // Adds what is certain to `events`; a piece is joined with the last one if it has the same kind.
  // O(piece), amortised.
  void Append(std::string_view piece, std::vector<AnswerEvent>* events);
  // Ends after the last piece: adds what waited.
  void Finish(std::vector<AnswerEvent>* events);

  bool inside_thought() const { return at_ == At::kThought; }
  size_t num_calls() const { return num_calls_; }
  size_t held_bytes() const { return sizeof(*this) + held_.capacity() + call_.capacity(); }

 private:
  enum class At : uint8_t { kThought, kContent, kCall, kHeader, kValue, kXml, kAfterCall };

  void Take(char c);
  void InThought(char c);
  void InContent(char c);
  void InCall(char c);    // after a mark: what a call begins with
  void InHeader(char c);  // before the arguments of a kNamed or kDeepSeek call
  void InValue(char c);
  void InXml(char c);
  void AfterCall(char c);

  void Give(AnswerEvent::Kind kind, std::string_view text);
  void GiveContent(std::string_view text);
  void GiveThought(std::string_view text);
  bool thoughts_apart() const { return reading_->thoughts != ThoughtForm::kInContent; }
  bool thoughts_in_content() const { return reading_->thoughts != ThoughtForm::kApart; }
  // `text`: what has been read of the call, with white space and mark before it.
  void BeginCall(std::string text);
  void BeginValue(size_t begin);
  void BeginCertain(const std::optional<ToolCall>& call);
  void InCertain(char c);
  // nullopt: it is not a call.
  void EndCall(std::optional<ToolCall> call);
  void BeginCall(std::string name, std::string id);
  void CloseCall();
  void GiveCallEvent(AnswerEvent event);  // unless the call is dropped
  // Ends what is not a call: its first `certain` bytes are content, the rest is read again.
  void NoCall(size_t certain);

  const std::shared_ptr<const AnswerReading> reading_;
  std::vector<AnswerEvent>* events_ = nullptr;  // while Append or Finish runs
  At at_ = At::kContent;
  std::string held_;           // white space and the beginning of a mark
  bool skips_blanks_ = false;  // after a mark
  bool begun_ = false;         // a thought, content or a call has come
  bool content_begun_ = false;
  // The call that is read:
  std::string call_;         // what has been read of it
  size_t tail_ = 0;          // where the text after its mark begins
  size_t value_ = 0;         // where its JSON begins
  bool has_header_ = false;  // the JSON is the arguments
  bool bare_ = false;        // without a mark
  bool in_list_ = false;
  bool in_parameter_ = false;  // of XML
  bool is_certain_ = false;    // its name was given, and its arguments are as they come
  size_t outside_ = 0;         // is_certain_: depth of scanner_ around the arguments
  bool is_dropped_ = false;    // of several, where one is allowed
  JsonScanner scanner_;
  size_t num_calls_ = 0;
};

}  // namespace kvasir
