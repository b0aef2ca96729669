// Products by the CPU's tiles (AMX).
#pragma once

#if defined(__AMX_INT8__)
#include "tensor/quant_tile-inl.h"

namespace kvasir::amx {
namespace {

// The CPU's tiles: 0 to 3 sums [16][16] i32, two a slot; 4, 5 rows and codes of 32 columns; 6, 7 of
// 16 columns.
struct CpuTiles {
  struct Config {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {64, 64, 64, 64, 32, 64, 16, 64};
    uint8_t rows[16] = {16, 16, 16, 16, 16, 8, 16, 4};
  };
  class Session {
   public:
    Session() {
      const Config config;
      __asm__ volatile(""
                       :
                       : "r"(&config)
                       : "memory");  // GCC 12 says that 8 of the 64 bytes are read
      _tile_loadconfig(&config);
    }
    ~Session() { _tile_release(); }
    Session(const Session&) = delete;
    Session& operator=(const Session&) = delete;
  };

  // Returns the products of a group, into the tiles of `slot`.
  template <int kSums, int slot>
  static KV_INLINE void Multiply(const std::byte* rows, const std::byte* codes) {
    if constexpr (kSums == 1) {
      LoadTile<4>(rows, 32);
      LoadTile<5>(codes, 64);
      Dot<slot * 2, 4, 5>();
    } else {
      LoadTile<6>(rows, 32);
      LoadTile<7>(codes, 64);
      Dot<slot * 2, 6, 7>();
      LoadTile<6>(rows + 16, 32);
      LoadTile<7>(codes + 256, 64);
      Dot<slot * 2 + 1, 6, 7>();
    }
  }
  template <int kSums, int slot>
  static KV_INLINE void Store(int32_t* out) {
    StoreTile<slot * 2>(out);
    if constexpr (kSums == 2) StoreTile<slot * 2 + 1>(out + 256);
  }

 private:  // the intrinsics of GCC 12 take literals alone
  template <int tile>
  static KV_INLINE void LoadTile(const std::byte* from, size_t stride) {
    __asm__ volatile("tileloadd (%1,%2,1), %%tmm%c0"
                     :
                     : "i"(tile), "r"(from), "r"(stride)
                     : "memory");
  }
  template <int sum, int rows, int codes>
  static KV_INLINE void Dot() {
    __asm__ volatile("tilezero %%tmm%c0" : : "i"(sum));
    __asm__ volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(sum), "i"(rows), "i"(codes));
  }
  template <int tile>
  static KV_INLINE void StoreTile(int32_t* to) {
    __asm__ volatile("tilestored %%tmm%c0, (%1,%2,1)"
                     :
                     : "i"(tile), "r"(to), "r"(size_t{64})
                     : "memory");
  }
};

template <class S>
struct Product {
  static void Run(const MatMulArgs& a) { TileProduct<S, CpuTiles>(a, avx512vnni::kQuantKernels); }
};

}  // namespace

const QuantKernels kQuantKernels = {QuantiseTiles, ForFormat<Product>, kTiledRows};

}  // namespace kvasir::amx

#endif
