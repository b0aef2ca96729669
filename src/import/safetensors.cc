#include "import/safetensors.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string_view>
#include <unordered_set>

#include "base/bytes.h"
#include "base/result.h"

namespace kvasir {
namespace {

static_assert(std::endian::native == std::endian::little, "weights are read in place");

constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // as the reference implementation
constexpr size_t kMaxShape = 32;

struct NamedType {
  std::string_view name;
  uint32_t bits;
  std::optional<DType> dtype;
};
constexpr NamedType kNamedTypes[] = {
    {"F32", 32, DType::kF32},
    {"F16", 16, DType::kF16},
    {"BF16", 16, DType::kBf16},
    {"BOOL", 8, {}},
    {"U8", 8, {}},
    {"I8", 8, {}},
    {"F8_E4M3", 8, {}},
    {"F8_E5M2", 8, {}},
    {"F8_E8M0", 8, {}},
    {"I16", 16, {}},
    {"U16", 16, {}},
    {"I32", 32, {}},
    {"U32", 32, {}},
    {"I64", 64, {}},
    {"U64", 64, {}},
    {"F64", 64, {}},
    {"C64", 64, {}},
    {"F4", 4, {}},
    {"F6_E2M3", 6, {}},
    {"F6_E3M2", 6, {}},
};

struct Entry {
  std::string name, dtype;
  std::vector<uint64_t> shape, offsets;
  bool has_dtype = false, has_shape = false, has_offsets = false;
};

// Receives the header's JSON as events, so that a hostile header costs no more memory than the
// tensors that it names. Returning false ends the parse with `problem` set.
class HeaderReader : public nlohmann::json_sax<nlohmann::json> {
 public:
  std::vector<Entry> entries;
  std::string problem;

  bool null() override { return Scalar("null"); }
  bool boolean(bool) override { return Scalar("a boolean"); }
  bool number_float(number_float_t, const string_t&) override { return Scalar("a fraction"); }
  bool number_integer(number_integer_t) override { return Scalar("a negative number"); }
  bool binary(binary_t&) override { return Scalar("bytes"); }
  bool number_unsigned(number_unsigned_t value) override {
    if (!in_list_) return Scalar("a number");
    auto& list = key_ == "shape" ? entries.back().shape : entries.back().offsets;
    if (list.size() == kMaxShape) return Problem(key_ + " has more than 32 numbers");
    list.push_back(value);
    return true;
  }
  bool string(string_t& value) override {
    if (depth_ == 2 && in_metadata_) return true;
    if (depth_ == 2 && key_ == "dtype" && !in_list_) {
      entries.back().dtype = value;
      return true;
    }
    return Scalar("a string");
  }
  bool start_object(size_t) override {
    if (in_list_ || ++depth_ > 2) return Problem("nested deeper than the format allows");
    if (depth_ == 2) seen_fields_.clear();
    return true;
  }
  bool end_object() override {
    if (depth_-- == 2) {
      if (in_metadata_) {
        in_metadata_ = false;
      } else if (!entries.back().has_dtype || !entries.back().has_shape ||
                 !entries.back().has_offsets) {
        return Problem("needs dtype, shape and data_offsets");
      }
    }
    return true;
  }
  bool key(string_t& value) override {
    if (depth_ == 1) {
      if (!seen_names_.insert(value).second) {
        problem = "key '" + value + "' occurs twice";
        return false;
      }
      in_metadata_ = value == "__metadata__";
      if (!in_metadata_) entries.push_back({.name = value});
      return true;
    }
    if (!seen_fields_.insert(value).second) return Problem("key '" + value + "' occurs twice");
    if (in_metadata_) return true;
    key_ = value;
    if (key_ == "dtype") return entries.back().has_dtype = true;
    if (key_ == "shape") return entries.back().has_shape = true;
    if (key_ == "data_offsets") return entries.back().has_offsets = true;
    return Problem("unknown key '" + value + "'");
  }
  bool start_array(size_t) override {
    if (depth_ != 2 || in_metadata_ || in_list_ || key_ == "dtype") return Scalar("an array");
    return in_list_ = true;
  }
  bool end_array() override {
    in_list_ = false;
    return true;
  }
  bool parse_error(size_t at, const std::string&, const nlohmann::json::exception&) override {
    if (problem.empty()) problem = fmt::format("not valid JSON at byte {}", at);
    return false;
  }

 private:
  bool Problem(std::string text) {
    std::string where = in_metadata_      ? "__metadata__: "
                        : entries.empty() ? ""
                                          : "tensor '" + entries.back().name + "': ";
    problem = where + text;
    return false;
  }
  bool Scalar(std::string_view what) {
    if (depth_ == 0) return Problem("is not a JSON object");
    if (depth_ == 1) return Problem(fmt::format("is {}, not an object", what));
    if (in_metadata_) return Problem(fmt::format("holds {}; only strings are allowed", what));
    return Problem(fmt::format("{} holds {}", key_, what));
  }

  int depth_ = 0;
  bool in_metadata_ = false, in_list_ = false;
  std::string key_;
  std::unordered_set<std::string> seen_names_, seen_fields_;
};

std::string ShapeText(const std::vector<uint64_t>& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  }
  return text + "]";
}

// Checks one header entry against its own numbers and the data it points to.
Result<StoredTensor> Check(const Entry& entry, std::span<const std::byte> data,
                           const std::string& file) {
  const auto type = std::ranges::find(kNamedTypes, entry.dtype, &NamedType::name);
  if (type == std::end(kNamedTypes)) {
    return Fail(Code::kUnsupported,
                "{}: tensor '{}' has the unknown dtype '{}'; weights may be F32, F16 or BF16", file,
                entry.name, entry.dtype);
  }
  if (entry.offsets.size() != 2) {
    return Fail(Code::kCorruption, "{}: tensor '{}': data_offsets has {} numbers, not 2", file,
                entry.name, entry.offsets.size());
  }
  const uint64_t begin = entry.offsets[0], end = entry.offsets[1];
  if (begin > end || end > data.size()) {
    return Fail(Code::kCorruption,
                "{}: tensor '{}': data_offsets [{}, {}] go beyond the {} bytes of data; the file "
                "is cut short or its header is wrong: download it again",
                file, entry.name, begin, end, data.size());
  }
  std::optional<uint64_t> bits = type->bits;
  for (uint64_t dim : entry.shape) bits = bits ? CheckedMul(*bits, dim) : std::nullopt;
  if (!bits || *bits % 8 != 0 || *bits / 8 != end - begin) {
    return Fail(Code::kCorruption,
                "{}: tensor '{}': shape {} of {} does not match the {} bytes of its data_offsets",
                file, entry.name, ShapeText(entry.shape), entry.dtype, end - begin);
  }
  return StoredTensor{.name = entry.name,
                      .type = entry.dtype,
                      .dtype = type->dtype,
                      .shape = entry.shape,
                      .bytes = data.subspan(begin, end - begin),
                      .file = file};
}

}  // namespace

Result<std::vector<StoredTensor>> ParseSafetensors(std::span<const std::byte> bytes,
                                                   const std::string& file) {
  if (bytes.size() < 8) {
    return Fail(Code::kCorruption, "{}: not a safetensors file: it has only {} bytes", file,
                bytes.size());
  }
  uint64_t header_bytes;
  std::memcpy(&header_bytes, bytes.data(), 8);
  if (header_bytes > kMaxHeaderBytes) {
    return Fail(Code::kCorruption,
                "{}: a header of {} bytes; at most {} are allowed; is it a safetensors file?", file,
                header_bytes, kMaxHeaderBytes);
  }
  if (header_bytes > bytes.size() - 8) {
    return Fail(
        Code::kCorruption,
        "{}: a header of {} bytes in a file of {}; the file is cut short: download it again", file,
        header_bytes, bytes.size());
  }
  const auto* text = reinterpret_cast<const char*>(bytes.data()) + 8;
  if (header_bytes == 0 || text[0] != '{') {
    return Fail(Code::kCorruption, "{}: the header is not a JSON object", file);
  }
  HeaderReader header;
  if (!nlohmann::json::sax_parse(text, text + header_bytes, &header)) {
    return Fail(Code::kCorruption, "{}: header: {}", file, header.problem);
  }
  const auto data = bytes.subspan(8 + header_bytes);
  std::vector<StoredTensor> tensors;
  tensors.reserve(header.entries.size());
  for (const Entry& entry : header.entries) {
    KV_ASSIGN(StoredTensor tensor, Check(entry, data, file));
    tensors.push_back(std::move(tensor));
  }
  // Empty tensors may share an offset with the tensor that starts there: they come first.
  std::ranges::stable_sort(
      tensors, {}, [](const StoredTensor& t) { return std::pair(t.bytes.data(), t.bytes.size()); });
  uint64_t covered = 0;
  for (const StoredTensor& tensor : tensors) {
    const auto begin = static_cast<uint64_t>(tensor.bytes.data() - data.data());
    if (begin != covered) {
      return Fail(Code::kCorruption, "{}: tensor '{}' begins at byte {} of the data, {} byte {}",
                  file, tensor.name, begin,
                  begin < covered ? "inside another tensor, which ends at" : "after a gap from",
                  covered);
    }
    covered += tensor.bytes.size();
  }
  if (covered != data.size()) {
    return Fail(Code::kCorruption, "{}: tensors cover {} of {} bytes of data", file, covered,
                data.size());
  }
  return tensors;
}

}  // namespace kvasir
