#include "http/json_body.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "base/json_object.h"
#include "base/json_parser.h"
#include "base/utf8.h"

namespace kvasir {
namespace {

constexpr std::string_view kBody = "the body";
constexpr std::string_view kMixedIds = "prompt";  // its lists of ids may have texts too
constexpr size_t kMaxDepth = 64;
constexpr size_t kMaxNumberText = 40;  // characters of a number in a message
constexpr size_t kMaxKeyText = 64;     // of a key

// Returns the first error of a body that cannot be parsed beyond `position` bytes (counted from 1).
Error NoJson(std::string_view body, std::string_view subject, size_t position) {
  const size_t bad = FirstInvalidUtf8(body), nul = std::min(body.find('\0'), body.size());
  if (bad < std::min(position, nul)) {
    return {Code::kInvalidArgument, fmt::format("{} is not valid UTF-8 at byte {} (0x{:02x})",
                                                subject, bad + 1, static_cast<uint8_t>(body[bad]))};
  }
  if (nul < std::min(position, body.size())) {
    return {Code::kInvalidArgument,
            fmt::format("{} is not valid JSON: byte {} is NUL", subject, nul + 1)};
  }
  if (position > body.size()) {
    return {Code::kInvalidArgument,
            fmt::format("{} is not valid JSON: it ends too early, after byte {}", subject,
                        body.size())};
  }
  const std::string_view before = body.substr(0, std::max<size_t>(position, 1) - 1);
  const auto line = std::ranges::count(before, '\n') + 1;
  const size_t column = before.size() - (before.rfind('\n') + 1) + 1;
  return {
      Code::kInvalidArgument,
      fmt::format("{} is not valid JSON: syntax error at byte {} (line {}, byte {} of that line)",
                  subject, position, line, column)};
}

// Takes the parser's events: counts values, keeps lists of token ids packed, and passes the rest to
// the builder. For one parse.
class BodyReader : public JsonBuilder {
 public:
  BodyReader(std::string_view body, std::string_view subject, IdFields id_fields,
             size_t* values_left, JsonTree* tree)
      : JsonBuilder(tree),
        body_(body),
        subject_(subject),
        id_fields_(id_fields),
        values_left_(values_left) {}

  bool null() { return Other("null") && JsonBuilder::null(); }
  bool boolean(bool value) { return Other("a boolean") && JsonBuilder::boolean(value); }
  bool string(std::string& value) {
    if (packing_ && key_ == kMixedIds && !Unpack()) return false;
    return Other("a string") && JsonBuilder::string(value);
  }
  bool number_integer(int64_t value) {
    if (TakesNumber()) return AddId(value);
    return Count() && JsonBuilder::number_integer(value);
  }
  bool number_unsigned(uint64_t value) {
    if (TakesNumber()) {
      return AddId(static_cast<int64_t>(std::min(value, static_cast<uint64_t>(INT64_MAX))));
    }
    return Count() && JsonBuilder::number_unsigned(value);
  }
  bool number_float(long double value, const std::string& text) {
    if (!TakesNumber()) {
      if (!Count()) return false;
      return JsonBuilder::number_float(value, text) || FailOfSize();
    }
    // 16.0 is an id: some clients write ids so.
    if (std::abs(value) < 0x1p53L && value == std::floor(value)) {
      return AddId(static_cast<int64_t>(value));
    }
    return Fail(fmt::format("{} is not a token id", text.substr(0, kMaxNumberText)));
  }
  bool start_object(size_t size) {
    ++depth_;
    return Other("an object") && JsonBuilder::start_object(size);
  }
  bool key(std::string& name) {
    if (depth_ == 1) {
      const bool holds_ids = std::ranges::find(id_fields_, name) != id_fields_.end();
      key_ = holds_ids ? name : std::string();
    }
    return JsonBuilder::key(name);
  }
  bool end_object() {
    --depth_;
    return JsonBuilder::end_object();
  }
  bool start_array(size_t size) {
    ++depth_;
    if (!Other("an array")) return false;
    opened_ = !key_.empty();
    return opened_ || JsonBuilder::start_array(size);
  }
  bool end_array() {
    --depth_;
    if (!opened_ && !packing_) return JsonBuilder::end_array();
    opened_ = packing_ = false;
    const JsonValue packed = tree().Ids(ids_);
    ids_.clear();
    return Add(packed);
  }
  bool parse_error(size_t position, const std::string&, const nlohmann::json::exception& e) {
    constexpr int kNumberOverflow = 406;
    if (e.id == kNumberOverflow) return FailOfSize();
    if (std::string_view(e.what()).find("surrogate") != std::string_view::npos &&
        FirstInvalidUtf8(body_) >= std::min(position, body_.size())) {
      error_ = {
          Code::kInvalidArgument,
          fmt::format("{}'s JSON has half of a surrogate pair near byte {}: \\ud800 to \\udbff "
                      "is one character with the \\udc00 to \\udfff after it",
                      subject_, position)};
      return false;
    }
    error_ = NoJson(body_, subject_, position);
    return false;
  }

  const Error& error() const { return error_; }

 private:
  bool Count() {
    if (*values_left_ == 0) {
      error_ = {Code::kExhausted,
                fmt::format("its JSON has more than {} values (numbers, texts, lists and objects; "
                            "a list of token ids in a prompt counts as one)",
                            kMaxJsonValues),
                "body"};
      return false;
    }
    --*values_left_;
    return true;
  }

  bool FailOfSize() {
    error_ = {Code::kInvalidArgument,
              fmt::format("{}'s JSON has a number that is too large", subject_)};
    return false;
  }

  bool Fail(std::string_view what) {
    error_ = {Code::kInvalidArgument, std::string(what), key_};
    return false;
  }

  // Takes a value that is not a number; it cannot be in a list of ids.
  bool Other(std::string_view kind) {
    if (packing_) return Fail(fmt::format("has {}, not a token id", kind));
    if (std::exchange(opened_, false) && !JsonBuilder::start_array(0)) return false;
    return Count();
  }

  // Turns the list of ids into a list of any values.
  bool Unpack() {
    packing_ = false;
    if (!JsonBuilder::start_array(0)) return false;
    for (const TokenId id : ids_) {
      if (!Count() || !JsonBuilder::number_integer(id)) return false;
    }
    ids_.clear();
    return true;
  }

  bool TakesNumber() {
    packing_ |= std::exchange(opened_, false);
    return packing_;
  }

  bool AddId(int64_t id) {
    if (id < std::numeric_limits<TokenId>::min() || id > std::numeric_limits<TokenId>::max()) {
      return Fail(fmt::format("{} is not a token id", id));
    }
    ids_.push_back(static_cast<TokenId>(id));
    return true;
  }

  const std::string_view body_;

  const std::string_view subject_;  // of error texts: "the body"
  const IdFields id_fields_;
  size_t* values_left_;
  size_t depth_ = 0;
  std::string key_;           // the body's field if its value may hold ids; else empty
  bool opened_ = false;       // an array whose first element is not known yet
  bool packing_ = false;      // inside a list of ids
  std::vector<TokenId> ids_;  // of that list
  Error error_{};
};

}  // namespace

namespace {

Result<JsonValue> Read(std::string_view text, std::string_view subject, BodyReader& reader) {
  if (text.empty()) return Fail(Code::kInvalidArgument, "{} is empty; send a JSON object", subject);
  if (NestsDeeper(text, kMaxDepth)) {
    return Fail(Code::kInvalidArgument, "{}'s JSON nests deeper than {} levels", subject,
                kMaxDepth);
  }
  if (!JsonParser::sax_parse(text, &reader)) return tl::unexpected(reader.error());
  // The parser takes a NUL after a value as the end of the text.
  if (text.find('\0') != text.npos) return tl::unexpected(NoJson(text, subject, text.size()));
  if (!reader.root().is_object()) {
    return Fail(Code::kInvalidArgument, "{} is {}; send a JSON object", subject,
                KindOf(reader.root()));
  }
  return reader.root();
}

}  // namespace

Result<JsonValue> ParseObject(std::string_view text, IdFields id_fields, size_t* values_left,
                              JsonTree* tree) {
  BodyReader reader(text, kBody, id_fields, values_left, tree);
  return Read(text, kBody, reader);
}

Result<JsonBody> ParseBody(std::string_view body, IdFields id_fields, std::string_view subject) {
  JsonBody parsed;
  size_t values_left = kMaxJsonValues;
  BodyReader reader(body, subject, id_fields, &values_left, &parsed.tree);
  KV_ASSIGN(parsed.fields, Read(body, subject, reader));
  if (const auto key = reader.doubled_key()) {
    return Fail(Code::kInvalidArgument, "{} has an object with two \"{}\"; give each key once",
                subject, key->substr(0, kMaxKeyText));
  }
  return parsed;
}

std::string SseEvent(const nlohmann::json& object) { return "data: " + Dump(object) + "\n\n"; }

}  // namespace kvasir
