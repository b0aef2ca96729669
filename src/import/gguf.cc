#include "import/gguf.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/bytes.h"
#include "base/result.h"

namespace kvasir {
namespace {

static_assert(std::endian::native == std::endian::little, "weights are read in place");

// Value types of metadata. Never renumber.
enum ValueType : uint32_t {
  kU8,
  kI8,
  kU16,
  kI16,
  kU32,
  kI32,
  kF32,
  kBool,
  kString,
  kArray,
  kU64,
  kI64,
  kF64,
};
constexpr uint32_t kValueBytes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
constexpr uint32_t kMaxArrayDepth = 4;
constexpr uint64_t kMaxKeyBytes = 65535;  // the format's own limit
constexpr uint64_t kMaxGgufRank = 4;
constexpr uint64_t kMaxAlignment = uint64_t{1} << 20;

// Tensor types by ggml's number: a block of `elements` numbers takes `bytes`.
struct GgufType {
  uint32_t id;
  const char* name;
  uint32_t elements, bytes;
  std::optional<DType> dtype;
};
constexpr GgufType kGgufTypes[] = {
    {0, "F32", 1, 4, DType::kF32},
    {1, "F16", 1, 2, DType::kF16},
    {30, "BF16", 1, 2, DType::kBf16},
    {2, "Q4_0", 32, 18, DType::kQ4_0},
    {3, "Q4_1", 32, 20, DType::kQ4_1},
    {6, "Q5_0", 32, 22, DType::kQ5_0},
    {7, "Q5_1", 32, 24, DType::kQ5_1},
    {8, "Q8_0", 32, 34, DType::kQ8_0},
    {12, "Q4_K", 256, 144, DType::kQ4K},
    {13, "Q5_K", 256, 176, DType::kQ5K},
    {14, "Q6_K", 256, 210, DType::kQ6K},
    {20, "IQ4_NL", 32, 18, DType::kIq4Nl},
    {9, "Q8_1", 32, 36, {}},
    {10, "Q2_K", 256, 84, {}},
    {11, "Q3_K", 256, 110, {}},
    {15, "Q8_K", 256, 292, {}},
    {16, "IQ2_XXS", 256, 66, {}},
    {17, "IQ2_XS", 256, 74, {}},
    {18, "IQ3_XXS", 256, 98, {}},
    {19, "IQ1_S", 256, 50, {}},
    {21, "IQ3_S", 256, 110, {}},
    {22, "IQ2_S", 256, 82, {}},
    {23, "IQ4_XS", 256, 136, {}},
    {24, "I8", 1, 1, {}},
    {25, "I16", 1, 2, {}},
    {26, "I32", 1, 4, {}},
    {27, "I64", 1, 8, {}},
    {28, "F64", 1, 8, {}},
    {29, "IQ1_M", 256, 56, {}},
    {34, "TQ1_0", 256, 54, {}},
    {35, "TQ2_0", 256, 66, {}},
    {39, "MXFP4", 32, 17, {}},
};
static_assert(std::ranges::all_of(kGgufTypes, [](const GgufType& type) {
  return !type.dtype || (BlockOf(*type.dtype).columns == type.elements &&
                         BlockOf(*type.dtype).bytes == type.bytes);
}));

// Reads the header front to back; every read is checked against the end of the file. A failed read
// leaves the reader failed: callers look at ok() once per record.
class Reader {
 public:
  Reader(std::span<const std::byte> bytes, bool wide_counts)
      : bytes_(bytes), count_bytes_(wide_counts ? 8 : 4) {}

  bool ok() const { return ok_; }
  uint64_t position() const { return position_; }
  uint64_t count_bytes() const { return count_bytes_; }
  uint64_t remaining() const { return bytes_.size() - position_; }

  std::span<const std::byte> Take(uint64_t n) {
    if (!ok_ || n > remaining()) {
      ok_ = false;
      return {};
    }
    const auto taken = bytes_.subspan(position_, n);
    position_ += n;
    return taken;
  }
  template <typename T>
  T Read() {
    T value{};
    const auto taken = Take(sizeof(T));
    if (ok_) std::memcpy(&value, taken.data(), sizeof(T));
    return value;
  }
  uint64_t Count() { return count_bytes_ == 8 ? Read<uint64_t>() : Read<uint32_t>(); }
  std::string_view String() {
    const auto taken = Take(Count());
    return {reinterpret_cast<const char*>(taken.data()), taken.size()};
  }
  // Passes over the elements of an array without keeping them.
  bool SkipArray(uint32_t type, uint64_t count, uint32_t depth) {
    if (type > kF64 || depth > kMaxArrayDepth) return ok_ = false;
    if (kValueBytes[type] > 0) {
      const auto size = CheckedMul(count, kValueBytes[type]);
      if (!size) return ok_ = false;
      Take(*size);
      return ok_;
    }
    // Each element has at least its count: so the loop is bounded by the file's size.
    if (count > remaining() / count_bytes_) return ok_ = false;
    for (uint64_t i = 0; i < count && ok_; ++i) {
      if (type == kString) {
        Take(Count());
      } else {
        const auto inner = Read<uint32_t>();
        const uint64_t inner_count = Count();
        SkipArray(inner, inner_count, depth + 1);
      }
    }
    return ok_;
  }

 private:
  std::span<const std::byte> bytes_;
  uint64_t count_bytes_;
  uint64_t position_ = 0;
  bool ok_ = true;
};

std::optional<GgufValue> ReadValue(Reader& reader, uint32_t type) {
  switch (type) {
    case kU8:
      return GgufValue{uint64_t{reader.Read<uint8_t>()}};
    case kU16:
      return GgufValue{uint64_t{reader.Read<uint16_t>()}};
    case kU32:
      return GgufValue{uint64_t{reader.Read<uint32_t>()}};
    case kU64:
      return GgufValue{reader.Read<uint64_t>()};
    case kI8:
      return GgufValue{int64_t{reader.Read<int8_t>()}};
    case kI16:
      return GgufValue{int64_t{reader.Read<int16_t>()}};
    case kI32:
      return GgufValue{int64_t{reader.Read<int32_t>()}};
    case kI64:
      return GgufValue{reader.Read<int64_t>()};
    case kF32:
      return GgufValue{double{reader.Read<float>()}};
    case kF64:
      return GgufValue{reader.Read<double>()};
    case kBool:
      return GgufValue{reader.Read<uint8_t>() != 0};
    case kString:
      return GgufValue{std::string(reader.String())};
    case kArray: {
      GgufArray array{.element_type = reader.Read<uint32_t>()};
      array.count = reader.Count();
      array.count_bytes = static_cast<uint32_t>(reader.count_bytes());
      Reader start = reader;
      if (!reader.SkipArray(array.element_type, array.count, 1)) return std::nullopt;
      array.bytes = start.Take(reader.position() - start.position());
      return GgufValue{array};
    }
    default:
      return std::nullopt;
  }
}

Status ReadMetadata(Reader& reader, uint64_t count, const std::string& file, GgufFile& out) {
  for (uint64_t i = 0; i < count; ++i) {
    const uint64_t at = reader.position();
    const std::string key(reader.String());
    const auto type = reader.Read<uint32_t>();
    if (!reader.ok() || key.size() > kMaxKeyBytes) {
      return Fail(Code::kCorruption, "{}: metadata pair {} of {} at byte {} is cut short", file, i,
                  count, at);
    }
    auto value = ReadValue(reader, type);
    if (!value || !reader.ok()) {
      return Fail(Code::kCorruption,
                  "{}: metadata '{}' at byte {}: its value (type {}) is malformed or cut short",
                  file, key, at, type);
    }
    if (!out.metadata.emplace(key, std::move(*value)).second) {
      return Fail(Code::kCorruption, "{}: metadata '{}' occurs twice", file, key);
    }
  }
  return {};
}

Result<uint64_t> AlignmentOf(const GgufFile& gguf, const std::string& file) {
  const auto found = gguf.metadata.find("general.alignment");
  if (found == gguf.metadata.end()) return 32;
  const auto* value = std::get_if<uint64_t>(&found->second);
  if (value == nullptr || !std::has_single_bit(*value) || *value > kMaxAlignment) {
    return Fail(Code::kCorruption, "{}: general.alignment is not a power of two up to {}", file,
                kMaxAlignment);
  }
  return *value;
}

// A row of the tensor table; its bytes are found once the start of data is known.
struct Row {
  StoredTensor tensor;
  uint64_t offset, bytes;
};

Result<Row> ReadRow(Reader& reader, uint64_t index, const std::string& file) {
  const uint64_t at = reader.position();
  Row row{.tensor = {.name = std::string(reader.String()), .file = file}};
  const auto rank = reader.Read<uint32_t>();
  if (reader.ok() && (rank == 0 || rank > kMaxGgufRank)) {
    return Fail(Code::kCorruption, "{}: tensor '{}' has {} dimensions, 1 to {} are allowed", file,
                row.tensor.name, rank, kMaxGgufRank);
  }
  for (uint32_t i = 0; reader.ok() && i < rank; ++i) row.tensor.shape.push_back(reader.Count());
  const auto type_id = reader.Read<uint32_t>();
  row.offset = reader.Read<uint64_t>();
  if (!reader.ok()) {
    return Fail(Code::kCorruption, "{}: row {} of the tensor table at byte {} is cut short", file,
                index, at);
  }
  const auto type = std::ranges::find(kGgufTypes, type_id, &GgufType::id);
  if (type == std::end(kGgufTypes)) {
    return Fail(Code::kUnsupported, "{}: tensor '{}' has the unknown type {}; weights may be {}",
                file, row.tensor.name, type_id, kWeightTypes);
  }
  row.tensor.type = type->name;
  row.tensor.dtype = type->dtype;
  const uint64_t row_elements = row.tensor.shape[0];
  std::optional<uint64_t> elements = 1;
  for (uint64_t dim : row.tensor.shape) elements = elements ? CheckedMul(*elements, dim) : elements;
  const auto bytes = elements ? CheckedMul(*elements / type->elements, type->bytes) : std::nullopt;
  if (row_elements % type->elements != 0) {
    return Fail(Code::kCorruption,
                "{}: tensor '{}': its dimensions do not fit type {}: rows of {} numbers are not "
                "a multiple of its block of {}",
                file, row.tensor.name, type->name, row_elements, type->elements);
  }
  if (!bytes) {
    return Fail(Code::kCorruption, "{}: tensor '{}': its dimensions do not fit type {}", file,
                row.tensor.name, type->name);
  }
  row.bytes = *bytes;
  std::ranges::reverse(row.tensor.shape);
  return row;
}

Status PlaceTensors(std::vector<Row>& rows, std::span<const std::byte> data, uint64_t alignment,
                    const std::string& file, GgufExtent extent, GgufFile& out) {
  std::ranges::stable_sort(rows, {}, [](const Row& r) { return std::pair(r.offset, r.bytes); });
  uint64_t previous_end = 0;
  for (Row& row : rows) {
    const auto end = CheckedAdd(row.offset, row.bytes);
    const bool is_missing = end && *end > data.size() && extent == GgufExtent::kHeader;
    if (!end || (*end > data.size() && !is_missing)) {
      return Fail(Code::kCorruption,
                  "{}: tensor '{}': {} bytes at offset {} go beyond the {} bytes of data; the file "
                  "is cut short: download it again",
                  file, row.tensor.name, row.bytes, row.offset, data.size());
    }
    if (row.offset % alignment != 0) {
      return Fail(Code::kCorruption, "{}: tensor '{}': offset {} is not a multiple of alignment {}",
                  file, row.tensor.name, row.offset, alignment);
    }
    if (row.offset < previous_end) {
      return Fail(Code::kCorruption, "{}: tensor '{}' at offset {} overlaps '{}', which ends at {}",
                  file, row.tensor.name, row.offset, out.tensors.back().name, previous_end);
    }
    previous_end = *end;
    if (!is_missing) row.tensor.bytes = data.subspan(row.offset, row.bytes);
    out.tensors.push_back(std::move(row.tensor));
  }
  return {};
}

Status CheckNamesDiffer(const std::vector<StoredTensor>& tensors, const std::string& file) {
  std::vector<std::string_view> names;
  for (const StoredTensor& tensor : tensors) names.push_back(tensor.name);
  std::ranges::sort(names);
  const auto twice = std::ranges::adjacent_find(names);
  if (twice == names.end()) return {};
  return Fail(Code::kCorruption, "{}: tensor '{}' occurs twice", file, *twice);
}

Result<uint32_t> ReadVersion(std::span<const std::byte> bytes, const std::string& file) {
  if (bytes.size() < 8 ||
      (std::memcmp(bytes.data(), "GGUF", 4) != 0 && std::memcmp(bytes.data(), "FUGG", 4) != 0)) {
    return Fail(Code::kCorruption, "{}: not a GGUF file: it does not begin with \"GGUF\"", file);
  }
  uint32_t version;
  std::memcpy(&version, bytes.data() + 4, 4);
  // A big-endian writer's small version number has its digits in the high bytes.
  if (bytes[0] == std::byte{'F'} || (version != 0 && (version & 0xffff) == 0)) {
    return Fail(Code::kUnsupported,
                "{}: a big-endian GGUF file; convert it with gguf-py's gguf_convert_endian.py",
                file);
  }
  if (version < 1 || version > 3) {
    return Fail(Code::kUnsupported, "{}: GGUF version {} is not supported (supported: 1 to 3)",
                file, version);
  }
  return version;
}

}  // namespace

Result<GgufFile> ParseGguf(std::span<const std::byte> bytes, const std::string& file,
                           GgufExtent extent) {
  GgufFile gguf;
  KV_ASSIGN(gguf.version, ReadVersion(bytes, file));
  Reader reader(bytes, gguf.version >= 2);
  reader.Take(8);
  const uint64_t num_tensors = reader.Count(), num_pairs = reader.Count();
  // The smallest pair is an empty key and a u8; the smallest tensor row a name and one dimension.
  const uint64_t min_pair_bytes = reader.count_bytes() + 5;
  const uint64_t min_row_bytes = 2 * reader.count_bytes() + 16;
  if (!reader.ok() || num_pairs > reader.remaining() / min_pair_bytes ||
      num_tensors > reader.remaining() / min_row_bytes) {
    return Fail(Code::kCorruption,
                "{}: {} metadata pairs and {} tensors do not fit into its {} bytes", file,
                num_pairs, num_tensors, bytes.size());
  }
  KV_TRY(ReadMetadata(reader, num_pairs, file, gguf));
  std::vector<Row> rows;
  for (uint64_t i = 0; i < num_tensors; ++i) {
    KV_ASSIGN(Row row, ReadRow(reader, i, file));
    rows.push_back(std::move(row));
  }
  KV_ASSIGN(const uint64_t alignment, AlignmentOf(gguf, file));
  // A file without tensors (a vocabulary) may end before the padding.
  const uint64_t data_start =
      std::min<uint64_t>(RoundUp(reader.position(), alignment), bytes.size());
  gguf.tensors.reserve(rows.size());
  KV_TRY(PlaceTensors(rows, bytes.subspan(data_start), alignment, file, extent, gguf));
  KV_TRY(CheckNamesDiffer(gguf.tensors, file));
  return gguf;
}

std::optional<std::string> StringAt(const GgufArray& array, uint64_t index) {
  if (array.element_type != kString || index >= array.count) return std::nullopt;
  Reader reader(array.bytes, array.count_bytes == 8);
  for (uint64_t i = 0; i < index; ++i) reader.String();
  const std::string_view text = reader.String();
  if (!reader.ok()) return std::nullopt;
  return std::string(text);
}

std::optional<std::vector<std::string>> StringsOf(const GgufArray& array) {
  if (array.element_type != kString) return std::nullopt;
  Reader reader(array.bytes, array.count_bytes == 8);
  std::vector<std::string> strings;
  strings.reserve(array.count);
  for (uint64_t i = 0; i < array.count; ++i) strings.emplace_back(reader.String());
  if (!reader.ok()) return std::nullopt;
  return strings;
}

std::optional<std::vector<double>> NumbersOf(const GgufArray& array) {
  if (array.element_type == kString || array.element_type == kArray) return std::nullopt;
  Reader reader(array.bytes, array.count_bytes == 8);
  std::vector<double> numbers;
  numbers.reserve(array.count);
  for (uint64_t i = 0; i < array.count; ++i) {
    const auto value = ReadValue(reader, array.element_type);
    if (!value || !reader.ok()) return std::nullopt;
    std::visit(
        [&numbers](const auto& number) {
          using T = std::decay_t<decltype(number)>;
          if constexpr (std::is_arithmetic_v<T>) numbers.push_back(static_cast<double>(number));
        },
        *value);
  }
  return numbers;
}

}  // namespace kvasir
