// Interpreter: attributes, subscripts and slices.
#include <fmt/format.h>

#include <algorithm>

#include "jinja/builtins.h"
#include "jinja/interpreter.h"

namespace kvasir::jinja {

Value Interpreter::LoopAttribute(const Loop& loop, std::string_view name) {
  const int64_t index = static_cast<int64_t>(loop.index);
  const int64_t length = static_cast<int64_t>(loop.items.size());
  if (name == "index") return FromInt(index + 1);
  if (name == "index0") return FromInt(index);
  if (name == "revindex") return FromInt(length - index);
  if (name == "revindex0") return FromInt(length - index - 1);
  if (name == "first") return Value(index == 0);
  if (name == "last") return Value(index + 1 == length);
  if (name == "length") return FromInt(length);
  if (name == "depth") return FromInt(static_cast<int64_t>(loop.depth) + 1);
  if (name == "depth0") return FromInt(static_cast<int64_t>(loop.depth));
  if (name == "previtem") {
    return index > 0 ? loop.items[index - 1] : Undefine("there is no previous item");
  }
  if (name == "nextitem") {
    return index + 1 < length ? loop.items[index + 1] : Undefine("there is no next item");
  }
  return Undefine(fmt::format("'loop' has no attribute '{}'", name));
}

Value Interpreter::Attribute(const Value& object, std::string_view name) {
  if (failed_ || !ChargeText(name.size())) return Value();
  if (object.is_undefined()) return FailUndefined(object);
  const MethodKind method = FindMethod(object, name);
  if (method == MethodKind::kMutating || name.starts_with("__")) {
    return Undefine(
        fmt::format("access to attribute '{}' of '{}' object is unsafe", name, TypeName(object)));
  }
  if (method == MethodKind::kSafe) {
    auto callable = std::make_shared<Callable>();
    callable->kind = Callable::Kind::kMethod;
    callable->name = name;
    callable->self = object;
    return Value(std::shared_ptr<const Callable>(std::move(callable)));
  }
  if (const Loop* loop = object.loop()) return LoopAttribute(*loop, name);
  const Value* found = nullptr;
  if (const Dict* dict = object.dict()) {
    found = dict->Find(name);
  } else if (const Namespace* ns = object.ns()) {
    if (!Charge(ns->items.size() / 8)) return Value();
    found = ns->Find(name);
  } else if (const Callable* joiner = object.callable(); joiner && joiner->self.ns()) {
    if (joiner->name == "join" && name != "join") found = joiner->self.ns()->Find(name);
  }
  if (found) return *found;
  // The message is made for each attribute that is missing, also where the template does not read
  // it.
  constexpr size_t kMaxShown = 100;
  const char* more = name.size() > kMaxShown ? "..." : "";
  std::string why("'");
  why.reserve(kMaxShown + 64);
  why.append(TypeName(object)).append(" object' has no attribute '");
  why.append(name.substr(0, kMaxShown)).append(more).append("'");
  return Undefine(std::move(why));
}

Value Interpreter::Item(const Value& object, std::string_view name) {
  if (failed_) return Value();
  if (object.is_undefined()) return FailUndefined(object);
  if (const Dict* dict = object.dict()) {
    if (const Value* found = dict->Find(name)) return *found;
  }
  return Attribute(object, name);
}

Value Interpreter::Subscript(const Value& object, const Value& index) {
  if (failed_) return Value();
  if (index.is_string()) return Item(object, index.text().view());
  if (object.is_undefined()) return FailUndefined(object);
  if (const Dict* dict = object.dict()) {
    if (const Value* found = dict->Find(index)) return *found;
  }
  const List* list = object.list();
  const bool sized =
      list && list->kind != List::Kind::kGenerator && list->kind != List::Kind::kView;
  if (index.is_integer() && (sized || object.is_string())) {
    if (!list && !ChargeText(object.text().size())) return Value();
    const int64_t size =
        static_cast<int64_t>(list ? list->items.size() : CharCount(object.text().view()));
    const int64_t at = index.integer() < 0 ? index.integer() + size : index.integer();
    if (at >= 0 && at < size && list) {
      const Value& item = list->items[at];
      // A loop over indexes: its iteration belongs to the first message that it looks up.
      if (loops_ > 0 && !message_ && item.dict()) message_ = item.origin.message;
      return item;
    }
    if (at >= 0 && at < size) {
      const size_t begin = CharOffset(object.text().view(), at);
      return FromText(object.text().Slice(begin, begin + CharSize(object.text().view(), begin)));
    }
  }
  // A container is named by its type: its text could be as long as all messages.
  const bool plain = index.is_number() || index.is_none() || index.is_bool();
  return Undefine(fmt::format("'{} object' has no element {}", TypeName(object),
                              plain ? Repr(index).bytes() : TypeName(index)));
}

Value Interpreter::Slice(const Value& object, const Node& node) {
  if (object.is_undefined()) return FailUndefined(object);
  std::optional<int64_t> parts[3];
  for (int i = 0; i < 3; ++i) {
    if (!node.children[i]) continue;
    const Value part = Evaluate(*node.children[i]);
    if (failed_) return Value();
    if (part.is_integer()) {
      parts[i] = part.integer();
    } else if (!part.is_none()) {
      return Fail("slice indices must be integers or none");
    }
  }
  const List* list = object.list();
  const bool sized =
      list && list->kind != List::Kind::kGenerator && list->kind != List::Kind::kView;
  const int64_t step = parts[2].value_or(1);
  if (step == 0) return Fail("slice step cannot be zero");
  if (!sized && !object.is_string()) {
    return Fail(fmt::format("'{}' object cannot be sliced", TypeName(object)));
  }
  if (object.is_string() && !ChargeText(object.text().size())) return Value();
  const int64_t size =
      static_cast<int64_t>(list ? list->items.size() : CharCount(object.text().view()));
  const int64_t low = step < 0 ? -1 : 0, high = step < 0 ? size - 1 : size;
  const auto clamp = [&](std::optional<int64_t> part, int64_t otherwise) {
    if (!part) return otherwise;
    return std::clamp(*part < 0 ? std::max(*part, -size - 1) + size : *part, low, high);
  };
  const int64_t begin = clamp(parts[0], step < 0 ? high : low);
  const int64_t end = clamp(parts[1], step < 0 ? low : high);
  const int64_t stride = std::clamp<int64_t>(step, -size - 1, size + 1);
  if (!list) return SliceText(object.text(), begin, end, stride);
  std::vector<Value> out;
  for (int64_t i = begin; step < 0 ? i > end : i < end; i += stride) {
    out.push_back(list->items[static_cast<size_t>(i)]);
  }
  if (!Charge(out.size())) return Value();
  return FromItems(std::move(out),
                   list->kind == List::Kind::kTuple ? list->kind : List::Kind::kList);
}

// Returns characters begin, begin + stride ... up to `end`, in one pass over the text.
Value Interpreter::SliceText(const Text& text, int64_t begin, int64_t end, int64_t stride) {
  if (stride > 0 ? begin >= end : begin <= end) return FromString("");
  const std::string_view view = text.view();
  if (stride == 1) {
    const size_t from = CharOffset(view, static_cast<size_t>(begin));
    return FromText(
        text.Slice(from, from + CharOffset(view.substr(from), static_cast<size_t>(end - begin))));
  }
  if (!Charge(view.size())) return Value();
  Text out;
  size_t at = CharOffset(view, static_cast<size_t>(begin));
  for (int64_t i = begin; stride < 0 ? i > end : i < end; i += stride) {
    out.Append(text, at, at + CharSize(view, at));
    for (int64_t moved = 0; moved < stride && at < view.size(); ++moved) at += CharSize(view, at);
    for (int64_t moved = 0; moved > stride && at > 0; --moved) at = PreviousChar(view, at);
  }
  return FromText(std::move(out));
}

}  // namespace kvasir::jinja
