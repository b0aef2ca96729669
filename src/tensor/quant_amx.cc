#define KVASIR_TARGET_NS amx
#define KVASIR_TARGET_ID 2
#define KVASIR_VNNI 1
#include "tensor/quant_amx-inl.h"

namespace kvasir::amx {
namespace {

// The CPU's tiles: 0, 1 sums [16][16] i32; 2, 3 rows and codes of 32 columns; 4, 5 rows of 16
// columns and 6, 7 their codes.
struct CpuTiles {
  struct Config {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {64, 64, 32, 64, 16, 16, 64, 64};
    uint8_t rows[16] = {16, 16, 16, 8, 16, 16, 4, 4};
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

  template <int kSums>
  static KV_INLINE void Multiply(const std::byte* rows, size_t stride, const std::byte* codes,
                                 int32_t* out) {
    _tile_zero(0);
    if constexpr (kSums == 1) {
      _tile_loadd(2, rows, stride);
      _tile_loadd(3, codes, 64);
      _tile_dpbssd(0, 2, 3);
      _tile_stored(0, out, 64);
    } else {
      _tile_zero(1);
      _tile_loadd(4, rows, stride);
      _tile_loadd(6, codes, 64);
      _tile_dpbssd(0, 4, 6);
      _tile_stored(0, out, 64);
      _tile_loadd(5, rows + 16, stride);
      _tile_loadd(7, codes + 256, 64);
      _tile_dpbssd(1, 5, 7);
      _tile_stored(1, out + 256, 64);
    }
  }
};

template <class S>
struct TileProduct {
  static void Run(const MatMulArgs& a) { TileProductOf<S, CpuTiles>(a); }
};

}  // namespace

const QuantKernels kQuantKernels = {Quantise, ForFormat<TileProduct>, kMaxBlockRows};

}  // namespace kvasir::amx
