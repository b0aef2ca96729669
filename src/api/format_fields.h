// The fields of a request that say what its answer may be.
#pragma once

#include <optional>

#include "http/json_body.h"
#include "kvasir/answer_format.h"

namespace kvasir {

// Reads OpenAI's `response_format`, llama.cpp's `json_schema` and `grammar`, vLLM's `guided_json`,
// `guided_regex`, `guided_choice`, `guided_grammar` and `structured_outputs`: one of them at most.
// Absent: any text. Errors stay in `fields`; those of the text itself are Engine::SubmitAll's.
std::optional<AnswerFormat::Text> ReadFormatText(JsonFields& fields);

// `tool_choice`: "auto", "none", "required", or a function.
struct ToolChoice {
  bool reads_calls = true;          // else calls stay text
  bool must_call = false;           // calls and nothing else
  std::optional<std::string> only;  // the function that may be called
};
ToolChoice ReadToolChoice(JsonFields& fields);

}  // namespace kvasir
