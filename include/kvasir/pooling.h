// Pooling: how the rows of a text become its embedding.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace kvasir {

// The final hidden state of the last token, or the mean of those of all tokens.
enum class Pooling : uint8_t { kLast, kMean };
const char* ToString(Pooling pooling);  // "last", "mean"
std::optional<Pooling> ParsePooling(std::string_view name);

}  // namespace kvasir
