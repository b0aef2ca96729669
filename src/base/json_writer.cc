#include "base/json_writer.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/utf8.h"

namespace kvasir {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

// Appends the escape of a byte that a JSON string may not have as it is, as nlohmann-json does.
void AppendEscape(char byte, std::string* out) {
  constexpr std::string_view kBytes = "\"\\\b\f\n\r\t", kLetters = "\"\\bfnrt";
  constexpr std::string_view kHex = "0123456789abcdef";
  *out += '\\';
  if (const size_t at = kBytes.find(byte); at != kBytes.npos) {
    *out += kLetters[at];
    return;
  }
  *out += "u00";
  *out += kHex[byte >> 4];
  *out += kHex[byte & 15];
}

// Appends well-formed UTF-8, escaped for a JSON string.
void AppendWellFormed(std::string_view text, std::string* out) {
  size_t begin = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<uint8_t>(text[i]);
    if (byte >= 0x20 && byte != '"' && byte != '\\') continue;
    out->append(text, begin, i - begin);
    AppendEscape(text[i], out);
    begin = i + 1;
  }
  out->append(text, begin);
}

// What stands between items, and between a key and its value.
struct Separators {
  std::string_view comma, colon;
};

void AppendText(const JsonValue& value, Separators between, std::string* out) {
  switch (value.kind()) {
    case JsonValue::Kind::kNull:
      *out += "null";
      return;
    case JsonValue::Kind::kBool:
      *out += value.boolean() ? "true" : "false";
      return;
    case JsonValue::Kind::kInteger:
    case JsonValue::Kind::kUnsigned:
    case JsonValue::Kind::kDigits:
      *out += value.integer_text();
      return;
    case JsonValue::Kind::kFloat:
      *out += Dump(json(value.number()));
      return;
    case JsonValue::Kind::kString:
      return AppendQuoted(value.text(), out);
    case JsonValue::Kind::kIds:
      *out += ListParts(value.ids()).Rest();
      return;
    case JsonValue::Kind::kArray:
      *out += '[';
      for (const JsonValue& item : value.items()) {
        if (&item != value.items().data()) *out += between.comma;
        AppendText(item, between, out);
      }
      *out += ']';
      return;
    case JsonValue::Kind::kObject:
      *out += '{';
      for (const JsonValue::Member& member : value.members()) {
        if (&member != value.members().data()) *out += between.comma;
        AppendQuoted(member.key, out);
        *out += between.colon;
        AppendText(member.value, between, out);
      }
      *out += '}';
      return;
  }
}

}  // namespace

std::string Dump(const json& value) {
  return value.dump(-1, ' ', false, json::error_handler_t::replace);
}

std::string DumpOrdered(const ordered_json& value) {
  return value.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

std::string TextOf(const JsonValue& value) {
  std::string text;
  AppendText(value, {",", ":"}, &text);
  return text;
}

std::string SpacedTextOf(const JsonValue& value) {
  std::string text;
  AppendText(value, {", ", ": "}, &text);
  return text;
}

std::string BeginObject(std::string object) {
  object.back() = ',';
  return object;
}

std::string EndObject(const json& object) {
  std::string text = Dump(object);
  text.front() = ',';
  return text;
}

std::string Quoted(std::string_view text) {
  std::string quoted;
  AppendQuoted(text, &quoted);
  return quoted;
}

void AppendQuoted(std::string_view text, std::string* out) {
  *out += '"';
  while (!text.empty()) AppendEscaped(&text, out);
  *out += '"';
}

void AppendEscaped(std::string_view* rest, std::string* out) {
  constexpr size_t kSliceBytes = 2 << 10;
  size_t end = std::min(kSliceBytes, rest->size());
  while (end < rest->size() && ContinuesChar((*rest)[end])) ++end;
  const std::string_view slice = rest->substr(0, end);
  if (FirstInvalidUtf8(slice) == slice.size()) {
    AppendWellFormed(slice, out);
  } else {
    const std::string quoted = Dump(json(slice));
    out->append(quoted, 1, quoted.size() - 2);
  }
  rest->remove_prefix(end);
}

Parts EscapedParts(std::string_view text) {
  while (!text.empty()) {
    std::string escaped;
    AppendEscaped(&text, &escaped);
    co_yield escaped;
  }
}

Parts QuotedParts(std::string_view text) {
  co_yield "\"";
  co_yield EscapedParts(text);
  co_yield "\"";
}

Parts QuotedParts(Parts text) {
  co_yield "\"";
  for (std::string piece = text.Next(); !piece.empty(); piece = text.Next()) {
    co_yield EscapedParts(piece);
  }
  co_yield "\"";
}

}  // namespace kvasir
