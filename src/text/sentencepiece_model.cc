#include "text/sentencepiece_model.h"

#include <bit>
#include <cstdint>
#include <optional>

#include "base/result.h"
#include "text/charsmap.h"

namespace kvasir {
namespace {

// Fields of a protocol buffer message, one after the other.
class ProtoReader {
 public:
  explicit ProtoReader(std::string_view bytes) : bytes_(bytes) {}

  struct Field {
    uint64_t number = 0;
    uint64_t value = 0;      // of a varint or a fixed one
    std::string_view bytes;  // of a string or message
    bool is_bytes = false;
  };
  bool ok() const { return ok_; }
  // Absent at the end, and where the bytes are not a valid message (then ok() is false).
  std::optional<Field> Next() {
    if (!ok_ || bytes_.empty()) return std::nullopt;
    const uint64_t tag = Varint();
    Field field{.number = tag >> 3};
    switch (tag & 7) {
      case 0:
        field.value = Varint();
        break;
      case 1:
        field.value = Fixed(8);
        break;
      case 2: {
        const uint64_t size = Varint();
        if (!ok_ || size > bytes_.size()) return Fails();
        field.bytes = bytes_.substr(0, size);
        field.is_bytes = true;
        bytes_.remove_prefix(size);
        break;
      }
      case 5:
        field.value = Fixed(4);
        break;
      default:
        return Fails();
    }
    if (!ok_ || field.number == 0) return Fails();
    return field;
  }

 private:
  std::nullopt_t Fails() {
    ok_ = false;
    return std::nullopt;
  }
  uint64_t Varint() {
    uint64_t value = 0;
    for (uint32_t shift = 0; shift < 64 && !bytes_.empty(); shift += 7) {
      const auto byte = static_cast<uint8_t>(bytes_.front());
      bytes_.remove_prefix(1);
      value |= uint64_t{byte & 0x7Fu} << shift;
      if (byte < 0x80) return value;
    }
    ok_ = false;
    return 0;
  }
  uint64_t Fixed(size_t size) {  // little endian
    if (bytes_.size() < size) {
      ok_ = false;
      return 0;
    }
    uint64_t value = 0;
    for (size_t i = size; i-- > 0;) value = value << 8 | static_cast<uint8_t>(bytes_[i]);
    bytes_.remove_prefix(size);
    return value;
  }

  std::string_view bytes_;
  bool ok_ = true;
};

struct Specs {
  uint64_t model_type = 0;  // 0: nothing says it, as in a file that was cut
  bool space_is_suffix = false;
  int64_t bos = 1, eos = 2;  // -1: none
  std::string_view charsmap;
  bool add_prefix = true, collapse_spaces = true, escape_spaces = true;
};

// Calls take(field) for each field; false when the bytes are not a valid message.
template <typename Take>
bool ForEachField(std::string_view bytes, const Take& take) {
  ProtoReader reader(bytes);
  while (const auto field = reader.Next()) take(*field);
  return reader.ok();
}

bool ReadPiece(std::string_view bytes, VocabularyToken* token) {
  bool kind_ok = true;
  return ForEachField(bytes,
                      [&](const ProtoReader::Field& field) {
                        if (field.number == 1) token->text = field.bytes;
                        if (field.number == 2) {
                          token->score = std::bit_cast<float>(static_cast<uint32_t>(field.value));
                        }
                        if (field.number == 3) {
                          kind_ok &= field.value >= 1 && field.value <= 6;
                          if (kind_ok) token->kind = static_cast<TokenKind>(field.value);
                        }
                      }) &&
         kind_ok;
}

bool ReadTrainer(std::string_view bytes, Specs* specs) {
  specs->model_type = 1;  // unigram, unless it says otherwise
  return ForEachField(bytes, [&](const ProtoReader::Field& field) {
    if (field.number == 3) specs->model_type = field.value;
    if (field.number == 24) specs->space_is_suffix = field.value != 0;
    if (field.number == 41) specs->bos = static_cast<int64_t>(field.value);
    if (field.number == 42) specs->eos = static_cast<int64_t>(field.value);
  });
}

bool ReadNormalizer(std::string_view bytes, Specs* specs) {
  return ForEachField(bytes, [&](const ProtoReader::Field& field) {
    if (field.number == 2) specs->charsmap = field.bytes;
    if (field.number == 3) specs->add_prefix = field.value != 0;
    if (field.number == 4) specs->collapse_spaces = field.value != 0;
    if (field.number == 5) specs->escape_spaces = field.value != 0;
  });
}

Status CheckSpecs(const Specs& specs, const std::string& file) {
  const char* what = nullptr;
  if (specs.model_type != 1 && specs.model_type != 2) what = "is neither unigram nor BPE";
  if (specs.space_is_suffix) what = "writes spaces after words";
  if (!specs.escape_spaces) what = "keeps spaces as they are";
  if (what == nullptr) return {};
  return Fail(Code::kUnsupported,
              "{}: this SentencePiece model {}, which is not read; make a tokenizer.json of it "
              "(transformers: AutoTokenizer.from_pretrained, save_pretrained)",
              file, what);
}

}  // namespace

Result<Vocabulary> ParseSentencePiece(std::string_view bytes, const std::string& file,
                                      size_t max_tokens) {
  Vocabulary vocabulary;
  vocabulary.kind = VocabularyKind::kSentencePiece;
  vocabulary.file = file;
  Specs specs;
  bool parts_ok = true, too_many = false;
  const bool ok = ForEachField(bytes, [&](const ProtoReader::Field& field) {
    if (field.number > 3 || too_many) return;
    parts_ok &= field.is_bytes;
    if (field.number == 1) {
      too_many = vocabulary.tokens.size() == max_tokens;
      if (too_many) return;
      parts_ok &= ReadPiece(field.bytes, &vocabulary.tokens.emplace_back());
    } else if (field.number == 2) {
      parts_ok &= ReadTrainer(field.bytes, &specs);
    } else {
      parts_ok &= ReadNormalizer(field.bytes, &specs);
    }
  });
  if (!ok || !parts_ok || vocabulary.tokens.empty()) {
    return Fail(Code::kCorruption,
                "{}: not a SentencePiece model, or a damaged one: fetch it again", file);
  }
  if (too_many) {
    return Fail(Code::kInvalidArgument,
                "{}: has more tokens than the model's vocabulary, which has {}: it belongs to "
                "another model",
                file, max_tokens);
  }
  KV_TRY(CheckSpecs(specs, file));
  KV_TRY(Charsmap::Parse(specs.charsmap, file));
  if (specs.model_type == 1) vocabulary.merging = Merging::kUnigram;
  vocabulary.charsmap = specs.charsmap;
  const auto id_of = [&](int64_t id) -> std::optional<TokenId> {
    if (id < 0 || static_cast<uint64_t>(id) >= vocabulary.tokens.size()) return std::nullopt;
    return static_cast<TokenId>(id);
  };
  vocabulary.bos = id_of(specs.bos);
  vocabulary.eos = id_of(specs.eos);
  vocabulary.space_prefix = specs.add_prefix ? SpacePrefix::kEveryText : SpacePrefix::kNever;
  vocabulary.collapse_spaces = specs.collapse_spaces;
  TakeUserTextsAsWritten(&vocabulary);
  return vocabulary;
}

}  // namespace kvasir
