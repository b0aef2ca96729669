// KeptTexts: what a server keeps of the texts that tenants send, beside the cache.
#pragma once

#include <cstdint>
#include <string_view>

#include "api/prompt_heads.h"
#include "text/piece_store.h"

namespace kvasir {

// Thread-safe.
struct KeptTexts {
  // `key`: random.
  KeptTexts(uint64_t piece_bytes, uint64_t head_bytes, uint64_t key)
      : pieces(piece_bytes, key), heads(head_bytes, key) {}

  void Erase(std::string_view tenant) {
    pieces.Erase(tenant);
    heads.Erase(tenant);
  }
  void EraseAll() {
    pieces.EraseAll();
    heads.EraseAll();
  }

  PieceStore pieces;
  PromptHeads heads;
};

}  // namespace kvasir
