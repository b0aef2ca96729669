// What config.json says of an encoder-decoder model beside its decoder.
#pragma once

#include <string>

#include "import/architecture.h"
#include "import/hf_fields.h"
#include "kvasir/status.h"

namespace kvasir {

// Fills in config.encoder and the embedding's multiplier. kUnsupported: the halves and the output
// head do not share one embedding. REQUIRES: config has hidden_size and tied_embeddings.
Status ReadHfEncoder(Fields& fields, const Architecture& row, const std::string& file,
                     ModelConfig& config);

// Reads decoder_start_token_id; transformers' default of 2 where it is missing.
Result<TokenId> ReadDecoderStart(Fields& fields, const std::string& file);

}  // namespace kvasir
