// config.json and generation_config.json of a Hugging Face folder, as transformers 4 and 5 write
// them, checked as untrusted input.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "import/model_config.h"
#include "import/tensor_view.h"
#include "kvasir/status.h"

namespace kvasir {

// `file` names config.json in errors: kCorruption for not valid JSON, kInvalidArgument for a
// missing or impossible figure, kUnsupported for what no row of the architecture table computes.
// generation_config.json, where there, decides bos and eos.
Result<ModelConfig> ParseHfConfig(std::string_view config_json,
                                  std::optional<std::string_view> generation_config_json,
                                  const std::string& file);

// Returns the type that config.json says its weights have (`dtype`, or `torch_dtype`); float32
// where it is silent. kUnsupported names another one.
Result<DType> HfDtype(std::string_view config_json, const std::string& file);

}  // namespace kvasir
