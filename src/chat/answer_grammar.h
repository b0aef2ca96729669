// The grammar of whole answers: a thought, then a text of a format or calls of tools.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/digest.h"
#include "grammar/grammar.h"
#include "kvasir/answer_format.h"
#include "text/tokenizer.h"

namespace kvasir {

// Returns the texts of tokens as grammars read them: [vocab_size]. A special token that is one of
// AllMarks is kMark and the mark's number, one of `ends` is "", and all others are kHiddenToken.
std::vector<std::string> GrammarTexts(const Tokenizer& tokenizer, const TokenBytes& bytes,
                                      const std::vector<TokenId>& ends);

// Returns the mark that such a text stands for.
std::optional<std::string_view> MarkOf(std::string_view grammar_text);

// Tells whether not every text is an answer of the format.
bool HasGrammar(const AnswerFormat& format);

// From the beginning, or from a thought's closing mark on.
enum class AnswerPart : uint8_t { kWhole, kFromThoughtsEnd };
// Returns the digest of everything that decides the grammar of the part.
Digest DigestOf(const AnswerFormat& format, AnswerPart part, size_t dropped_spaces);
// Calls are written as docs/tools.md says. Without must_call, any text may stand around them, and
// what follows a mark of a call is one; a tool whose schema is not supported, and that is not
// strict, then takes any object. dropped_spaces: TokenBytes'. kInvalidArgument names Text::field,
// or "tools" and the tool: errors of AddGrammarText and Grammar::Compile. O(format).
Result<std::shared_ptr<const Grammar>> CompileAnswer(const AnswerFormat& format, AnswerPart part,
                                                     size_t dropped_spaces);

}  // namespace kvasir
