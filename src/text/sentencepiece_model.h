// SentencePiece models (tokenizer.model): a protocol buffer with pieces and how they were trained.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "kvasir/status.h"
#include "text/vocabulary.h"

namespace kvasir {

// Reads `bytes` of a ModelProto (sentencepiece_model.proto), of which these fields matter:
//   ModelProto      := 1: SentencePiece*  2: TrainerSpec  3: NormalizerSpec
//   SentencePiece   := 1: piece  2: score (float)  3: type (1..6; 1 if absent)
//   TrainerSpec     := 3: model_type (2: BPE; 1, unigram, if absent)
//                      24: treat_whitespace_as_suffix  41: bos_id (1)  42: eos_id (2)
//   NormalizerSpec  := 2: precompiled_charsmap  3: add_dummy_prefix (true)
//                      4: remove_extra_whitespaces (true)  5: escape_whitespaces (true)
//
// kCorruption: the bytes are not such a message, or the table of normalisation is damaged.
// kUnsupported: neither unigram nor BPE, or another option; the error says what to do.
// kInvalidArgument: more than max_tokens, of which no more are kept. CheckVocabulary checks the
// tokens.
Result<Vocabulary> ParseSentencePiece(std::string_view bytes, const std::string& file,
                                      size_t max_tokens = SIZE_MAX);

}  // namespace kvasir
