// json.dumps as transformers calls it for `tojson`, and json.loads.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/json_tree.h"
#include "jinja/builtins.h"
#include "jinja/input.h"

namespace kvasir::jinja {
namespace {

// Writes values; the origin of each container covers its brackets, commas and spaces.
class JsonWriter {
 public:
  JsonWriter(Interpreter& run, const JsonStyle& style) : run_(run), style_(style) {}

  Text Take() { return std::move(out_); }

  void Write(const Value& value) {
    if (run_.failed() || !run_.Charge(1)) return;
    const Origin origin = value.origin;
    if (value.is_string()) {
      WriteString(value.text(), origin);
    } else if (value.is_none()) {
      out_.Append("null", origin);
    } else if (value.is_bool()) {
      out_.Append(value.integer() ? "true" : "false", origin);
    } else if (value.is_number()) {
      out_.Append(Number(value), origin);
    } else if (const List* list = value.list(); list && IsArray(*list)) {
      WriteList(*list, origin);
    } else if (const Dict* dict = value.dict()) {
      WriteDict(*dict, origin);
    } else {
      run_.Fail(fmt::format("Object of type {} is not JSON serializable", TypeName(value)));
    }
  }

 private:
  static bool IsArray(const List& list) {
    return list.kind == List::Kind::kList || list.kind == List::Kind::kTuple;
  }

  static std::string Number(const Value& value) {
    if (value.is_integer()) return fmt::format("{}", value.integer());
    if (value.Is<BigInteger>()) return ToText(value).bytes();
    const double number = value.number();
    if (std::isnan(number)) return "NaN";
    if (std::isinf(number)) return number > 0 ? "Infinity" : "-Infinity";
    return FloatRepr(number);
  }

  void WriteChar(const Text& text, size_t offset, size_t size) {
    static constexpr std::string_view kFrom = "\"\\\n\r\t\f\b", kTo = "\"\\nrtfb";
    const Origin origin = text.OriginAt(offset);
    const char32_t code = CharAt(text.view(), offset);
    const size_t simple = code < 0x80 ? kFrom.find(static_cast<char>(code)) : std::string::npos;
    if (simple != std::string::npos) {
      out_.Append("\\", origin);
      out_.Append(kTo.substr(simple, 1), origin);
    } else if (code < 0x20 ||
               (code >= 0x7F && style_.ensure_ascii && code < 0x10000 && code != 0x7F)) {
      out_.Append(fmt::format("\\u{:04x}", uint32_t(code)), origin);
    } else if (code >= 0x10000 && style_.ensure_ascii) {
      const uint32_t rest = static_cast<uint32_t>(code) - 0x10000;
      out_.Append(fmt::format("\\u{:04x}\\u{:04x}", 0xD800 + (rest >> 10), 0xDC00 + (rest & 0x3FF)),
                  origin);
    } else {
      out_.Append(text, offset, offset + size);
    }
  }

  void WriteString(const Text& text, Origin edge) {
    if (!run_.Charge(text.size() / 16)) return;
    out_.Append("\"", edge);
    for (size_t i = 0, n = 0; i < text.size(); i += n) {
      n = CharSize(text.view(), i);
      WriteChar(text, i, n);
    }
    out_.Append("\"", edge);
  }

  void NewLine(Origin origin) {
    if (!style_.indent) return;
    out_.Append("\n", origin);
    for (size_t i = 0; i < level_; ++i) {
      if (!run_.Charge(1 + style_.indent->size() / 16)) return;
      out_.Append(*style_.indent, origin);
    }
  }

  void Separate(bool first, Origin origin) {
    if (!first && run_.ChargeText(style_.item_separator.size())) {
      out_.Append(style_.item_separator, origin);
    }
    NewLine(origin);
  }

  void WriteList(const List& list, Origin origin) {
    if (list.items.empty()) return out_.Append("[]", origin);
    out_.Append("[", origin);
    ++level_;
    for (size_t i = 0; i < list.items.size() && !run_.failed(); ++i) {
      Separate(i == 0, origin);
      Write(list.items[i]);
    }
    --level_;
    NewLine(origin);
    out_.Append("]", origin);
  }

  void WriteKey(const Value& key) {
    if (key.is_string()) return WriteString(key.text(), key.origin);
    if (!key.is_number() && !key.is_none()) {
      run_.Fail(fmt::format("keys must be str, int, float, bool or None, not {}", TypeName(key)));
    }
    out_.Append("\"", key.origin);
    Write(key);
    out_.Append("\"", key.origin);
  }

  void WriteDict(const Dict& dict, Origin origin) {
    if (dict.items.empty()) return out_.Append("{}", origin);
    std::vector<const std::pair<Value, Value>*> items;
    for (const auto& item : dict.items) items.push_back(&item);
    if (style_.sort_keys) {
      std::stable_sort(items.begin(), items.end(), [](const auto* a, const auto* b) {
        return Compare(a->first, b->first) < 0;
      });
    }
    out_.Append("{", origin);
    ++level_;
    for (size_t i = 0; i < items.size() && !run_.failed(); ++i) {
      Separate(i == 0, origin);
      WriteKey(items[i]->first);
      if (!run_.ChargeText(style_.key_separator.size())) return;
      out_.Append(style_.key_separator, origin);
      Write(items[i]->second);
    }
    --level_;
    NewLine(origin);
    out_.Append("}", origin);
  }

  Interpreter& run_;
  const JsonStyle& style_;
  Text out_;
  size_t level_ = 0;
};

}  // namespace

Value ToJson(Interpreter& run, const Value& value, const JsonStyle& style) {
  JsonWriter writer(run, style);
  writer.Write(value);
  return FromText(writer.Take());
}

Value FromJsonText(Interpreter& run, const Text& text) {
  // A value may take two bytes only.
  if (!run.Charge(1 + text.size() / 2)) return {};
  JsonTree tree;
  const std::optional<JsonValue> json = tree.Parse(text.view());
  if (!json) return run.Fail("from_json: the text is not JSON");
  Result<Value> value = FromJson(*json, text.Summary());
  return value ? std::move(*value) : run.Fail(value.error().message);
}

}  // namespace kvasir::jinja
