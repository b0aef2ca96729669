// An answer of embeddings: POST /v1/embeddings, and Ollama's /api/embed and /api/embeddings.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "api/answer_writer.h"

namespace kvasir {

struct EmbeddingForm {
  // OpenAI's; Ollama's /api/embed; Ollama's /api/embeddings, of one text.
  enum class Shape : uint8_t { kOpenAi, kOllama, kOllamaOne };
  Shape shape = Shape::kOpenAi;
  bool is_base64 = false;   // of f32, little endian
  uint32_t dimensions = 0;  // the first so many numbers of each embedding, which are then normed
};

// Returns the first numbers of an embedding, with unit length: scaled by 1 / the root of the sum of
// their squares, in double. All zeros stay zeros. REQUIRES: dimensions <= embedding.size().
std::vector<float> NormedEmbedding(std::span<const float> embedding, uint32_t dimensions);

// Writes one embedding for each prompt, in their order. Never streams.
class EmbeddingWriter : public AnswerWriter {
 public:
  EmbeddingWriter(EmbeddingForm form, size_t num_texts);

  void See(const Answer& answer, const Answer::Step& step, const Event& event) override;
  std::string StepEvents(const Answer&, const Answer::Step&, const Event&) override { return ""; }
  std::string ProgressEvent(const Answer&, uint32_t, const Progress&) override { return ""; }
  std::string EndEvents(const Answer&, size_t) override { return ""; }
  std::string ErrorEvent(const Error&) const override { return ""; }
  Parts Body(const Answer& answer) const override;
  // Counts all embeddings from the beginning, since each will come.
  uint64_t held_bytes() const override;

 private:
  Parts List() const;
  Parts NumbersOf(size_t text) const;
  std::string OpenAiEnd(const Answer& answer) const;
  std::string OllamaEnd(const Answer& answer) const;

  const EmbeddingForm form_;
  const uint64_t begun_ns_;
  std::vector<std::vector<float>> embeddings_;  // [text]
};

}  // namespace kvasir
