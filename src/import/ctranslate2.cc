#include "import/ctranslate2.h"

#include <algorithm>
#include <cstring>

#include "base/bytes.h"
#include "base/check.h"
#include "base/result.h"

namespace kvasir {
namespace {

constexpr uint32_t kOldest = 2, kNewest = 6;  // versions of the file
constexpr uint8_t kMaxDimensions = 8;

// Reads a file from its begin; the first thing that does not fit stops it.
class Ct2Reader {
 public:
  Ct2Reader(std::span<const std::byte> bytes, const std::string& file)
      : bytes_(bytes), file_(file) {}

  uint64_t offset() const { return offset_; }
  size_t left() const { return bytes_.size() - offset_; }
  tl::unexpected<Error> Damaged(const std::string& what) const {
    return Fail(Code::kCorruption, "{}: damaged at byte {} of {}: {}; fetch the file again", file_,
                offset_, bytes_.size(), what);
  }

  template <typename T>
  Result<T> Number() {
    if (left() < sizeof(T)) return Damaged("the file ends here");
    T value;
    std::memcpy(&value, bytes_.data() + offset_, sizeof(T));
    offset_ += sizeof(T);
    return value;
  }
  Result<std::span<const std::byte>> Take(uint64_t size, const std::string& of) {
    if (size > left()) {
      return Damaged(fmt::format("{} bytes of {}, but {} are left", size, of, left()));
    }
    const auto taken = bytes_.subspan(offset_, size);
    offset_ += size;
    return taken;
  }
  Result<std::string> Text() {
    KV_ASSIGN(const uint16_t size, Number<uint16_t>());
    KV_ASSIGN(const auto taken, Take(size, "a name"));
    const std::string text(reinterpret_cast<const char*>(taken.data()), taken.size());
    const bool printable = std::ranges::all_of(text.substr(0, text.size() - (size > 0)),
                                               [](char c) { return c > ' ' && c <= '~'; });
    if (size < 2 || text.back() != '\0' || !printable) {
      offset_ -= size;
      return Damaged("not a name");
    }
    return text.substr(0, text.size() - 1);
  }

 private:
  const std::span<const std::byte> bytes_;
  const std::string& file_;
  uint64_t offset_ = 0;
};

Result<Ct2Type> TypeOf(Ct2Reader& reader, uint32_t version) {
  KV_ASSIGN(const uint8_t type, reader.Number<uint8_t>());
  if (version >= 4 && type <= static_cast<uint8_t>(Ct2Type::kBf16)) {
    return static_cast<Ct2Type>(type);
  }
  if (version < 4 && type == 4) return Ct2Type::kF32;
  if (version < 4 && type == 2) return Ct2Type::kI16;
  if (version < 4 && type == 1) return Ct2Type::kI8;
  return reader.Damaged(fmt::format("unknown type {} of numbers", type));
}

Result<Ct2Variable> ReadVariable(Ct2Reader& reader, uint32_t version, const std::string& name) {
  Ct2Variable variable;
  KV_ASSIGN(const uint8_t rank, reader.Number<uint8_t>());
  if (rank > kMaxDimensions) return reader.Damaged(fmt::format("{} has {} dimensions", name, rank));
  std::optional<uint64_t> count = 1;
  for (uint8_t i = 0; i < rank; ++i) {
    KV_ASSIGN(const uint32_t size, reader.Number<uint32_t>());
    variable.shape.push_back(size);
    if (count) count = CheckedMul(*count, size);
  }
  KV_ASSIGN(variable.type, TypeOf(reader, version));
  KV_ASSIGN(const uint32_t size, reader.Number<uint32_t>());
  const uint64_t number_bytes = BytesOf(variable.type);
  const uint64_t num_bytes = version < 4 ? size * number_bytes : uint64_t{size};
  if (count) count = CheckedMul(*count, number_bytes);
  if (!count || *count != num_bytes) {
    return reader.Damaged(
        fmt::format("the {} bytes of {} are not those of its shape", num_bytes, name));
  }
  variable.offset = reader.offset();
  KV_ASSIGN(variable.bytes, reader.Take(num_bytes, name));
  return variable;
}

Status ReadAliases(Ct2Reader& reader, Ct2File* model) {
  KV_ASSIGN(const uint32_t num_aliases, reader.Number<uint32_t>());
  for (uint32_t i = 0; i < num_aliases; ++i) {
    KV_ASSIGN(const std::string alias, reader.Text());
    KV_ASSIGN(const std::string name, reader.Text());
    const auto found = model->variables.find(name);
    if (found == model->variables.end()) {
      return reader.Damaged(fmt::format("{} is {}, which is not in the file", alias, name));
    }
    const Ct2Variable variable = found->second;
    if (!model->variables.emplace(alias, variable).second) {
      return reader.Damaged(fmt::format("{} is there twice", alias));
    }
    const auto scale = model->variables.find(name + "_scale");
    if (scale == model->variables.end()) continue;
    const Ct2Variable copy = scale->second;
    model->variables.emplace(alias + "_scale", copy);
  }
  return {};
}

}  // namespace

DType DTypeOf(Ct2Type type) {
  if (type == Ct2Type::kF16) return DType::kF16;
  return type == Ct2Type::kBf16 ? DType::kBf16 : DType::kF32;
}

uint32_t BytesOf(Ct2Type type) {
  switch (type) {
    case Ct2Type::kF32:
    case Ct2Type::kI32:
      return 4;
    case Ct2Type::kI16:
    case Ct2Type::kF16:
    case Ct2Type::kBf16:
      return 2;
    case Ct2Type::kI8:
      break;
  }
  return 1;
}

Result<Ct2File> ParseCt2(std::span<const std::byte> bytes, const std::string& file) {
  Ct2Reader reader(bytes, file);
  Ct2File model;
  KV_ASSIGN(model.version, reader.Number<uint32_t>());
  if (model.version < kOldest || model.version > kNewest) {
    return Fail(Code::kUnsupported,
                "{}: version {} of CTranslate2's files is not read (known: {} to {})", file,
                model.version, kOldest, kNewest);
  }
  KV_ASSIGN(model.spec, reader.Text());
  KV_ASSIGN(model.revision, reader.Number<uint32_t>());
  KV_ASSIGN(const uint32_t num_variables, reader.Number<uint32_t>());
  for (uint32_t i = 0; i < num_variables; ++i) {
    KV_ASSIGN(const std::string name, reader.Text());
    KV_ASSIGN(Ct2Variable variable, ReadVariable(reader, model.version, name));
    if (!model.variables.emplace(name, std::move(variable)).second) {
      return reader.Damaged(fmt::format("{} is there twice", name));
    }
  }
  if (model.version >= 3) KV_TRY(ReadAliases(reader, &model));
  if (reader.left() > 0) return reader.Damaged("the file should end here");
  return model;
}

StoredTensor StoredTensorOf(const Ct2Tensor& tensor, const std::string& file) {
  static constexpr const char* kNames[] = {"float32", "int8",    "int16",
                                           "int32",   "float16", "bfloat16"};
  const Ct2Variable& weights = tensor.weights;
  StoredTensor stored{.name = tensor.name,
                      .type = kNames[static_cast<size_t>(weights.type)],
                      .dtype = DTypeOf(weights.type),
                      .shape = tensor.shape,
                      .bytes = {},
                      .file = file,
                      .integers = {}};
  uint64_t row_bytes = BytesOf(weights.type);
  for (size_t i = 1; i < tensor.shape.size(); ++i) row_bytes *= tensor.shape[i];
  const auto rows =
      weights.bytes.subspan(tensor.row_begin * row_bytes, tensor.shape.front() * row_bytes);
  if (!tensor.scale) {
    stored.bytes = rows;
    return stored;
  }
  const bool of_row = tensor.scale->count() > 1;
  const std::byte* scales =
      tensor.scale->bytes.data() + (of_row ? tensor.row_begin * sizeof(float) : 0);
  stored.integers = {rows.data(), BytesOf(weights.type), scales, of_row};
  return stored;
}

}  // namespace kvasir
