// GBNF: grammars as llama.cpp writes them.
#pragma once

#include <string_view>

#include "grammar/grammar.h"

namespace kvasir {

//   grammar  = { name "::=" choice newline } ; `root` is what is matched
//   choice   = sequence { "|" sequence }
//   sequence = { part [ "*" | "+" | "?" | "{m}" | "{m,}" | "{,n}" | "{m,n}" ] }
//   part     = name | "text" | [characters] | [^characters] | . | "(" choice ")"
//   # begins a comment. A rule ends with its line, unless that ends inside of parentheses or after
//   "::=" or "|". Escapes: \n \r \t \\ \" \[ \] \- \^ and characters by their code: \xHH \uHHHH
//   \UHHHHHHHH. A class has characters and ranges a-z.
// kInvalidArgument says what is wrong with line and column, or with which rule (Grammar::Compile);
// also a text over kMaxGrammarBytes. O(size).
Result<ExpressionId> AddGbnf(std::string_view text, GrammarSource* source);

}  // namespace kvasir
