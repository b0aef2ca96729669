// Compiles any text as GBNF and as a regular expression; then reads random bytes and tokens with
// what compiled: a token is legal where the mask has it, or its places become too many. (Memory is
// limited by tools/fuzz.sh.)
#include <cstdint>
#include <string_view>

#include "cost_limits.h"
#include "fuzz_target.h"
#include "grammar/grammar_text.h"
#include "read_grammar.h"

KV_FUZZ_TARGET(gbnf)(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const kvasir::CpuLimit limit;
  for (const auto language :
       {kvasir::FormatLanguage::kGbnf, kvasir::FormatLanguage::kRegularExpression}) {
    const auto grammar = kvasir::CompileGrammarText(language, input);
    if (grammar) kvasir::ReadWith(*grammar, size);
  }
  limit.Check(size);
  return 0;
}
