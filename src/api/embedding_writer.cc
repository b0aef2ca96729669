#include "api/embedding_writer.h"

#include <fmt/format.h>

#include <bit>
#include <cmath>
#include <iterator>
#include <nlohmann/json.hpp>

#include "api/openai_json.h"
#include "base/base64.h"
#include "base/clock.h"
#include "http/json_body.h"

namespace kvasir {
namespace {

using nlohmann::json;

static_assert(std::endian::native == std::endian::little, "base64 has the bytes as they lie");

}  // namespace

std::vector<float> NormedEmbedding(std::span<const float> embedding, uint32_t dimensions) {
  std::vector<float> normed(embedding.begin(), embedding.begin() + dimensions);
  double squares = 0;
  for (const float number : normed) squares += double{number} * number;
  if (squares == 0) return normed;
  const double root = std::sqrt(squares);
  for (float& number : normed) number = static_cast<float>(number / root);
  return normed;
}

EmbeddingWriter::EmbeddingWriter(EmbeddingForm form, size_t num_texts)
    : form_(form), begun_ns_(MonotonicNs()), embeddings_(num_texts) {}

uint64_t EmbeddingWriter::held_bytes() const {
  return sizeof(*this) +
         embeddings_.size() * (sizeof(embeddings_[0]) + uint64_t{form_.dimensions} * sizeof(float));
}

void EmbeddingWriter::See(const Answer& answer, const Answer::Step& step, const Event& event) {
  if (!event.last) return;
  embeddings_[answer.PromptOf(step.choice)] = NormedEmbedding(event.embedding, form_.dimensions);
}

// Writes a list of the shortest numbers that are read as the same f32, or the text of their bytes.
Parts EmbeddingWriter::NumbersOf(size_t text) const {
  const std::vector<float>& numbers = embeddings_[text];
  if (form_.is_base64) {
    const std::string_view bytes(reinterpret_cast<const char*>(numbers.data()),
                                 numbers.size() * sizeof(float));
    co_yield "\"" + EncodeBase64(bytes) + "\"";
    co_return;
  }
  std::string out = "[";
  for (size_t i = 0; i < numbers.size(); ++i) {
    fmt::format_to(std::back_inserter(out), "{}{}", i == 0 ? "" : ",", numbers[i]);
    if (out.size() >= kPartBytes) co_yield out;
  }
  out += "]";
  co_yield out;
}

Parts EmbeddingWriter::List() const {
  const bool is_openai = form_.shape == EmbeddingForm::Shape::kOpenAi;
  co_yield "[";
  for (size_t i = 0; i < embeddings_.size(); ++i) {
    if (i > 0) co_yield ",";
    if (is_openai) co_yield fmt::format(R"({{"object":"embedding","index":{},"embedding":)", i);
    co_yield NumbersOf(i);
    if (is_openai) co_yield "}";
  }
  co_yield "]";
}

std::string EmbeddingWriter::OpenAiEnd(const Answer& answer) const {
  const Receipt& receipt = answer.receipt();
  return EndObject({{"id", answer.id()},
                    {"created", answer.created_unix_s()},
                    {"model", answer.spec().model},
                    {"usage",
                     {{"prompt_tokens", receipt.prompt_tokens},
                      {"total_tokens", receipt.prompt_tokens},
                      {"prompt_tokens_details", {{"cached_tokens", receipt.cached_tokens()}}}}},
                    {"kvasir", FinalReceipt(answer)}});
}

std::string EmbeddingWriter::OllamaEnd(const Answer& answer) const {
  json members = {{"model", answer.spec().model}};
  if (form_.shape == EmbeddingForm::Shape::kOllama) {
    members["total_duration"] = MonotonicNs() - begun_ns_;
    members["load_duration"] = 0;  // a model stays loaded
    members["prompt_eval_count"] = answer.receipt().prompt_tokens;
  }
  if (!embeddings_.empty()) members["kvasir"] = FinalReceipt(answer);
  return EndObject(members);
}

Parts EmbeddingWriter::Body(const Answer& answer) const {
  switch (form_.shape) {
    case EmbeddingForm::Shape::kOpenAi:
      co_yield R"({"object":"list","data":)";
      co_yield List();
      co_yield OpenAiEnd(answer);
      break;
    case EmbeddingForm::Shape::kOllama:
      co_yield R"({"embeddings":)";
      co_yield List();
      co_yield OllamaEnd(answer);
      break;
    case EmbeddingForm::Shape::kOllamaOne:
      co_yield R"({"embedding":)";
      if (embeddings_.empty()) {
        co_yield "[]";
      } else {
        co_yield NumbersOf(0);
      }
      co_yield OllamaEnd(answer);
      break;
  }
}

}  // namespace kvasir
