// Architecture: one row of a table per model family. What a family's tensors are called and which
// of them it has is data here; importers and binding read it and know no family by name.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "import/importer.h"
#include "kvasir/status.h"

namespace kvasir {

// Rows or columns of a slot's tensor in terms of the config.
enum class Extent {
  kVocab,
  kHidden,
  kQueries,
  kKeyValues,
  kFfn,
  kHeadDim,
  kPositions,
  kExperts,
  kExpertFfn
};
uint64_t SizeOf(Extent extent, const ModelConfig& config);

// When a slot must be filled: some depend on the layer, whose FFN may have experts or not.
enum class Condition {
  kAlways,
  kUntied,
  kQkvBias,
  kOBias,
  kMlpBias,
  kHeadBias,
  kDense,
  kExperts,
  kStoredPositions,
  kOwnEmbedding  // of an encoder
};
bool Holds(Condition condition, const ModelConfig& config, uint32_t layer);

// The shape of a slot is the same for every family that has it.
struct SlotTraits {
  Slot slot;
  Extent rows;
  std::optional<Extent> columns;  // absent: a vector
  Condition condition;
  bool rope_rows;  // rows pair up under RoPE: their order depends on who wrote the file
};
const SlotTraits& TraitsOf(Slot slot);

// What a slot's tensor is called; "{}" stands for the layer, a second one for the expert. Slots of
// one name share its tensor: each is a range of its rows, in the order of the table.
struct SlotNames {
  Slot slot;
  std::string_view hf, gguf;
};

// What config.json calls its figures, and what they are where it is silent. nullptr: never there.
struct HfKeys {
  const char* hidden = "hidden_size";
  const char* layers = "num_hidden_layers";
  const char* heads = "num_attention_heads";
  const char* kv_heads = "num_key_value_heads";
  const char* ffn = "intermediate_size";
  const char* positions = "max_position_embeddings";
  const char* activation = "hidden_act";
  const char* eps = "rms_norm_eps";  // nullptr: never there
};
struct HfDefaults {
  double eps = 1e-6;
  uint32_t positions = 2048;
  double theta = 10000.0;
  std::optional<uint32_t> head_dim;       // absent: hidden_size / num_attention_heads
  std::optional<uint32_t> ffn_of_hidden;  // ffn_size as a multiple of hidden_size
  std::optional<uint32_t> window;         // of layers that slide
  std::optional<uint32_t> vocab, heads, kv_heads;
  std::optional<double> query_scalar;  // query_pre_attn_scalar: q . k is divided by its root
  std::optional<double> attention_softcap, logits_softcap;
  std::optional<uint32_t> ffn, experts, experts_chosen, expert_ffn;  // expert_ffn absent: ffn_size
  bool tied = false;
};

// Which layers see a sliding window where no layer_types says it.
enum class WindowRule {
  kNone,       // no layer: the family has no windows
  kAll,        // all
  kFromLayer,  // with use_sliding_window, those from max_window_layers on
  kPattern,    // all but every so many-th
  kIfUsed,     // all, with use_sliding_window
};
inline constexpr double kLocalTheta = 10000.0;    // of Architecture::local_rope
inline constexpr uint32_t kMaxWindowLayers = 28;  // max_window_layers where it is missing

// Whether a family has a bias: never, always, or as a boolean of config.json says. In a GGUF
// file of a family that does not always have it, the tensor's presence says it.
enum class Presence { kNever, kAlways, kAsConfigured };
struct BiasRule {
  Presence presence = Presence::kNever;
  std::string_view config_key = "";
};

struct Architecture {
  std::string_view name;           // ModelConfig::architecture
  std::string_view hf_class;       // an entry of config.json's "architectures"
  std::string_view hf_model_type;  // for files without "architectures"
  // general.architecture, and the prefix of its keys; "": no GGUF file has the family.
  std::string_view gguf_name;
  Activation activation = Activation::kSilu;  // where no file names one
  BiasRule qkv_bias, o_bias, mlp_bias;
  HfKeys keys = {};
  HfDefaults defaults = {};
  bool hf_transposed = false;       // weights of layers are [in, out]
  std::string_view hf_prefix = "";  // of all names, which may also be left out
  const char* gguf_eps = "attention.layer_norm_rms_epsilon";
  // GGUF stores rows of Q and K so that RoPE pairs neighbours (MatrixSource).
  bool gguf_interleaved_rope_rows = false;
  bool learned_positions = false;               // instead of RoPE
  bool partial_rotary = false;                  // partial_rotary_factor is read
  bool experts = false;                         // in the FFN of some layers
  Routing routing = Routing::kChosen;           // where no norm_topk_prob says it
  bool multipliers = false;                     // of embedding, attention, residual and logits
  WindowRule windows = WindowRule::kNone;       // of config.json
  WindowRule gguf_windows = WindowRule::kNone;  // of a GGUF file: attention.sliding_window
  uint32_t gguf_window = 0;        // of a GGUF file that names none; 0: then there is none
  uint32_t window_pattern = 0;     // of kPattern: every so many-th layer is full
  bool scaled_embedding = false;   // by the root of hidden_size
  bool softcaps = false;           // of attention scores and logits
  bool hf_norms_less_one = false;  // norms of Hugging Face files are stored less 1
  // Not 0: a GGUF file of so many layers divides q . k by the root of hidden_size / heads, not of
  // head_dim; no key says it (llama.cpp goes by the number of layers too).
  uint32_t gguf_hidden_scale_layers = 0;
  bool text_config = false;  // the figures are in text_config, tensors below language_model.
  bool local_rope = false;   // layers with a window have a separate RoPE
  // Not 0: layers without RoPE: every so many-th, unless config.json lists them (no_rope_layers).
  uint32_t no_rope_interval = 0;
  std::span<const SlotNames> slots;
  // For an encoder-decoder model: `slots` are its decoder's. The key of each figure of config.json
  // that an encoder has apart; sinusoids instead of RoPE; scale_embedding is read.
  std::span<const SlotNames> encoder_slots = {};
  HfKeys encoder_keys = {};
  // Other names of the embedding's tensor in Hugging Face files; they hold the same numbers.
  std::span<const std::string_view> hf_aliases = {};
  // Returns what layer `layer` is made of.
  LayerSpec (*layer)(const ModelConfig& config, uint32_t layer);

  bool has_encoder() const { return !encoder_slots.empty(); }
  const SlotNames* Find(Slot slot) const;     // nullptr: the family has no such slot
  const SlotNames& NamesOf(Slot slot) const;  // REQUIRES: the family has it
};

std::span<const Architecture> Architectures();  // that Hugging Face and GGUF files name
const Architecture& Ct2Architecture();          // of CTranslate2's files
// Returns the row that a config came from. REQUIRES: config.architecture is a row's name.
const Architecture& ArchitectureOf(const ModelConfig& config);
LayerSpec LayerOf(const ModelConfig& config, uint32_t layer);
// kUnsupported, with the rows whose name of that kind (hf_class, gguf_name, ...) is similar.
tl::unexpected<Error> UnsupportedArchitecture(const std::string& file, std::string_view name,
                                              std::string_view Architecture::*kind);

// Replaces "{}" of a name by the layer, a second one by the expert.
std::string TensorName(std::string_view pattern, uint32_t layer, uint32_t expert = 0);
// Returns how many tensors of a layer the slot holds: one, or one for each expert.
uint32_t TensorsOf(Slot slot, const ModelConfig& config);
// Puts a tensor into its slot, after those of earlier experts. REQUIRES: layer < the half's
// layers.size() for a slot of a layer.
enum class Half { kDecoder, kEncoder };  // of a model; one without an encoder is all decoder
void Place(Half half, Slot slot, MatrixSource source, uint32_t layer, ImportedModel& model);

// Calls fn(slot, tensor) for each tensor of the layers, those of an encoder after those of the
// decoder.
template <typename Fn>
void ForEachLayerTensor(const ImportedModel& model, Fn fn) {
  for (const SlotTensors& layer : model.layers) layer.ForEach(fn);
  if (!model.encoder) return;
  for (const SlotTensors& layer : model.encoder->layers) layer.ForEach(fn);
}

// Calls fn(view) for each weight matrix of the layers: the one list of them.
template <typename Fn>
void ForEachLayerMatrix(const ImportedModel& model, Fn fn) {
  ForEachLayerTensor(model, [&](Slot slot, const MatrixSource& tensor) {
    if (TraitsOf(slot).columns) fn(tensor.view);
  });
}

}  // namespace kvasir
