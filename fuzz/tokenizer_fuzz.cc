// Parses, encodes, decodes and streams any bytes. An input is a tokenizer.json and, after a zero
// byte, a text; without one the file itself is the text.
#include <cstdint>
#include <string_view>

#include "fuzz_target.h"
#include "run_tokenizer.h"

KV_FUZZ_TARGET(tokenizer)(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t split = input.find('\0');
  const std::string_view json = input.substr(0, split);
  const std::string_view text =
      split == std::string_view::npos ? input.substr(0, 4096) : input.substr(split + 1, 4096);
  auto tokenizer = kvasir::Tokenizer::Parse(json, json);
  if (tokenizer) kvasir::RunTokenizer(**tokenizer, text);
  return 0;
}
