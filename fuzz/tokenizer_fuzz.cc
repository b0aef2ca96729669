// Parses, encodes, decodes and streams any bytes. An input is a tokenizer.json and, after a zero
// byte, a text; without one the file itself is the text.
#include <cstdint>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"

namespace {

void Require(bool condition) {
  if (!condition) std::abort();
}

void RunTokenizer(const kvasir::Tokenizer& tokenizer, std::string_view text) {
  kvasir::EncodeOptions chat;
  chat.literal = {{text.size() / 3, text.size() / 2}};
  kvasir::EncodeOptions plain;
  plain.parse_special = false;
  for (const auto& options : {kvasir::EncodeOptions{}, chat, plain}) {
    auto ids = tokenizer.Encode(text, options);
    std::vector<kvasir::TokenId> all = ids ? *ids : std::vector<kvasir::TokenId>{};
    for (size_t i = 0; i < 64 && i < text.size(); ++i) {
      all.push_back(static_cast<uint8_t>(text[i]) * 5 - 8);
    }
    std::string streamed;
    kvasir::TextStream stream(tokenizer, /*skip_special=*/false);
    for (kvasir::TokenId id : all) streamed += stream.Append(id);
    streamed += stream.Finish();
    Require(streamed == tokenizer.Decode(all, /*skip_special=*/false));
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t split = input.find('\0');
  const std::string_view json = input.substr(0, split);
  const std::string_view text =
      split == std::string_view::npos ? input.substr(0, 4096) : input.substr(split + 1, 4096);
  auto tokenizer = kvasir::Tokenizer::Parse(json, json);
  if (tokenizer) RunTokenizer(**tokenizer, text);
  return 0;
}
