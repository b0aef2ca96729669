#include "cache/tier_probe.h"

#include <string>

#include "base/hex.h"

namespace kvasir {

BlockKey RootKeyOf(std::span<const uint8_t> secret, std::string_view owner,
                   const std::optional<Digest>& salt, const Identity& identity) {
  // The salt is hashed, so no owner and salt together are the name of another owner.
  std::string name(owner);
  if (salt) name += std::string(1, '\0') + ToHex(*salt);
  return NamespaceRoot(secret, name, identity);
}

uint32_t TokensInTier(const Tier& tier, const KvLayout& layout, const BlockKey& root,
                      std::span<const TokenId> prompt) {
  if (layout.has_windows() || prompt.empty()) return 0;
  const uint32_t block_tokens = layout.block_tokens();
  const HmacKey hmac{root};
  BlockKey key = root;
  uint32_t tokens = 0;
  while (tokens + block_tokens < prompt.size()) {
    key = ChildKey(hmac, key, prompt.subspan(tokens, block_tokens));
    for (uint32_t part = 0; part < layout.num_full_groups(); ++part) {
      const RecordName name{.key = key, .layer_group = 0, .part = static_cast<uint16_t>(part)};
      if (!tier.Has(name)) return tokens;
    }
    tokens += block_tokens;
  }
  return tokens;
}

}  // namespace kvasir
