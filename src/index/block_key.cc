#include "index/block_key.h"

#include <bit>
#include <string>

namespace kvasir {

// Tokens are hashed as they lie in memory.
static_assert(std::endian::native == std::endian::little);

BlockKey NamespaceRoot(std::span<const uint8_t> secret, std::string_view owner,
                       const Digest& identity) {
  std::string message(8, '\0');
  for (int i = 0; i < 8; ++i) message[i] = static_cast<char>(uint64_t{owner.size()} >> (8 * i));
  message += owner;
  return HmacKey(secret).Of(std::as_bytes(std::span(message)), std::as_bytes(std::span(identity)));
}

BlockKey ChildKey(const HmacKey& namespace_key, const BlockKey& parent,
                  std::span<const TokenId> tokens) {
  return namespace_key.Of(std::as_bytes(std::span(parent)), std::as_bytes(tokens));
}

}  // namespace kvasir
