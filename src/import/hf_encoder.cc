#include "import/hf_encoder.h"

#include "base/result.h"

namespace kvasir {
namespace {

// transformers' defaults of M2M100Config.
constexpr uint32_t kEncoderHeads = 16, kEncoderFfn = 4096, kPadId = 1;
constexpr TokenId kDecoderStart = 2;

// Sinusoids of narrower rows are not defined: their frequencies are 10000^(-i / (half - 1)).
constexpr uint32_t kLeastHiddenSize = 4;

}  // namespace

Result<TokenId> ReadDecoderStart(Fields& fields, const std::string& file) {
  if (fields.Find("decoder_start_token_id") == nullptr) return kDecoderStart;
  const std::vector<TokenId> ids = fields.Ids("decoder_start_token_id");
  KV_TRY(fields.status());
  if (ids.size() == 1) return ids[0];
  return Fail(Code::kInvalidArgument, "{}: decoder_start_token_id has {} ids; it must be one", file,
              ids.size());
}

Status ReadHfEncoder(Fields& fields, const Architecture& row, const std::string& file,
                     ModelConfig& config) {
  const HfKeys& keys = row.encoder_keys;
  EncoderConfig encoder;
  encoder.num_layers = fields.Count(keys.layers, ConfigLimits::kLayers);
  encoder.num_heads = fields.Count(keys.heads, ConfigLimits::kHeads, kEncoderHeads);
  encoder.ffn_size = fields.Count(keys.ffn, ConfigLimits::kFfnSize, kEncoderFfn);
  encoder.first_position = fields.CountFrom0("pad_token_id", ConfigLimits::kVocabSize, kPadId) + 1;
  const bool scaled = fields.Flag("scale_embedding", true);
  KV_TRY(fields.status());
  KV_ASSIGN(encoder.decoder_start, ReadDecoderStart(fields, file));
  if (!config.tied_embeddings) {
    return Fail(Code::kUnsupported,
                "{}: tie_word_embeddings is false; only {} whose encoder, decoder and output head "
                "share one embedding is supported",
                file, row.hf_class);
  }
  if (config.hidden_size < kLeastHiddenSize || config.hidden_size % 2 != 0) {
    return Fail(Code::kInvalidArgument,
                "{}: {} is {}; with sinusoids it must be even, and {} or "
                "more",
                file, row.keys.hidden, config.hidden_size, kLeastHiddenSize);
  }
  encoder.head_dim = config.hidden_size / encoder.num_heads;
  if (config.hidden_size % encoder.num_heads != 0 || encoder.head_dim > ConfigLimits::kHeadDim) {
    return Fail(Code::kInvalidArgument,
                "{}: {} {} is not a multiple of {} {}, with heads of at most {}", file,
                row.keys.hidden, config.hidden_size, keys.heads, encoder.num_heads,
                ConfigLimits::kHeadDim);
  }
  if (scaled) config.embedding_multiplier = __builtin_sqrtf(static_cast<float>(config.hidden_size));
  config.sinusoids = true;
  config.encoder = encoder;
  return {};
}

}  // namespace kvasir
