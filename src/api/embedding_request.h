// Converts request bodies of /v1/embeddings, and of Ollama's /api/embed and /api/embeddings, to
// GenerateRequests.
#pragma once

#include <string_view>

#include "api/generation_call.h"
#include "api/model_view.h"
#include "kvasir/status.h"

namespace kvasir {

// Reads `input`: a text, a list of token ids, or a list of those. kInvalidArgument names the input
// that is wrong: it is empty, too long, or has another form. kUnsupported: the model embeds no
// texts.
Result<GenerationCall> ParseEmbeddingRequest(std::string_view body, const ModelView& model);

// Does the same for Ollama. Clients load a model by a body without a text: it has no requests.
Result<GenerationCall> ParseOllamaEmbed(std::string_view body, const ModelView& model);
Result<GenerationCall> ParseOllamaEmbeddings(std::string_view body, const ModelView& model);

}  // namespace kvasir
