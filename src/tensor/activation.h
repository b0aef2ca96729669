// Activation: what an FFN does to each number between its products.
#pragma once

#include <cstdint>

namespace kvasir {

enum class Activation : uint8_t { kSilu, kGeluTanh, kGelu, kRelu };
inline constexpr Activation kAllActivations[] = {Activation::kSilu, Activation::kGeluTanh,
                                                 Activation::kGelu, Activation::kRelu};

}  // namespace kvasir
