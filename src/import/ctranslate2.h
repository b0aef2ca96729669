// CTranslate2 folders: model.bin, vocabularies and config.json of encoder-decoder Transformers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/mapped_file.h"
#include "import/tensor_view.h"
#include "kvasir/status.h"

namespace kvasir {

// How numbers are stored. Never renumber: these are the file's.
enum class Ct2Type : uint8_t { kF32 = 0, kI8 = 1, kI16 = 2, kI32 = 3, kF16 = 4, kBf16 = 5 };
uint32_t BytesOf(Ct2Type type);

struct Ct2Variable {
  Ct2Type type = Ct2Type::kF32;
  std::vector<uint64_t> shape;  // empty: one number
  std::span<const std::byte> bytes;
  uint64_t offset = 0;  // of the bytes in the file, for messages
  uint64_t count() const { return bytes.size() / BytesOf(type); }
};

struct Ct2File {
  uint32_t version = 0, revision = 0;
  std::string spec;
  std::map<std::string, Ct2Variable, std::less<>> variables;  // aliases too
};

// Reads the format, little endian (CTranslate2's model_spec.py; its own versions 2 to 6):
//   file     := u32 version  string spec  u32 revision  u32 n  variable[n]  u32 m  alias[m]
//   variable := string name  u8 rank  u32 dims[rank]  u8 type  u32 num_bytes  bytes
//   alias    := string name  string of the variable that it is (its `_scale` too)
//   string   := u16 size (with the NUL)  bytes  NUL
// Before version 4, `type` is the bytes of a number (4: f32, 2: i16, 1: i8), and num_bytes counts
// numbers. Before version 3 there are no aliases.
//
// Returns views into `bytes`. `file` names it in errors, with the byte: kCorruption when the file
// lies, kUnsupported for another version. O(variables).
Result<Ct2File> ParseCt2(std::span<const std::byte> bytes, const std::string& file);

enum class Ct2Activation : uint8_t { kRelu = 0, kGeluTanh = 1, kSilu = 2, kGelu = 3 };

struct Ct2Stack {  // the encoder or the decoder
  uint32_t layers = 0, heads = 0, ffn_size = 0, vocab_size = 0;
  Ct2Activation activation = Ct2Activation::kRelu;
  bool norm_first = true;  // else after each branch
  bool has_final_norm = true;
  float embedding_scale = 1;
};

// A matrix or vector under the name that transformers gives it in an M2M-100: its rows in model.bin
// [row_begin, row_begin + shape[0]), and the scales of quantised ones.
struct Ct2Tensor {
  std::string name;
  std::vector<uint64_t> shape;
  Ct2Variable weights;
  std::optional<Ct2Variable> scale;  // one number, or one for each row of `weights`
  uint64_t row_begin = 0;
};

// Returns it as a tensor of any file, in place: integers q with a scale stand for q / scale in f32.
StoredTensor StoredTensorOf(const Ct2Tensor& tensor, const std::string& file);
// Returns the type of numbers that are not integers.
DType DTypeOf(Ct2Type type);

struct Ct2Shape {
  uint32_t hidden_size = 0;
  Ct2Stack encoder, decoder;
  // Rows of model.*.embed_positions.weights, the first for the first token. Absent: sinusoids [sin
  // | cos] of positions from 1 on.
  std::optional<uint32_t> max_positions;
};

struct Ct2Weights {
  Ct2Shape shape;
  std::vector<Ct2Tensor> tensors;
};

// Names the variables of an encoder-decoder. model.encoder.embed_tokens, model.decoder.embed_tokens
// and lm_head are there even where they are the same bytes; biases and positions only where the
// file has them. kUnsupported: another spec, a newer revision, or a variable that this kind of
// model does not have, by name. kCorruption: a variable is missing, or has the wrong shape or
// scale. O(variables).
Result<Ct2Weights> DescribeCt2(const Ct2File& model, const std::string& file);

struct Ct2Folder {
  Ct2Weights weights;
  std::vector<std::string> source_tokens, target_tokens;  // by id
  std::string unk = "<unk>", bos = "<s>", eos = "</s>";
  std::optional<std::string> decoder_start;  // absent: the caller gives the first target token
  bool add_source_bos = false, add_source_eos = false;
  float norm_eps = 1e-5f;
  std::shared_ptr<const MappedFile> file;  // that the tensors lie in
};

// Reads model.bin; shared_vocabulary, or source_vocabulary and target_vocabulary, .json or .txt,
// where a missing unknown token is added at the end; config.json where it exists. Errors as above,
// as MappedFile::Open and ReadTextFile; kCorruption: a vocabulary has not as many tokens as the
// embedding has rows.
Result<Ct2Folder> ReadCt2Folder(const std::filesystem::path& folder);

}  // namespace kvasir
