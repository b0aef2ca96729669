// ModelCard: what a loaded model is.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kvasir/pooling.h"
#include "kvasir/sampling_params.h"
#include "kvasir/types.h"

namespace kvasir {

struct ModelCard {
  std::string id, architecture, path, dtype;
  uint64_t parameters = 0;
  uint32_t vocab_size = 0, max_positions = 0, ctx_size = 0, num_layers = 0, hidden_size = 0;
  // RoPE longrope: sequences of more tokens are rotated by other factors, and a sequence that grows
  // past it is computed again. Absent: the rotation does not depend on the length.
  std::optional<uint32_t> long_rope_after;
  // The first token of an encoder-decoder model's decoder. Such a model needs a
  // GenerateRequest::source. Absent: the model has no encoder.
  std::optional<TokenId> decoder_start;
  uint32_t source_vocab_size = 0;             // of such a model; others: 0
  std::optional<LanguagePair> language_pair;  // of a model that translates one pair of languages
  uint32_t draft_vocab_size = 0;              // 0 without a draft model
  std::vector<TokenId> bos, eos;
  FimTokens fim;  // those that the model's files name
  SamplingDefaults sampling;
  // Digest in hex digits of everything that decides a logit, except the KV format: weights in the
  // format that computes, config, tokenizer, numerics version. It does not depend on file names.
  std::string content;
  // Why the model reads no text, and what to do: "tokenizer.model: ...". Absent: it has a
  // tokenizer.
  std::optional<std::string> no_text;
  // The model's chat template, where it is a bare word that names no built-in one: then there is
  // none.
  std::optional<std::string> unknown_template;
  // Why no sequence may drop tokens (RetentionChoice): "models with an encoder ..."; empty: they
  // may.
  std::string no_retention;
  std::string no_spans;            // the same of PromptSpans
  std::optional<Pooling> pooling;  // of embeddings; absent: the model's files do not say
  std::string no_embeddings;       // why texts have none; empty: they have
  // A sentence for each part of text that the model lacks (tokenizer, chat template): what to do.
  std::vector<std::string> text_notes;
  // The weights are mapped from a model image, so other engines of the model share their memory.
  bool weights_shared = false;
};

}  // namespace kvasir
