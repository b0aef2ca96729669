// Texts that describe answers, in each of their languages.
#pragma once

#include <memory>
#include <string_view>

#include "grammar/grammar.h"
#include "grammar/json_text.h"
#include "kvasir/answer_format.h"

namespace kvasir {

// Adds the texts that a text in this language names. Errors as those of AddGbnf, AddJsonSchema and
// AddRegularExpression; kInvalidArgument too where JSON is malformed or nests more than 128 deep,
// or a list of texts is empty. O(size).
Result<ExpressionId> AddGrammarText(FormatLanguage language, std::string_view text, JsonText* json);

// Returns the grammar of such texts alone. Errors as above, and Grammar::Compile's.
Result<std::shared_ptr<const Grammar>> CompileGrammarText(FormatLanguage language,
                                                          std::string_view text);

}  // namespace kvasir
