#include "chat/answer_format.h"

#include <algorithm>
#include <iterator>

namespace kvasir {
namespace {

// The first row whose evidence a template has is its format.
constexpr CallFormat kCallFormats[] = {
    {"qwen3-coder",
     {"<function=", "<parameter="},
     CallBody::kXml,
     "<tool_call>",
     "",
     {"</tool_call>"}},
    {"deepseek",
     {"<｜tool▁calls▁begin｜>", kDeepSeekSeparator},
     CallBody::kDeepSeek,
     "<｜tool▁calls▁begin｜>",
     kDeepSeekCall,
     {"```", "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>"}},
    {"mistral", {"[TOOL_CALLS]"}, CallBody::kNamed, "[TOOL_CALLS]", "", {}, false, true},
    {"granite", {"<|tool_call|>"}, CallBody::kJson, "<|tool_call|>", "", {}},
    {"hermes", {"<tool_call>"}, CallBody::kJson, "<tool_call>", "", {"</tool_call>"}},
    {"llama3", {"\"parameters\"", "ipython"}, CallBody::kJson, "<|python_tag|>", "", {}, true},
    {"json", {}, CallBody::kJson, "", "", {}, true},
};

// The closing mark is the evidence: some templates write the opening one in no answer.
constexpr ThinkMarks kThinkMarks[] = {
    {"<think>", "</think>"},
    {"[THINK]", "[/THINK]"},
    {"<seed:think>", "</seed:think>"},
    {"<thinking>", "</thinking>"},
    {"<|START_THINKING|>", "<|END_THINKING|>"},
    {"<|inner_prefix|>", "<|inner_suffix|>"},
};

}  // namespace

const CallFormat& FindCallFormat(std::string_view chat_template) {
  return *std::ranges::find_if(kCallFormats, [&](const CallFormat& format) {
    return std::ranges::all_of(format.evidence, [&](std::string_view mark) {
      return chat_template.find(mark) != chat_template.npos;
    });
  });
}

const ThinkMarks* FindThinkMarks(std::string_view chat_template) {
  const auto* found = std::ranges::find_if(kThinkMarks, [&](const ThinkMarks& marks) {
    return chat_template.find(marks.close) != chat_template.npos;
  });
  return found == std::end(kThinkMarks) ? nullptr : found;
}

PromptThought ThoughtAtEnd(const ThinkMarks& marks, std::string_view end_of_prompt) {
  const size_t open = end_of_prompt.rfind(marks.open), close = end_of_prompt.rfind(marks.close);
  if (close != end_of_prompt.npos && (open == end_of_prompt.npos || close > open)) {
    return PromptThought::kClosed;
  }
  return open == end_of_prompt.npos ? PromptThought::kNone : PromptThought::kInside;
}

const std::vector<std::string_view>& AllMarks() {
  static const std::vector<std::string_view> kAll = [] {
    std::vector<std::string_view> all;
    for (const CallFormat& format : kCallFormats)
      std::ranges::copy(MarksOf(format), std::back_inserter(all));
    for (const ThinkMarks& marks : kThinkMarks) all.insert(all.end(), {marks.open, marks.close});
    std::ranges::sort(all);
    all.erase(std::unique(all.begin(), all.end()), all.end());
    return all;
  }();
  return kAll;
}

std::vector<std::string_view> MarksOf(const CallFormat& format) {
  std::vector<std::string_view> marks = {format.open, format.next};
  marks.insert(marks.end(), format.ends.begin(), format.ends.end());
  if (format.body == CallBody::kNamed) marks.insert(marks.end(), {kArgsMark, kCallIdMark});
  if (format.body == CallBody::kDeepSeek) marks.push_back(kDeepSeekSeparator);
  std::erase(marks, std::string_view());
  return marks;
}

}  // namespace kvasir
