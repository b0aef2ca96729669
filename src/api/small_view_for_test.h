// A ModelView of a small model, for tests of requests.
#pragma once

#include "api/model_view.h"

namespace kvasir {

// Keeps a pointer to the tokenizer, which must outlive it.
inline ModelView SmallView(const Tokenizer& tokenizer) {
  ModelView model;
  model.names = {"m"};
  model.tokenizer = &tokenizer;
  model.vocab_size = 258;
  model.ctx_size = 64;
  model.max_prompts = 8;
  model.max_decoded_bytes = 1 << 20;
  return model;
}

}  // namespace kvasir
