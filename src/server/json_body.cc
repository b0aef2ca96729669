#include "server/json_body.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "base/json_object.h"
#include "text/utf8.h"

namespace kvasir {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr size_t kMaxDepth = 64;
constexpr size_t kMaxNumberText = 40;  // of a number, in a message

// Of a body that cannot be parsed beyond `position` bytes: the first thing that is wrong, counted
// from 1.
ApiError NoJson(std::string_view body, size_t position) {
  const size_t bad = FirstInvalidUtf8(body), nul = std::min(body.find('\0'), body.size());
  if (bad < std::min(position, nul)) {
    return {Code::kInvalidArgument,
            fmt::format("the body is not UTF-8: byte {} is 0x{:02x}, in no character", bad + 1,
                        static_cast<uint8_t>(body[bad]))};
  }
  if (nul < std::min(position, body.size())) {
    return {Code::kInvalidArgument, fmt::format("the body is no JSON: byte {} is NUL", nul + 1)};
  }
  if (position > body.size()) {
    return {Code::kInvalidArgument,
            fmt::format("the body is no JSON: it ends after byte {}, too early", body.size())};
  }
  const std::string_view before = body.substr(0, std::max<size_t>(position, 1) - 1);
  const auto line = std::ranges::count(before, '\n') + 1;
  const size_t column = before.size() - (before.rfind('\n') + 1) + 1;
  return {Code::kInvalidArgument,
          fmt::format("the body is no JSON: syntax error at byte {} (line {}, byte {} of it)",
                      position, line, column)};
}

// Events of the parser: counts values, packs lists of ids into one binary value each, and leaves
// the rest to nlohmann's own builder. One parse.
template <typename Json>
class BodyReader {
 public:
  using number_integer_t = typename Json::number_integer_t;
  using number_unsigned_t = typename Json::number_unsigned_t;
  using number_float_t = typename Json::number_float_t;
  using string_t = typename Json::string_t;
  using binary_t = typename Json::binary_t;

  BodyReader(std::string_view body, Json* root, IdFields id_fields, size_t* values_left)
      : body_(body),
        builder_(*root, /*allow_exceptions_=*/false),
        id_fields_(id_fields),
        values_left_(values_left) {}

  bool null() { return Other("null") && builder_.null(); }
  bool boolean(bool value) { return Other("a boolean") && builder_.boolean(value); }
  bool string(string_t& value) { return Other("a string") && builder_.string(value); }
  bool binary(binary_t&) { return false; }  // not in text
  bool number_integer(number_integer_t value) {
    if (TakesNumber()) return AddId(value);
    return Count() && builder_.number_integer(value);
  }
  bool number_unsigned(number_unsigned_t value) {
    const auto most = static_cast<number_unsigned_t>(std::numeric_limits<int64_t>::max());
    if (TakesNumber()) return AddId(static_cast<int64_t>(std::min(value, most)));
    return Count() && builder_.number_unsigned(value);
  }
  bool number_float(number_float_t value, const string_t& text) {
    if (!TakesNumber()) return Count() && builder_.number_float(value, text);
    // 16.0 is an id, as some clients write it.
    if (std::abs(value) < 0x1p53 && value == std::floor(value)) {
      return AddId(static_cast<int64_t>(value));
    }
    return Fail(fmt::format("{} is not a token id", text.substr(0, kMaxNumberText)));
  }
  bool start_object(size_t size) {
    ++depth_;
    return Other("an object") && builder_.start_object(size);
  }
  bool key(string_t& name) {
    if (depth_ == 1) {
      const bool holds_ids = std::ranges::find(id_fields_, name) != id_fields_.end();
      key_ = holds_ids ? std::string(name) : std::string();
    }
    return builder_.key(name);
  }
  bool end_object() {
    --depth_;
    return builder_.end_object();
  }
  bool start_array(size_t size) {
    ++depth_;
    if (!Other("an array")) return false;
    opened_ = !key_.empty();
    return opened_ || builder_.start_array(size);
  }
  bool end_array() {
    --depth_;
    if (opened_) {  // empty
      opened_ = false;
      return builder_.start_array(0) && builder_.end_array();
    }
    if (!packing_) return builder_.end_array();
    packing_ = false;
    binary_t packed(std::exchange(ids_, {}));
    return builder_.binary(packed);
  }
  bool parse_error(size_t position, const std::string&, const nlohmann::detail::exception& e) {
    constexpr int kNumberOverflow = 406;
    error_ = e.id == kNumberOverflow ? ApiError{Code::kInvalidArgument,
                                                "the body's JSON has a number that is too large"}
                                     : NoJson(body_, position);
    return false;
  }

  const ApiError& error() const { return error_; }

 private:
  bool Count() {
    if (*values_left_ == 0) {
      error_.message = fmt::format(
          "the body's JSON has more than {} values (numbers, texts, lists and objects; lists of "
          "token ids in a prompt count as one)",
          kMaxJsonValues);
      error_.status = 413;
      error_.name = "body_too_large";
      return false;
    }
    --*values_left_;
    return true;
  }

  bool Fail(std::string_view what) {
    error_.param = key_;
    error_.message = fmt::format("{}: {}", key_, what);
    return false;
  }

  // A value that is no number: it ends neither list of ids nor begins one.
  bool Other(std::string_view kind) {
    if (packing_) return Fail(fmt::format("has {}, not a token id", kind));
    if (std::exchange(opened_, false) && !builder_.start_array(size_t(-1))) return false;
    return Count();
  }

  bool TakesNumber() {
    packing_ |= std::exchange(opened_, false);
    return packing_;
  }

  bool AddId(int64_t id) {
    if (id < std::numeric_limits<TokenId>::min() || id > std::numeric_limits<TokenId>::max()) {
      return Fail(fmt::format("{} is not a token id", id));
    }
    const auto bytes =
        std::bit_cast<std::array<uint8_t, sizeof(TokenId)>>(static_cast<TokenId>(id));
    ids_.insert(ids_.end(), bytes.begin(), bytes.end());
    return true;
  }

  const std::string_view body_;
  nlohmann::detail::json_sax_dom_parser<Json> builder_;
  const IdFields id_fields_;
  size_t* values_left_;
  size_t depth_ = 0;
  std::string key_;           // of the body, where its value may hold ids; else empty
  bool opened_ = false;       // an array whose first element decides what it is
  bool packing_ = false;      // inside a list of ids
  std::vector<uint8_t> ids_;  // bytes of TokenIds
  ApiError error_;
};

}  // namespace

ApiResult<json> ParseBody(std::string_view body, IdFields id_fields, size_t* values_left) {
  if (body.empty()) return Invalid("", "the body is empty; send a JSON object");
  if (NestsDeeper(body, kMaxDepth)) {
    return Invalid("", fmt::format("the body's JSON nests deeper than {} levels", kMaxDepth));
  }
  json parsed;
  BodyReader<json> reader(body, &parsed, id_fields, values_left);
  if (!json::sax_parse(body, &reader)) return tl::unexpected(reader.error());
  // The parser takes a NUL after a value for the end.
  if (body.find('\0') != body.npos) return tl::unexpected(NoJson(body, body.size()));
  if (!parsed.is_object()) {
    return Invalid("", fmt::format("the body is {}; send a JSON object", KindOf(parsed)));
  }
  return parsed;
}

ApiResult<json> ParseBody(std::string_view body, IdFields id_fields) {
  size_t values_left = kMaxJsonValues;
  return ParseBody(body, id_fields, &values_left);
}

ordered_json ParseInOrder(std::string_view body, IdFields id_fields) {
  ordered_json parsed;
  size_t values_left = kMaxJsonValues;
  BodyReader<ordered_json> reader(body, &parsed, id_fields, &values_left);
  if (!ordered_json::sax_parse(body, &reader)) return ordered_json();
  return parsed;
}

bool IsIds(const json& value) { return value.is_binary() || (value.is_array() && value.empty()); }

std::span<const TokenId> AsIds(const json& value) {
  if (!value.is_binary()) return {};
  const std::vector<uint8_t>& bytes = value.get_binary();
  // The bytes are those of TokenIds, and the heap aligns every block for one.
  return {reinterpret_cast<const TokenId*>(bytes.data()), bytes.size() / sizeof(TokenId)};
}

std::string Dump(const json& value) {
  return value.dump(-1, ' ', false, json::error_handler_t::replace);
}

void AppendEscaped(std::string_view* rest, std::string* out) {
  constexpr size_t kSliceBytes = 2 << 10;
  size_t end = std::min(kSliceBytes, rest->size());
  while (end < rest->size() && (static_cast<unsigned char>((*rest)[end]) & 0xc0) == 0x80) ++end;
  const std::string quoted = Dump(json(rest->substr(0, end)));
  out->append(quoted, 1, quoted.size() - 2);
  rest->remove_prefix(end);
}

std::string_view KindOf(const json& value) {
  switch (value.type()) {
    case json::value_t::null:
      return "null";
    case json::value_t::object:
      return "an object";
    case json::value_t::array:
    case json::value_t::binary:
      return "an array";
    case json::value_t::string:
      return "a string";
    case json::value_t::boolean:
      return "a boolean";
    default:
      return "a number";
  }
}

}  // namespace kvasir
