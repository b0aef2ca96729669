// AnswerFormat: what an answer may be.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace kvasir {

struct CallFormat;
struct ThinkMarks;

// What a text that describes answers is written in (docs/structured-output.md).
enum class FormatLanguage : uint8_t {
  kGbnf,
  kJsonSchema,
  kStrictJsonSchema,  // unknown keywords are refused too
  kRegularExpression,
  kTexts,  // a JSON list of strings: one of them
};

// An answer that ends with "stop" is such a text; one that max_tokens or a deadline ends is the
// beginning of one. What does not say that it may think or call is about the whole answer.
struct AnswerFormat {
  struct Text {
    FormatLanguage language;
    std::string text;
    std::string field;  // where the request has it, for errors
  };
  std::optional<Text> text;  // absent: any text, and calls of the tools

  struct Tool {
    std::string name;
    std::string parameters;  // JSON Schema; "": any object
    bool is_strict = false;  // kStrictJsonSchema
  };
  std::vector<Tool> tools;     // with `text`: the answer is it, or calls
  bool must_call = false;      // calls and nothing else
  bool parallel_calls = true;  // else one call at most
  // How calls are written; lives for ever. REQUIRES: not null where there are tools.
  const CallFormat* calls = nullptr;

  // How thoughts are written; lives for ever. Null: nothing is a thought. What follows a
  // thought has the format; with `text` or must_call, an answer that ends inside it is not whole.
  const ThinkMarks* think = nullptr;
  bool begins_inside_thought = false;  // the prompt ends there
  // Tokens of the thought, after which its closing mark follows; absent: any number.
  std::optional<uint32_t> max_thought_tokens;
};

}  // namespace kvasir
