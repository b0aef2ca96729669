// Converts template source to tokens, with the whitespace control of transformers: trim_blocks and
// lstrip_blocks on, and the newline at the end dropped.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "kvasir/status.h"

namespace kvasir::jinja {

struct Token {
  enum class Kind {
    kData,
    kVariableBegin,
    kVariableEnd,
    kBlockBegin,
    kBlockEnd,
    kName,
    kString,  // text holds the string's value, escapes resolved
    kInteger,
    kFloat,
    kOperator,
    kEnd,
  };
  Kind kind;
  std::string text;
  size_t offset;  // into the source, newlines normalised
};

// Writes "line 3, column 7" of an offset.
std::string Position(std::string_view source, size_t offset);
size_t LineOf(std::string_view source, size_t offset);

// Makes CRLF and CR into LF and drops one newline at the end, as jinja2 does first.
std::string NormalizeNewlines(std::string_view source);

// kInvalidArgument with the position. The result has no comments or raw blocks and ends with kEnd.
Result<std::vector<Token>> Tokenize(std::string_view source);

}  // namespace kvasir::jinja
