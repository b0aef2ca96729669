// A GGUF file's vocabulary: an error with a message, or a tokenizer that is run over its own
// tokens.
#include <cstdint>
#include <span>
#include <string_view>

#include "fuzz_target.h"
#include "import/gguf_vocabulary.h"
#include "run_tokenizer.h"

KV_FUZZ_TARGET(gguf_vocabulary)(const uint8_t* data, size_t size) {
  const auto gguf = kvasir::ParseGguf(std::as_bytes(std::span(data, size)), "fuzz");
  if (!gguf) return 0;
  for (kvasir::TokenId id : kvasir::EndsByName(*gguf)) kvasir::Require(id >= 0);
  const auto vocabulary = kvasir::ReadGgufVocabulary(*gguf, "fuzz");
  if (!vocabulary) {
    kvasir::Require(!vocabulary.error().message.empty());
  } else if (*vocabulary) {
    kvasir::RunVocabulary(**vocabulary, {reinterpret_cast<const char*>(data), size});
  }
  return 0;
}
