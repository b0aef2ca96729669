#define KVASIR_TARGET_NS amxsoft
#define KVASIR_TARGET_ID 0
#define KVASIR_VNNI 1
#include "tensor/quant_tile-inl.h"

namespace kvasir::amxsoft {
namespace {

// TDPBSSD by its definition (Intel SDM, volume 2).
struct SoftTiles {
  struct Session {
    ~Session() {}
  };
  static inline thread_local int32_t tiles[2][2][kTileRows * 16];

  template <int kSums, int slot>
  static void Multiply(const std::byte* rows, const std::byte* codes) {
    constexpr uint32_t kQuads = 8 / kSums;
    for (uint32_t half = 0; half < kSums; ++half, rows += 16, codes += 256) {
      for (uint32_t r = 0; r < kTileRows; ++r) {
        for (uint32_t n = 0; n < 16; ++n) {
          int32_t sum = 0;
          for (uint32_t quad = 0; quad < kQuads; ++quad) {
            for (uint32_t j = 0; j < 4; ++j) {
              sum += static_cast<int8_t>(rows[r * kGroup + quad * 4 + j]) *
                     static_cast<int8_t>(codes[quad * 64 + n * 4 + j]);
            }
          }
          tiles[slot][half][r * 16 + n] = sum;
        }
      }
    }
  }
  template <int kSums, int slot>
  static void Store(int32_t* out) {
    __builtin_memcpy(out, tiles[slot], kSums * sizeof(tiles[slot][0]));
  }
};

template <class S>
struct Product {
  static void Run(const MatMulArgs& a) { TileProduct<S, SoftTiles>(a, scalar::kQuantKernels); }
};

}  // namespace

const QuantKernels kQuantKernels = {QuantiseTiles, ForFormat<Product>, kTiledRows};

}  // namespace kvasir::amxsoft
