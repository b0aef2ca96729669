// Compiles any JSON as a schema, loose and strict, and reads random tokens with what compiled. It
// may fail, but must not crash or take long. (Memory is limited by tools/fuzz.sh.)
#include <cstdint>
#include <string_view>

#include "base/json_tree.h"
#include "cost_limits.h"
#include "fuzz_target.h"
#include "grammar/grammar_text.h"
#include "read_grammar.h"

KV_FUZZ_TARGET(schema)(const uint8_t* data, size_t size) {
  using kvasir::FormatLanguage;
  const std::string_view schema(reinterpret_cast<const char*>(data), size);
  const kvasir::CpuLimit limit;
  const auto loose = kvasir::CompileGrammarText(FormatLanguage::kJsonSchema, schema);
  const auto strict = kvasir::CompileGrammarText(FormatLanguage::kStrictJsonSchema, schema);
  KV_CHECK(loose.has_value() || !strict.has_value());
  if (loose) kvasir::ReadWith(*loose, size);
  limit.Check(size);
  return 0;
}
