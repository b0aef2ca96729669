// tokenizer.model and *.tiktoken: an error with a message, or a tokenizer that is run over its own
// tokens. An input is such a file, and, from "\0{" on, the JSON object that the files beside it
// hold.
#include <cstdint>
#include <string_view>

#include "fuzz_target.h"
#include "run_tokenizer.h"
#include "text/sentencepiece_model.h"
#include "text/tiktoken_ranks.h"
#include "text/vocabulary_config.h"

KV_FUZZ_TARGET(vocabulary_file)(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t split = input.rfind(std::string_view("\0{", 2));
  const std::string_view bytes = input.substr(0, split);
  const std::string_view json = split == input.npos ? "" : input.substr(split + 1);
  const bool ranks = kvasir::LooksLikeTiktoken(bytes);
  auto vocabulary = ranks ? kvasir::ParseTiktoken(bytes, "fuzz", size % 2 ? "llama" : "qwen2")
                          : kvasir::ParseSentencePiece(bytes, "fuzz");
  if (!vocabulary) {
    kvasir::Require(!vocabulary.error().message.empty());
    return 0;
  }
  if (size % 3 == 0 || !kvasir::Apply({json, json, json}, &*vocabulary)) {
    if (!kvasir::Apply({json, json, ""}, &*vocabulary)) return 0;
  }
  kvasir::RunVocabulary(*vocabulary, input);
  return 0;
}
