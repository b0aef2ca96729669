// The events of translations as the answer of POST /v1/translations.
#pragma once

#include <string>
#include <vector>

#include "server/openai_response.h"

namespace kvasir {

// {"object": "list", "model", "data": [{"index", "text", "finish_reason", "kvasir"}], "usage"}: an
// entry for each text of the request, in its order; an empty text has "" and no receipt. One thread
// at a time.
class TranslationAnswer : public Answer {
 public:
  // REQUIRES: spec.translation, and not spec.stream.
  TranslationAnswer(AnswerSpec spec, size_t num_prompts, std::string id,
                    const Tokenizer* tokenizer);

  Parts Body() const override;

 private:
  void AddReceipt(size_t prompt, const Event& event) override;

  std::vector<Receipt> receipts_;  // [request], once it has ended
};

}  // namespace kvasir
