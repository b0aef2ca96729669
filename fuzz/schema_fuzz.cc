// Compiles any JSON as a schema, loose and strict, and reads random tokens with what compiled. It
// may fail, but must not crash or take long. (Memory is limited by tools/fuzz.sh.)
#include <cstdint>
#include <string_view>

#include "base/json_tree.h"
#include "cost_limits.h"
#include "grammar/json_schema.h"
#include "read_grammar.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using kvasir::SchemaStrictness;
  kvasir::JsonTree tree;
  const auto schema = tree.Parse({reinterpret_cast<const char*>(data), size});
  if (!schema) return 0;
  const kvasir::CpuLimit limit;
  const auto loose = kvasir::CompileJsonSchema(*schema, SchemaStrictness::kLoose);
  const auto strict = kvasir::CompileJsonSchema(*schema, SchemaStrictness::kStrict);
  KV_CHECK(loose.has_value() || !strict.has_value());
  if (loose) kvasir::ReadWith(*loose, size);
  limit.Check(size);
  return 0;
}
