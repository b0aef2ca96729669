// BlockKey: 32 bytes that name a block by its Namespace and all tokens up to its end.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "base/digest.h"
#include "kvasir/types.h"

namespace kvasir {

using BlockKey = Digest;

// Returns HMAC-SHA-256(secret, le64(owner.size()) || owner || identity). Without the
// secret no one can find out which prompts a key stands for.
BlockKey NamespaceRoot(std::span<const uint8_t> secret, std::string_view owner,
                       const Digest& identity);

// Returns HMAC-SHA-256(namespace_key, parent || tokens as le32). `parent` of a first block is the
// root.
BlockKey ChildKey(const HmacKey& namespace_key, const BlockKey& parent,
                  std::span<const TokenId> tokens);

}  // namespace kvasir
