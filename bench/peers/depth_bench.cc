// Decode and prefill speed of llama.cpp or ik_llama.cpp (-DPEER_IK) at a context depth, without
// computing that context: 256 tokens are prefilled and their KV is repeated up to the depth through
// the state format of a sequence. Speed does not depend on the values; their own tools prefill
// instead, which takes minutes at 16K tokens on a CPU.
//
//   depth_bench MODEL.gguf THREADS f16|q8_0|q4_0 DEPTH DECODE_TOKENS PREFILL_TOKENS REPEATS
//
// Prints one JSON line: all samples in tokens per second. 0 tokens: not measured.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "llama.h"

namespace {

using Bytes = std::vector<uint8_t>;

[[noreturn]] void Die(const char* what) {
  std::fprintf(stderr, "depth_bench: %s\n", what);
  std::exit(1);
}

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// What the two forks call differently.
#ifdef PEER_IK
constexpr uint32_t kMagicBytes = 0;
Bytes GetState(llama_context* ctx) {
  Bytes state(llama_state_seq_get_size(ctx, 0, 0));
  llama_state_seq_get_data(ctx, state.data(), state.size(), 0, 0);
  return state;
}
bool SetState(llama_context* ctx, const Bytes& state) {
  return llama_state_seq_set_data(ctx, state.data(), state.size(), 0, 0) == state.size();
}
void Truncate(llama_context* ctx, int depth) { llama_kv_cache_seq_rm(ctx, 0, depth, -1); }
int VocabOf(const llama_model* model) { return llama_n_vocab(model); }
llama_batch BatchOf(std::vector<llama_token>& tokens, int at) {
  return llama_batch_get_one(tokens.data(), static_cast<int>(tokens.size()), at, 0);
}
void UseFlashAttention(llama_context_params& params) { params.flash_attn = true; }
llama_model_params ModelParams() {
  llama_model_params params = llama_model_default_params();
  params.repack_tensors = true;  // its decode is the faster for it
  params.use_mmap = false;
  return params;
}
#else
constexpr uint32_t kMagicBytes = 8;  // magic and sequence
Bytes GetState(llama_context* ctx) {
  Bytes state(llama_state_seq_get_size(ctx, 0));
  llama_state_seq_get_data(ctx, state.data(), state.size(), 0);
  return state;
}
bool SetState(llama_context* ctx, const Bytes& state) {
  return llama_state_seq_set_data(ctx, state.data(), state.size(), 0) > 0;
}
void Truncate(llama_context* ctx, int depth) {
  llama_memory_seq_rm(llama_get_memory(ctx), 0, depth, -1);
}
int VocabOf(const llama_model* model) { return llama_vocab_n_tokens(llama_model_get_vocab(model)); }
llama_batch BatchOf(std::vector<llama_token>& tokens, int /*at*/) {
  return llama_batch_get_one(tokens.data(), static_cast<int>(tokens.size()));
}
void UseFlashAttention(llama_context_params& params) {
  params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;
}
llama_model_params ModelParams() { return llama_model_default_params(); }
#endif

// state  := magic? streams? cells {position, n}* v_trans layers {type, row bytes, rows}^(2 layers)
// ik_llama.cpp has no magic and no streams, but zeros at the end, and n is 0; llama.cpp's n is 1, a
// sequence follows.
class Repeater {
 public:
  explicit Repeater(const Bytes& in) : in_(in) {}

  Bytes To(uint32_t depth) {
    Copy(kMagicBytes);
    if (kMagicBytes > 0 && Copy32() != 1) Die("a state of more than one stream");
    const auto cells = Take<uint32_t>();
    Put(depth);
    const uint32_t cell_words = kMagicBytes > 0 ? 3 : 2;
    at_ += size_t{cells} * cell_words * 4;
    for (uint32_t i = 0; i < depth; ++i) {
      const uint32_t cell[3] = {i, kMagicBytes > 0 ? 1u : 0u, 0};
      const auto* bytes = reinterpret_cast<const uint8_t*>(cell);
      out_.insert(out_.end(), bytes, bytes + cell_words * 4);
    }
    if (Copy32() != 0) Die("V is transposed or absent");
    const uint32_t layers = Copy32();
    for (uint32_t i = 0; i < 2 * layers; ++i) {
      Copy32();  // type
      const auto row_bytes = Take<uint64_t>();
      Put(row_bytes);
      for (uint32_t done = 0; done < depth;) {
        const uint32_t rows = std::min(cells, depth - done);
        out_.insert(out_.end(), in_.begin() + static_cast<ptrdiff_t>(at_),
                    in_.begin() + static_cast<ptrdiff_t>(at_ + row_bytes * rows));
        done += rows;
      }
      at_ += row_bytes * cells;
    }
    // ik_llama.cpp says then that there is no recurrent state and no indexer.
    while (!kMagicBytes && at_ < in_.size()) {
      if (Copy32() != 0) break;
    }
    if (at_ != in_.size()) Die("the state is not laid out as expected");
    return std::move(out_);
  }

 private:
  template <typename T>
  T Take() {
    T value;
    if (at_ + sizeof value > in_.size()) Die("the state is cut short");
    std::memcpy(&value, in_.data() + at_, sizeof value);
    at_ += sizeof value;
    return value;
  }
  template <typename T>
  void Put(T value) {
    const auto* bytes = reinterpret_cast<const uint8_t*>(&value);
    out_.insert(out_.end(), bytes, bytes + sizeof value);
  }
  void Copy(uint32_t bytes) {
    for (uint32_t i = 0; i < bytes; i += 4) Copy32();
  }
  uint32_t Copy32() {
    const auto value = Take<uint32_t>();
    Put(value);
    return value;
  }

  const Bytes& in_;
  Bytes out_;
  size_t at_ = 0;
};

class Bench {
 public:
  Bench(const char* path, int threads, ggml_type kv, int depth, int most_tokens) {
    llama_log_set([](ggml_log_level, const char*, void*) {}, nullptr);
    llama_backend_init();
    model_ = llama_model_load_from_file(path, ModelParams());
    if (!model_) Die("cannot load the model");
    llama_context_params params = llama_context_default_params();
    params.n_ctx = static_cast<uint32_t>(depth + std::max(most_tokens, 256) + 256) / 256 * 256;
    params.n_batch = 2048;
    params.n_ubatch = 512;
    params.n_seq_max = 1;
    params.n_threads = params.n_threads_batch = threads;
    params.type_k = params.type_v = kv;
    UseFlashAttention(params);
    ctx_ = llama_init_from_model(model_, params);
    if (!ctx_) Die("cannot make a context");
    Run(RandomTokens(256), 0);
    if (depth > 0 && !SetState(ctx_, Repeater(GetState(ctx_)).To(static_cast<uint32_t>(depth)))) {
      Die("the state is refused");
    }
  }

  std::vector<llama_token> RandomTokens(int count) const {
    std::vector<llama_token> tokens(static_cast<size_t>(count));
    for (auto& token : tokens) token = rand() % VocabOf(model_);
    return tokens;
  }
  // Returns the seconds for these tokens at `position`, in batches of 2048.
  double Run(const std::vector<llama_token>& tokens, int position) {
    Truncate(ctx_, position);
    const double began = Now();
    for (size_t done = 0; done < tokens.size(); done += 2048) {
      std::vector<llama_token> batch(
          tokens.begin() + static_cast<ptrdiff_t>(done),
          tokens.begin() + static_cast<ptrdiff_t>(std::min(tokens.size(), done + 2048)));
      if (llama_decode(ctx_, BatchOf(batch, position + static_cast<int>(done)))) Die("no decode");
    }
    llama_synchronize(ctx_);
    return Now() - began;
  }
  double DecodeOneByOne(int count, int depth) {
    double seconds = 0;
    for (int i = 0; i < count; ++i) seconds += Run(RandomTokens(1), depth + i);
    return seconds;
  }

 private:
  llama_model* model_ = nullptr;
  llama_context* ctx_ = nullptr;
};

void Print(const char* name, const std::vector<double>& values) {
  if (values.empty()) return;
  std::printf(", \"%s\": [", name);
  for (size_t i = 0; i < values.size(); ++i) std::printf("%s%.3f", i ? ", " : "", values[i]);
  std::printf("]");
}

}  // namespace

int main(int argc, char** argv) {
  const std::map<std::string, ggml_type> types = {
      {"f16", GGML_TYPE_F16}, {"q8_0", GGML_TYPE_Q8_0}, {"q4_0", GGML_TYPE_Q4_0}};
  if (argc != 8 || !types.count(argv[3])) Die("usage: see the first lines of the source");
  const int threads = atoi(argv[2]), depth = atoi(argv[4]), decode = atoi(argv[5]),
            prefill = atoi(argv[6]), repeats = atoi(argv[7]);
  Bench bench(argv[1], threads, types.at(argv[3]), depth, std::max(decode, prefill));
  std::vector<double> decoded, prefilled;
  if (decode > 0) bench.DecodeOneByOne(2, depth);  // warm
  for (int i = 0; i < repeats; ++i) {
    if (decode > 0) decoded.push_back(decode / bench.DecodeOneByOne(decode, depth));
    if (prefill > 0) prefilled.push_back(prefill / bench.Run(bench.RandomTokens(prefill), depth));
  }
  std::printf("{\"depth\": %d", depth);
  Print("decode", decoded);
  Print("prefill", prefilled);
  std::printf("}\n");
  std::fflush(stdout);
  _exit(0);  // their teardown takes seconds
}
