// Assembly, because a compiler would spill or hoist parts of the loops, and so that one binary runs
// on every CPU. Only uses registers 0 to 15, which have names in every target.
#include "limits.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace kvasir {

#if defined(__x86_64__)
namespace {

constexpr uint64_t kLine = 64;

// Reads each line once, in address order, with `ahead` bytes prefetched (0: left to the hardware).
template <uint64_t kAhead>
uint64_t ReadInOrder(const std::byte* data, uint64_t bytes) {
  __m256i a = _mm256_setzero_si256(), b = a;
  for (uint64_t i = 0; i < bytes; i += kLine) {
    const std::byte* line = data + i;
    if constexpr (kAhead > 0)
      _mm_prefetch(reinterpret_cast<const char*>(line + kAhead), _MM_HINT_T0);
    a = _mm256_xor_si256(a, _mm256_load_si256(reinterpret_cast<const __m256i*>(line)));
    b = _mm256_xor_si256(b, _mm256_load_si256(reinterpret_cast<const __m256i*>(line + 32)));
  }
  const __m256i x = _mm256_xor_si256(a, b);
  return static_cast<uint64_t>(_mm256_extract_epi64(x, 0) ^ _mm256_extract_epi64(x, 1) ^
                               _mm256_extract_epi64(x, 2) ^ _mm256_extract_epi64(x, 3));
}

// Reads four places of the data at a time: hardware that follows one page prefetches four.
uint64_t ReadFourStreams(const std::byte* data, uint64_t bytes) {
  __m256i sum = _mm256_setzero_si256();
  for (uint64_t i = 0; i < bytes / 4; i += kLine) {
    for (uint64_t stream = 0; stream < 4; ++stream) {
      const auto* line = reinterpret_cast<const __m256i*>(data + stream * (bytes / 4) + i);
      sum = _mm256_xor_si256(
          sum, _mm256_xor_si256(_mm256_load_si256(line), _mm256_load_si256(line + 1)));
    }
  }
  return static_cast<uint64_t>(_mm256_extract_epi64(sum, 0) ^ _mm256_extract_epi64(sum, 1) ^
                               _mm256_extract_epi64(sum, 2) ^ _mm256_extract_epi64(sum, 3));
}

// Operands are not zero, because some CPUs save power with zeros. As f32 they are about 0.5.
alignas(64) constexpr uint32_t kOperand[16] = {
    0x3f010305, 0x3f020406, 0x3f030507, 0x3f040608, 0x3f050709, 0x3f06080a, 0x3f07090b, 0x3f080a0c,
    0x3f090b0d, 0x3f0a0c0e, 0x3f0b0d0f, 0x3f0c0e10, 0x3f0d0f11, 0x3f0e1012, 0x3f0f1113, 0x3f101214};

constexpr int kChains = 12;
#define KV_CHAINS(one)                                                                      \
  one("0") one("1") one("2") one("3") one("4") one("5") one("6") one("7") one("8") one("9") \
      one("10") one("11")
// 12 and 13 hold operands, 14 is scratch, 15 is the operand of a second multiplication.
#define KV_PEAK(name, reg, body)                                                              \
  void name(uint64_t rounds) {                                                                \
    __asm__ volatile(                                                                       \
        "vzeroall\nvmovups (%1), %%" reg "12\nvmovups (%1), %%" reg "13\n"                  \
        "vmovups (%1), %%" reg "15\n.p2align 4\n1:\n" KV_CHAINS(body) "dec %0\njnz 1b\n"    \
        "vzeroupper\n"                                                                      \
        : "+r"(rounds)                                                                      \
        : "r"(kOperand)                                                                     \
        : "cc", "memory", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7",   \
          "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15"); \
  }
#define KV_OP3(op, reg, to) op " %%" reg "12, %%" reg "13, %%" reg to "\n"
#define KV_INTO(op, reg, to) op " %%" reg "14, %%" reg to ", %%" reg to "\n"

#define KV_FMA_Y(n) KV_OP3("vfmadd231ps", "ymm", n)
#define KV_FMA_Z(n) KV_OP3("vfmadd231ps", "zmm", n)
#define KV_BF16_Z(n) KV_OP3("vdpbf16ps", "zmm", n)
#define KV_MADD_Y(n) KV_OP3("vpmaddwd", "ymm", "14") KV_INTO("vpaddd", "ymm", n)
#define KV_MADD_Z(n) KV_OP3("vpmaddwd", "zmm", "14") KV_INTO("vpaddd", "zmm", n)
#define KV_UBS16_Y(n) KV_OP3("vpmaddubsw", "ymm", "14") KV_INTO("vpaddw", "ymm", n)
#define KV_UBS16_Z(n) KV_OP3("vpmaddubsw", "zmm", "14") KV_INTO("vpaddw", "zmm", n)
#define KV_WIDEN(reg) "vpmaddwd %%" reg "15, %%" reg "14, %%" reg "14\n"
#define KV_UBS32_Y(n) KV_OP3("vpmaddubsw", "ymm", "14") KV_WIDEN("ymm") KV_INTO("vpaddd", "ymm", n)
#define KV_UBS32_Z(n) KV_OP3("vpmaddubsw", "zmm", "14") KV_WIDEN("zmm") KV_INTO("vpaddd", "zmm", n)
#define KV_VNNI_VEX(n) KV_OP3("%{vex%} vpdpbusd", "ymm", n)
#define KV_VNNI_Y(n) KV_OP3("%{evex%} vpdpbusd", "ymm", n)
#define KV_VNNI_Z(n) KV_OP3("vpdpbusd", "zmm", n)
#define KV_VNNI16_VEX(n) KV_OP3("%{vex%} vpdpwssd", "ymm", n)
#define KV_VNNI16_Y(n) KV_OP3("%{evex%} vpdpwssd", "ymm", n)
#define KV_VNNI16_Z(n) KV_OP3("vpdpwssd", "zmm", n)

KV_PEAK(FmaYmm, "ymm", KV_FMA_Y)
KV_PEAK(FmaZmm, "zmm", KV_FMA_Z)
KV_PEAK(Bf16Zmm, "zmm", KV_BF16_Z)
KV_PEAK(MaddYmm, "ymm", KV_MADD_Y)
KV_PEAK(MaddZmm, "zmm", KV_MADD_Z)
KV_PEAK(Ubs16Ymm, "ymm", KV_UBS16_Y)
KV_PEAK(Ubs16Zmm, "zmm", KV_UBS16_Z)
KV_PEAK(Ubs32Ymm, "ymm", KV_UBS32_Y)
KV_PEAK(Ubs32Zmm, "zmm", KV_UBS32_Z)
KV_PEAK(VnniVex, "ymm", KV_VNNI_VEX)
KV_PEAK(VnniYmm, "ymm", KV_VNNI_Y)
KV_PEAK(VnniZmm, "zmm", KV_VNNI_Z)
KV_PEAK(Vnni16Vex, "ymm", KV_VNNI16_VEX)
KV_PEAK(Vnni16Ymm, "ymm", KV_VNNI16_Y)
KV_PEAK(Vnni16Zmm, "zmm", KV_VNNI16_Z)

// LDTILECFG's operand (Intel SDM, chapter on AMX).
struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};
static_assert(sizeof(TileConfig) == 64);

constexpr int kTileRows = 16, kTileProducts = 4;

// Returns the tiles for four sums of 16 x 16, tiles 0 to 3; rows of A in 4 and 5, columns of B in 6
// and 7, k_bytes deep.
TileConfig ConfigOf(int k_bytes) {
  TileConfig config;
  for (int tile = 0; tile < 8; ++tile) {
    const bool b = tile >= 6;
    config.row_bytes[tile] = static_cast<uint16_t>(tile == 4 || tile == 5 ? k_bytes : 64);
    config.rows[tile] = static_cast<uint8_t>(b ? k_bytes / 4 : kTileRows);
  }
  return config;
}

#define KV_TILES(name, op, k_bytes)                                                            \
  void name(uint64_t rounds) {                                                                 \
    const TileConfig config = ConfigOf(k_bytes);                                               \
    alignas(64) uint32_t data[256];                                                            \
    for (int i = 0; i < 256; ++i) data[i] = kOperand[i % 16];                                  \
    __asm__ volatile(                                                                          \
        "ldtilecfg (%1)\ntilezero %%tmm0\ntilezero %%tmm1\ntilezero %%tmm2\ntilezero %%tmm3\n" \
        "tileloadd (%2,%3,1), %%tmm4\ntileloadd (%2,%3,1), %%tmm5\n"                           \
        "tileloadd (%2,%3,1), %%tmm6\ntileloadd (%2,%3,1), %%tmm7\n.p2align 4\n1:\n" op        \
        " %%tmm6, %%tmm4, %%tmm0\n" op " %%tmm7, %%tmm4, %%tmm1\n" op                          \
        " %%tmm6, %%tmm5, %%tmm2\n" op                                                         \
        " %%tmm7, %%tmm5, %%tmm3\n"                                                            \
        "dec %0\njnz 1b\ntilerelease\n"                                                        \
        : "+r"(rounds)                                                                         \
        : "r"(&config), "r"(data), "r"(uint64_t{64})                                           \
        : "cc", "memory");                                                                     \
  }
KV_TILES(AmxInt8, "tdpbssd", 64)
KV_TILES(AmxInt8Half, "tdpbssd", 32)
KV_TILES(AmxBf16, "tdpbf16ps", 64)

struct Features {
  bool avx512 = false, avx512_vnni = false, avx512_bf16 = false, avx_vnni = false;
  bool amx_int8 = false, amx_bf16 = false;
};

Features FeaturesOfCpu() {
  Features features;
  features.avx512 = __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
  features.avx512_vnni = features.avx512 && __builtin_cpu_supports("avx512vnni");
  uint32_t a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d)) {
    constexpr long kRequestPermission = 0x1023, kTileData = 18;  // arch_prctl(2)
    const bool allowed =
        (d >> 24 & 1) && syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
    features.amx_int8 = allowed && (d >> 25 & 1);
    features.amx_bf16 = allowed && (d >> 22 & 1);
  }
  if (__get_cpuid_count(7, 1, &a, &b, &c, &d)) {
    features.avx_vnni = a >> 4 & 1;
    features.avx512_bf16 = features.avx512 && (a >> 5 & 1);
  }
  return features;
}

}  // namespace

std::vector<Reader> Readers() {
  return {{"in order", ReadInOrder<0>},
          {"prefetched 4 KiB ahead", ReadInOrder<4096>},
          {"four streams", ReadFourStreams}};
}

std::vector<Peak> Peaks() {
  const Features has = FeaturesOfCpu();
  std::vector<Peak> peaks;
  // products: multiply-adds of one chain's instructions.
  const auto add = [&](bool can, const char* name, int products, void (*run)(uint64_t)) {
    if (can) peaks.push_back({name, 2.0 * kChains * products, run});
  };
  const auto add_tiles = [&](bool can, const char* name, int depth, void (*run)(uint64_t)) {
    if (can) peaks.push_back({name, 2.0 * kTileProducts * 16 * 16 * depth, run});
  };
  add(true, "f32 fma ymm", 8, FmaYmm);
  add(has.avx512, "f32 fma zmm", 16, FmaZmm);
  add(has.avx512_bf16, "bf16 dot zmm", 32, Bf16Zmm);
  add_tiles(has.amx_bf16, "bf16 amx", 32, AmxBf16);
  add(true, "int16 madd ymm", 16, MaddYmm);
  add(has.avx512, "int16 madd zmm", 32, MaddZmm);
  add(has.avx_vnni && !has.avx512_vnni, "int16 vnni ymm", 16, Vnni16Vex);
  add(has.avx512_vnni, "int16 vnni ymm", 16, Vnni16Ymm);
  add(has.avx512_vnni, "int16 vnni zmm", 32, Vnni16Zmm);
  add(true, "int8 maddubs+madd ymm", 32, Ubs32Ymm);
  add(has.avx512, "int8 maddubs+madd zmm", 64, Ubs32Zmm);
  add(true, "int8 maddubs+paddw ymm", 32, Ubs16Ymm);
  add(has.avx512, "int8 maddubs+paddw zmm", 64, Ubs16Zmm);
  add(has.avx_vnni && !has.avx512_vnni, "int8 vnni ymm", 32, VnniVex);
  add(has.avx512_vnni, "int8 vnni ymm", 32, VnniYmm);
  add(has.avx512_vnni, "int8 vnni zmm", 64, VnniZmm);
  add_tiles(has.amx_int8, "int8 amx", 64, AmxInt8);
  add_tiles(has.amx_int8, "int8 amx, k of 32", 32, AmxInt8Half);
  return peaks;
}

void Pause() { _mm_pause(); }

#else

std::vector<Reader> Readers() {
  return {{"in order", [](const std::byte* data, uint64_t bytes) {
             uint64_t sums[16] = {};
             const auto* words = reinterpret_cast<const uint64_t*>(data);
             for (uint64_t i = 0; i < bytes / 8; i += 16) {
               for (uint64_t k = 0; k < 16; ++k) sums[k] ^= words[i + k];
             }
             for (uint64_t k = 1; k < 16; ++k) sums[0] ^= sums[k];
             return sums[0];
           }}};
}

// Returns no peak: other architectures are not measured yet.
std::vector<Peak> Peaks() { return {}; }

void Pause() {}

#endif

}  // namespace kvasir
