// Numbers that name a block and what it belongs to.
#pragma once

#include <cstdint>

namespace kvasir {

enum class BlockId : uint32_t {};      // of one pool, from 0
enum class NamespaceId : uint32_t {};  // of one cache, from 0
// The owner of blocks (cache/kv_accounts.h).
enum class AccountId : uint16_t {};
// The account of blocks without an owner, and of owners beyond those that there is room for: it has
// no quota.
inline constexpr AccountId kNobody{0};
enum class LayerGroupId : uint32_t {};

}  // namespace kvasir
