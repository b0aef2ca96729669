// Vocabularies of translation models whose folders have no tokenizer.json: a SentencePiece model,
// whose pieces other files number.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "kvasir/status.h"
#include "text/vocabulary.h"

namespace kvasir {

struct M2mFiles {
  std::string_view vocab_json;  // {"piece": id}
  std::string vocab_path;       // names it in errors
  // "", or the text of the file: language_codes ("m2m100" or "wmt21") and num_madeup_words (8).
  std::string_view tokenizer_config_json;
};

// Makes M2M-100's vocabulary: ids by vocab.json, then a token `__en__` for each language in a fixed
// order, then num_madeup_words ids without a token. `pieces`: what ParseSentencePiece yields. A
// piece that vocab.json lacks becomes the unknown token. vocab_size: the model's. kCorruption:
// vocab.json is damaged, gives an id twice or not at all, lacks a special token or more than one in
// 16 pieces, or its size does not go with vocab_size; the message says how to mend it.
Result<Vocabulary> M2mVocabulary(Vocabulary pieces, const M2mFiles& files, size_t vocab_size);

// Makes NLLB-200's vocabulary: <s>, <pad>, </s>, <unk>, the pieces in their order, the languages in
// a fixed order, <mask>. kCorruption: the first pieces are not <unk>, <s> and </s>, or there are
// more ids than vocab_size, or 128 fewer.
Result<Vocabulary> NllbVocabulary(Vocabulary pieces, size_t vocab_size);

struct Ct2Tokens {
  std::vector<std::string> tokens;  // by id
  std::string path;                 // names them in errors
  std::string unk, bos, eos;
};

// Makes CTranslate2's vocabulary: the tokens of a model, and the SentencePiece model that cuts
// texts into them. Languages of M2M-100 and NLLB-200 among them are special. A piece that is not a
// token becomes the unknown one. kCorruption: unk or eos is not a token, or more than one in 16
// pieces is not; CheckVocabulary finds the rest.
Result<Vocabulary> Ct2Vocabulary(Vocabulary pieces, const Ct2Tokens& tokens);

}  // namespace kvasir
