// SyntheticModel: a shape with random weights. One tile of random numbers is mapped over and over
// into a region as long as the largest tensor, and each tensor is a window into it: a model of any
// size starts at once and takes the memory of the tile.
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstring>

#include "base/bytes.h"
#include "base/random.h"
#include "base/system_error.h"
#include "import/architecture.h"
#include "simd/half.h"

namespace kvasir {
namespace {

// 4 MiB and some: a prime number of pages, so that rows of 4 KiB repeat only after 1031.
constexpr uint64_t kTileBytes = uint64_t{1031} * 4096;
constexpr uint64_t kAlignment = 64;
constexpr double kWeightDeviation = 0.02;

struct Shape {
  std::string_view name;
  ModelConfig config;
};

ModelConfig M2m100(uint32_t layers, uint32_t ffn_size) {
  return {.architecture = "m2m100",
          .vocab_size = 128112,
          .hidden_size = 1024,
          .num_layers = layers,
          .num_heads = 16,
          .num_kv_heads = 16,
          .head_dim = 64,
          .ffn_size = ffn_size,
          .max_positions = 1024,
          .rope = {.rotated_dims = 0},
          .activation = Activation::kRelu,
          .embedding_multiplier = 32,
          .qkv_bias = true,
          .o_bias = true,
          .mlp_bias = true,
          .sinusoids = true,
          .tied_embeddings = true,
          .encoder = EncoderConfig{.num_layers = layers,
                                   .num_heads = 16,
                                   .head_dim = 64,
                                   .ffn_size = ffn_size,
                                   .first_position = 2,
                                   .decoder_start = 2},
          .eos = {2}};
}

const std::vector<Shape>& Shapes() {
  static const auto* shapes = new std::vector<Shape>{
      // Llama-3.2-1B (its config.json on the Hub).
      {"llama-1b",
       {.vocab_size = 128256,
        .hidden_size = 2048,
        .num_layers = 16,
        .num_heads = 32,
        .num_kv_heads = 8,
        .head_dim = 64,
        .ffn_size = 8192,
        .max_positions = 131072,
        .rope = {.type = RopeType::kLlama3,
                 .theta = 500000,
                 .factor = 32,
                 .low_freq_factor = 1,
                 .high_freq_factor = 4,
                 .original_max_positions = 8192},
        .tied_embeddings = true}},
      // Qwen2.5-0.5B's sizes; a Llama with biases computes the same.
      {"qwen2-0.5b",
       {.vocab_size = 151936,
        .hidden_size = 896,
        .num_layers = 24,
        .num_heads = 14,
        .num_kv_heads = 2,
        .head_dim = 64,
        .ffn_size = 4864,
        .max_positions = 32768,
        .rms_norm_eps = 1e-6,
        .rope = {.theta = 1000000},
        .qkv_bias = true,
        .tied_embeddings = true}},
      // 100.1 million parameters: GPT-2 small's width and depth with a Llama 2 vocabulary and GQA.
      {"llama-100m",
       {.vocab_size = 32000,
        .hidden_size = 768,
        .num_layers = 12,
        .num_heads = 12,
        .num_kv_heads = 4,
        .head_dim = 64,
        .ffn_size = 2048,
        .max_positions = 8192,
        .tied_embeddings = true}},
      // Qwen3-30B-A3B in small: 64 experts in every layer, 8 of them for each token.
      {"qwen3-moe-2b",
       {.architecture = "qwen3moe",
        .vocab_size = 151936,
        .hidden_size = 1024,
        .num_layers = 24,
        .num_heads = 16,
        .num_kv_heads = 4,
        .head_dim = 64,
        .ffn_size = 3072,
        .max_positions = 32768,
        .rms_norm_eps = 1e-6,
        .rope = {.theta = 1000000},
        .tied_embeddings = true,
        .experts = ExpertsConfig{64, 8, 384, Routing::kAllNormed, {}}}},
      // Gemma 3 1B: five layers of six see 512 tokens.
      {"gemma3-1b",
       {.architecture = "gemma3",
        .vocab_size = 262144,
        .hidden_size = 1152,
        .num_layers = 26,
        .num_heads = 4,
        .num_kv_heads = 1,
        .head_dim = 256,
        .ffn_size = 6912,
        .max_positions = 32768,
        .rms_norm_eps = 1e-6,
        .rope = {.theta = 1000000},
        .local_rope = RopeConfig{.theta = 10000},
        .activation = Activation::kGeluTanh,
        .embedding_multiplier = 33.941125,
        .attention_multiplier = 0.0625,
        .tied_embeddings = true,
        .windows = {512, 512, 512, 512, 512, 0,   512, 512, 512, 512, 512, 0,   512,
                    512, 512, 512, 512, 0,   512, 512, 512, 512, 512, 0,   512, 512}}},
      // Phi-3 mini with 4,096 tokens of context.
      {"phi3-mini",
       {.architecture = "phi3",
        .vocab_size = 32064,
        .hidden_size = 3072,
        .num_layers = 32,
        .num_heads = 32,
        .num_kv_heads = 32,
        .head_dim = 96,
        .ffn_size = 8192,
        .max_positions = 4096,
        .windows = std::vector<uint32_t>(32, 2047)}},
      // M2M-100 418M and 1.2B (their config.json on the Hub).
      {"m2m100-418m", M2m100(12, 4096)},
      {"m2m100-1.2b", M2m100(24, 8192)},
      // For tests: no size is a multiple of 8, every option is on.
      {"tiny",
       {.vocab_size = 131,
        .hidden_size = 60,
        .num_layers = 2,
        .num_heads = 3,
        .num_kv_heads = 1,
        .head_dim = 20,
        .ffn_size = 100,
        .max_positions = 1024,
        .qkv_bias = true,
        .o_bias = true,
        .mlp_bias = true}},
  };
  return *shapes;
}

void Encode(double value, DType dtype, std::byte* out) {
  const auto single = static_cast<float>(value);
  if (dtype == DType::kF32) {
    std::memcpy(out, &single, 4);
  } else {
    const uint16_t half = dtype == DType::kF16 ? ToF16(single) : ToBf16(single);
    std::memcpy(out, &half, 2);
  }
}

// Returns numbers that are near normal, mean 0, deviation 1: four 16-bit uniforms of one draw,
// rescaled.
double NearNormal(uint64_t bits) {
  double sum = 0;
  for (int i = 0; i < 4; ++i) sum += static_cast<double>(bits >> (16 * i) & 0xffff);
  return (sum / 65536 - 2) * 1.7320508075688772;
}

// One anonymous file of kTileBytes, mapped again and again into [data, data + bytes).
class TiledRegion {
 public:
  static Result<std::shared_ptr<const TiledRegion>> Create(uint64_t bytes, DType dtype,
                                                           uint64_t seed) {
    const int fd = memfd_create("kvasir-synthetic-weights", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, kTileBytes) != 0) return Failed(fd);
    bytes = RoundUp(bytes, kTileBytes);
    void* base =
        mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED) return Failed(fd);
    std::shared_ptr<const TiledRegion> region(
        new TiledRegion(static_cast<std::byte*>(base), bytes));
    for (uint64_t at = 0; at < bytes; at += kTileBytes) {
      const int protection = at == 0 ? PROT_READ | PROT_WRITE : PROT_READ;
      if (mmap(region->data_ + at, kTileBytes, protection, MAP_SHARED | MAP_FIXED, fd, 0) ==
          MAP_FAILED) {
        return Failed(fd);
      }
    }
    const uint32_t size = BytesOf(dtype);
    for (uint64_t i = 0; i < kTileBytes / size; ++i) {
      Encode(kWeightDeviation * NearNormal(Mix64(seed + i)), dtype, region->data_ + i * size);
    }
    mprotect(region->data_, kTileBytes, PROT_READ);
    close(fd);
    return region;
  }
  ~TiledRegion() { munmap(data_, bytes_); }
  TiledRegion(const TiledRegion&) = delete;
  TiledRegion& operator=(const TiledRegion&) = delete;

  const std::byte* data() const { return data_; }

 private:
  TiledRegion(std::byte* data, uint64_t bytes) : data_(data), bytes_(bytes) {}
  static tl::unexpected<Error> Failed(int fd) {
    const int error = errno;
    if (fd >= 0) close(fd);
    return FailErrno(error, "cannot map synthetic weights");
  }

  std::byte* data_;
  uint64_t bytes_;
};

// Makes norm weights around 1. Owned apart, [hidden].
std::shared_ptr<const std::vector<std::byte>> MakeNorms(uint32_t hidden, DType dtype,
                                                        uint64_t seed) {
  auto bytes = std::make_shared<std::vector<std::byte>>(uint64_t{hidden} * BytesOf(dtype));
  for (uint32_t i = 0; i < hidden; ++i) {
    Encode(1 + kWeightDeviation * NearNormal(Mix64(~seed + i)), dtype,
           bytes->data() + uint64_t{i} * BytesOf(dtype));
  }
  return bytes;
}

uint64_t LargestTensorBytes(std::span<const SlotNames> slots, const ModelConfig& config,
                            DType dtype) {
  uint64_t largest = 0;
  for (const SlotNames& names : slots) {
    const SlotTraits& traits = TraitsOf(names.slot);
    const uint64_t columns = traits.columns ? SizeOf(*traits.columns, config) : 1;
    largest = std::max(largest, SizeOf(traits.rows, config) * columns * BytesOf(dtype));
  }
  return largest;
}

uint64_t LargestTensorBytes(const ModelConfig& config, DType dtype) {
  const Architecture& row = ArchitectureOf(config);
  const uint64_t largest = LargestTensorBytes(row.slots, config, dtype);
  if (!config.encoder) return largest;
  return std::max(largest, LargestTensorBytes(row.encoder_slots, EncoderOf(config), dtype));
}

bool HasOnes(Slot slot) {
  return slot == Slot::kFinalNorm || slot == Slot::kAttentionNorm || slot == Slot::kFfnNorm ||
         slot == Slot::kCrossNorm || slot == Slot::kAttentionPostNorm ||
         slot == Slot::kFfnPostNorm || slot == Slot::kQNorm || slot == Slot::kKNorm;
}

}  // namespace

Result<ImportedModel> SyntheticModel(std::string_view shape, DType dtype, uint64_t seed) {
  std::string known;
  const Shape* found = nullptr;
  for (const Shape& candidate : Shapes()) {
    if (candidate.name == shape) found = &candidate;
    known += (known.empty() ? "" : ", ") + std::string(candidate.name);
  }
  if (found == nullptr) {
    return FailField(Code::kInvalidArgument, "shape", "'{}' is unknown (known: {})", shape, known);
  }
  ImportedModel model;
  model.config = found->config;
  if (model.config.architecture.empty()) model.config.architecture = "llama";
  model.name = found->name;
  model.path = fmt::format("synthetic:{}:{}:{}", shape, static_cast<int>(dtype), seed);
  KV_ASSIGN(const auto region,
            TiledRegion::Create(LargestTensorBytes(model.config, dtype) + kTileBytes, dtype, seed));
  const auto norms = MakeNorms(model.config.hidden_size, dtype, seed);
  model.mappings = {region, norms};

  uint64_t serial = 0;
  DescribeTensors(
      dtype,
      [&](Slot slot, uint64_t) {
        const uint64_t offset = Mix64(seed ^ ++serial) % (kTileBytes / kAlignment) * kAlignment;
        return HasOnes(slot) ? norms->data() : region->data() + offset;
      },
      model);
  return model;
}

}  // namespace kvasir
