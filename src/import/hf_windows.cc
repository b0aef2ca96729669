#include "import/hf_windows.h"

#include <algorithm>

namespace kvasir {
namespace {

using nlohmann::json;

// Returns [num_layers]: whether the layer has a window, as a list of layer_types says.
Result<std::vector<bool>> FromLayerTypes(const json& types, const ModelConfig& config,
                                         const std::string& file) {
  if (!types.is_array() || types.size() != config.num_layers) {
    return Fail(Code::kInvalidArgument,
                "{}: layer_types must be a list of names, one for each of {} layers", file,
                config.num_layers);
  }
  std::vector<bool> slides;
  for (const json& type : types) {
    if (type != "full_attention" && type != "sliding_attention") {
      return Fail(Code::kUnsupported, "{}: layer_types names {}, which is not supported", file,
                  Fields::Show(type));
    }
    slides.push_back(type == "sliding_attention");
  }
  return slides;
}

std::vector<bool> FromRule(Fields& fields, const Architecture& row, const ModelConfig& config) {
  std::vector<bool> slides(config.num_layers, row.windows == WindowRule::kAll);
  if (row.windows == WindowRule::kPattern) {
    const uint32_t pattern =
        fields.Count("sliding_window_pattern", ConfigLimits::kLayers, row.window_pattern);
    for (uint32_t i = 0; i < config.num_layers; ++i) slides[i] = (i + 1) % pattern != 0;
  }
  if (row.windows == WindowRule::kNone || row.windows == WindowRule::kFromLayer ||
      row.windows == WindowRule::kIfUsed) {
    if (!fields.Flag("use_sliding_window", false)) return slides;
    // In a family without windows ReadWindows refuses the layers that are named here.
    const uint32_t first =
        row.windows == WindowRule::kFromLayer
            ? fields.CountFrom0("max_window_layers", ConfigLimits::kLayers, kMaxWindowLayers)
            : 0;
    for (uint32_t i = first; i < config.num_layers; ++i) slides[i] = true;
  }
  return slides;
}

}  // namespace

Result<std::vector<uint32_t>> ReadWindows(Fields& fields, const Architecture& row,
                                          const ModelConfig& config, const std::string& file) {
  const json* types = fields.Find("layer_types");
  std::vector<bool> slides;
  if (types != nullptr) {
    KV_ASSIGN(slides, FromLayerTypes(*types, config, file));
  } else {
    slides = FromRule(fields, row, config);
  }
  std::optional<uint32_t> window;
  if (fields.Find("sliding_window") != nullptr) {
    window = fields.Count("sliding_window", UINT32_MAX);
  } else if (!fields.Names("sliding_window")) {
    window = row.defaults.window;
  }
  KV_TRY(fields.status());
  if (std::ranges::count(slides, true) == 0) return std::vector<uint32_t>();
  if (!window) {
    const bool needed = types != nullptr || row.windows == WindowRule::kPattern;
    if (!needed) return std::vector<uint32_t>();
    return Fail(Code::kInvalidArgument,
                "{}: layers have sliding_attention, but sliding_window is {}", file,
                fields.Names("sliding_window") ? "null" : "missing");
  }
  const bool hides = *window < config.max_positions;
  if (hides && row.windows == WindowRule::kNone) {
    return Fail(Code::kUnsupported,
                "{}: {} with a sliding window of {} tokens, which is shorter than {} ({}), is not "
                "supported",
                file, row.hf_class, *window, row.keys.positions, config.max_positions);
  }
  // Where the kinds of layers differ in nothing but a window that hides nothing, they are one kind.
  if (!hides && !row.local_rope) return std::vector<uint32_t>();
  std::vector<uint32_t> windows;
  for (const bool slide : slides) windows.push_back(slide ? *window : 0);
  return windows;
}

}  // namespace kvasir
