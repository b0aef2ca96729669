#include "server/translation_response.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "observe/receipt_json.h"
#include "server/json_body.h"

namespace kvasir {

using nlohmann::json;

TranslationAnswer::TranslationAnswer(AnswerSpec spec, size_t num_prompts, std::string id,
                                     const Tokenizer* tokenizer)
    : Answer(std::move(spec), num_prompts, std::move(id), 0, tokenizer), receipts_(num_prompts) {}

void TranslationAnswer::AddReceipt(size_t prompt, const Event& event) {
  Answer::AddReceipt(prompt, event);
  receipts_[prompt] = event.receipt;
}

Parts TranslationAnswer::Body() const {
  std::string out =
      fmt::format(R"({{"object":"list","model":{},"data":[)", Dump(json(spec_.model)));
  const auto& request_of = spec_.translation->request_of;
  for (size_t i = 0; i < request_of.size(); ++i) {
    json entry = {{"index", i}, {"text", ""}, {"finish_reason", "stop"}};
    if (const auto request = request_of[i]) {
      entry["text"] = choices_[*request].text;
      entry["finish_reason"] = ToString(choices_[*request].finish);
      entry["kvasir"] = ReceiptJson(receipts_[*request]);
    }
    if (i > 0) out += ',';
    out += Dump(entry);
    if (out.size() >= kPartBytes) co_yield out;
  }
  uint64_t source_tokens = 0;
  for (const Receipt& receipt : receipts_) source_tokens += receipt.source_tokens;
  out += fmt::format(R"(],"usage":{{"source_tokens":{},"target_tokens":{}}}}})", source_tokens,
                     completion_tokens());
  co_yield out;
}

}  // namespace kvasir
