// Reads any answer in random pieces: they must give what the whole gives, and every call must have
// arguments that are a JSON object. The first byte picks the format, the second one seeds the cuts.
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "base/json_tree.h"
#include "chat/answer_parser.h"
#include "cost_limits.h"
#include "fuzz_target.h"

namespace kvasir {
namespace {

constexpr std::string_view kTemplates[] = {"<tool_call> </think>",
                                           "<function= <parameter= </think>",
                                           "\"parameters\" ipython",
                                           "[TOOL_CALLS] [/THINK]",
                                           "<｜tool▁calls▁begin｜> <｜tool▁sep｜> </think>",
                                           "<|tool_call|>",
                                           ""};

// Events as one text in which joined pieces are the same as the whole.
class ReadAnswer {
 public:
  void Add(const std::vector<AnswerEvent>& events) {
    for (const AnswerEvent& event : events) {
      const bool joins = event.kind == last_ && event.kind != AnswerEvent::Kind::kCallBegin;
      if (!joins) text_ += "\n#" + std::to_string(static_cast<int>(event.kind)) + event.id + ":";
      text_ += event.text;
      last_ = event.kind;
      if (event.kind != AnswerEvent::Kind::kArguments) continue;
      JsonTree tree;
      const auto arguments = tree.Parse(event.text);
      KV_CHECK(arguments && arguments->is_object());
    }
  }
  bool operator==(const ReadAnswer&) const = default;

 private:
  std::string text_;
  AnswerEvent::Kind last_ = AnswerEvent::Kind::kCallEnd;
};

void Read(uint8_t format, uint8_t seed, std::string_view text) {
  AnswerReading reading;
  const std::string_view chat_template = kTemplates[format % std::size(kTemplates)];
  reading.calls = &FindCallFormat(chat_template);
  reading.think = FindThinkMarks(chat_template);
  reading.tools = {{"weather", {"city"}}, {"clock", {}}, {"", {}}};
  reading.begins_inside_thought = (format & 64) != 0;
  reading.thoughts = (format & 128) == 0 ? ThoughtForm::kApart
                     : (seed & 2) == 0   ? ThoughtForm::kInContent
                                         : ThoughtForm::kBoth;
  reading.parallel = (seed & 1) == 0;
  const auto shared = std::make_shared<const AnswerReading>(std::move(reading));
  ReadAnswer whole, pieces;
  std::vector<AnswerEvent> events;
  AnswerParser at_once(shared);
  at_once.Append(text, &events);
  at_once.Finish(&events);
  whole.Add(events);
  AnswerParser cut(shared);
  uint32_t random = seed;
  while (!text.empty()) {
    random = random * 1664525u + 1013904223u;
    const size_t size = std::min<size_t>(text.size(), 1 + (random >> 24) % 7);
    events.clear();
    cut.Append(text.substr(0, size), &events);
    pieces.Add(events);
    text.remove_prefix(size);
  }
  events.clear();
  cut.Finish(&events);
  pieces.Add(events);
  KV_CHECK(whole == pieces);
}

}  // namespace
}  // namespace kvasir

KV_FUZZ_TARGET(tool_call)(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  const kvasir::CpuLimit limit;
  kvasir::Read(data[0], data[1], {reinterpret_cast<const char*>(data + 2), size - 2});
  limit.Check(size);
  return 0;
}
