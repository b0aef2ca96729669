// Interpreter: expressions.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "jinja/builtins.h"
#include "jinja/interpreter.h"

namespace kvasir::jinja {

using Kind = Node::Kind;

Value Interpreter::Evaluate(const Node& node) {
  if (failed_) return Value();
  at_ = &node;
  if (!Charge(1)) return Value();
  if (depth_ >= limits_.depth) return Fail("calls nested too deeply");
  ++depth_;
  Value value = EvaluateKind(node);
  --depth_;
  constexpr uint32_t kMaxValueDepth = 200;
  if (DepthOf(value) > kMaxValueDepth) return Fail("a value is nested too deeply");
  if (WeightOf(value) > limits_.steps) return Fail("a value is too large");
  return failed_ ? Value() : value;
}

Value Interpreter::EvaluateKind(const Node& node) {
  switch (node.kind) {
    case Kind::kConstant:
      return node.value;
    case Kind::kName:
      return Name(node.name);
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kDict:
      return Collection(node);
    case Kind::kAttribute:
      return Attribute(Evaluate(*node.children[0]), node.name);
    case Kind::kSubscript: {
      const Value object = Evaluate(*node.children[0]);
      if (node.children[1]->kind == Kind::kSlice) return Slice(object, *node.children[1]);
      return Subscript(object, Evaluate(*node.children[1]));
    }
    case Kind::kCall:
      return CallNode(node);
    case Kind::kFilter:
      return FilterNode(node, nullptr);
    case Kind::kTest: {
      const Value input = Evaluate(*node.children[0]);
      const Arguments arguments = EvaluateArguments(node.arguments);
      return Value(!failed_ && ApplyTest(*this, node.name, input, arguments));
    }
    case Kind::kUnary:
      return Unary(node);
    case Kind::kAnd:
    case Kind::kOr: {
      Value left = Evaluate(*node.children[0]);
      return Truthy(left) == (node.kind == Kind::kAnd) ? Evaluate(*node.children[1]) : left;
    }
    case Kind::kBinary: {
      const Value left = Evaluate(*node.children[0]);
      return Binary(node.name, left, Evaluate(*node.children[1]));
    }
    case Kind::kConcat:
      return Concat(node);
    case Kind::kCompare:
      return CompareChain(node);
    case Kind::kConditional:
      if (Truthy(Evaluate(*node.children[1]))) return Evaluate(*node.children[0]);
      if (node.children[2]) return Evaluate(*node.children[2]);
      return Undefine("the inline if-expression evaluated to false and has no else");
    default:
      return Fail("a slice is outside of a subscript");
  }
}

Value Interpreter::Name(std::string_view name) {
  for (const Scope* scope = scope_.get(); scope; scope = scope->parent.get()) {
    if (!Charge(scope->names.size() / 8)) return Value();
    for (const auto& [key, value] : scope->names) {
      if (key == name) return value;
    }
  }
  if (const auto found = variables_.find(name); found != variables_.end()) return found->second;
  if (!IsFunction(name)) return Undefine(fmt::format("'{}' is undefined", name));
  auto function = std::make_shared<Callable>();
  function->kind = Callable::Kind::kFunction;
  function->name = name;
  return Value(std::shared_ptr<const Callable>(std::move(function)));
}

Value Interpreter::Collection(const Node& node) {
  if (node.kind != Kind::kDict) {
    std::vector<Value> items;
    for (const NodePtr& child : node.children) items.push_back(Evaluate(*child));
    return FromItems(std::move(items),
                     node.kind == Kind::kList ? List::Kind::kList : List::Kind::kTuple);
  }
  Dict dict;
  for (size_t i = 0; i + 1 < node.children.size(); i += 2) {
    Value key = Evaluate(*node.children[i]);
    if (const std::string why = WhyUnhashable(key); !why.empty()) return Fail(why);
    dict.Set(std::move(key), Evaluate(*node.children[i + 1]));
  }
  return FromDict(std::move(dict));
}

Arguments Interpreter::EvaluateArguments(const ArgumentNodes& nodes) {
  Arguments out;
  for (const NodePtr& node : nodes.positional) out.positional.push_back(Evaluate(*node));
  if (nodes.rest) {
    for (Value& value : Iterate(Evaluate(*nodes.rest))) out.positional.push_back(std::move(value));
  }
  for (const auto& [name, node] : nodes.named) out.named.emplace_back(name, Evaluate(*node));
  if (nodes.rest_named) {
    const Value rest = Evaluate(*nodes.rest_named);
    if (!rest.dict()) {
      Fail("argument after ** must be a dict");
      return out;
    }
    if (!Charge(4 * rest.dict()->items.size())) return out;
    for (const auto& [key, value] : rest.dict()->items) {
      out.named.emplace_back(ToText(key).bytes(), value);
    }
  }
  return out;
}

Value Interpreter::CallNode(const Node& node) {
  const Value callee = Evaluate(*node.children[0]);
  const Arguments arguments = EvaluateArguments(node.arguments);
  at_ = &node;
  return Call(callee, arguments);
}

Value Interpreter::FilterNode(const Node& node, const Value* input) {
  // In a chain without an input (a filter block) the innermost filter takes `input`.
  const Value value = node.children[0] ? (input ? FilterNode(*node.children[0], input)
                                                : Evaluate(*node.children[0]))
                                       : *input;
  const Arguments arguments = EvaluateArguments(node.arguments);
  at_ = &node;
  if (failed_) return Value();
  return ApplyFilter(*this, node.name, value, arguments);
}

Value Interpreter::Unary(const Node& node) {
  const Value value = Evaluate(*node.children[0]);
  if (failed_) return Value();
  if (node.name == "not") return Value(!Truthy(value));
  if (value.is_undefined()) return FailUndefined(value);
  if (!value.is_number()) {
    return Fail(fmt::format("bad operand type for unary {}: '{}'", node.name, TypeName(value)));
  }
  const bool minus = node.name == "-";
  if (value.is_float()) return Value(minus ? -value.number() : value.number(), value.origin);
  int64_t number = value.integer();
  if (minus && __builtin_sub_overflow(int64_t{0}, number, &number)) return Fail("integer overflow");
  return FromInt(number, value.origin);
}

Value Interpreter::Concat(const Node& node) {
  Text out;
  for (const NodePtr& child : node.children) {
    const Value value = Evaluate(*child);
    if (failed_ || !ChargeRepr(value)) return Value();
    out.Append(ToText(value));
  }
  return FromText(std::move(out));
}

Value Interpreter::CompareChain(const Node& node) {
  Value left = Evaluate(*node.children[0]);
  for (size_t i = 0; i < node.names.size(); ++i) {
    Value right = Evaluate(*node.children[i + 1]);
    if (failed_ || !CompareWith(node.names[i], left, right)) return Value(false);
    left = std::move(right);
  }
  return Value(true);
}

bool Interpreter::CompareWith(std::string_view op, const Value& a, const Value& b) {
  if (op == "in") return Contains(b, a);
  if (op == "not in") return !Contains(b, a);
  Charge(std::min(WeightOf(a), WeightOf(b)));
  if (op == "==") return Equal(a, b);
  if (op == "!=") return !Equal(a, b);
  if (a.is_undefined() || b.is_undefined()) {
    FailUndefined(a.is_undefined() ? a : b);
    return false;
  }
  const std::partial_ordering order = Compare(a, b);
  if (order == std::partial_ordering::unordered && !(a.is_number() && b.is_number())) {
    Fail(fmt::format("'{}' not supported between instances of '{}' and '{}'", op, TypeName(a),
                     TypeName(b)));
    return false;
  }
  if (op == "<") return order < 0;
  if (op == "<=") return order <= 0;
  return op == ">" ? order > 0 : order >= 0;
}

bool Interpreter::Contains(const Value& container, const Value& item) {
  if (container.is_string()) {
    if (!item.is_string()) {
      Fail(fmt::format("'in <string>' requires string as left operand, not {}", TypeName(item)));
      return false;
    }
    const Text &text = container.text(), &part = item.text();
    if (!ChargeSearch(text.size(), part.size())) return false;
    return part.empty() || FindText(text.view(), part.view()) != std::string_view::npos;
  }
  if (const Dict* dict = container.dict()) return Charge(1) && dict->Find(item) != nullptr;
  if (const List* list = container.list(); list && list->kind != List::Kind::kGenerator) {
    return AnyEqual(list->items, item);
  }
  return AnyEqual(Iterate(container), item);
}

bool Interpreter::AnyEqual(const std::vector<Value>& items, const Value& item) {
  for (const Value& one : items) {
    if (!Charge(std::min(WeightOf(one), WeightOf(item)))) return false;
    if (Equal(one, item)) return true;
  }
  return false;
}

std::vector<Value> Interpreter::Iterate(const Value& value) {
  std::vector<Value> out;
  if (failed_ || value.is_undefined()) return out;
  if (const List* list = value.list()) {
    out.assign(list->items.begin() + list->taken, list->items.end());
    if (list->kind == List::Kind::kGenerator) list->taken = list->items.size();
  } else if (const Dict* dict = value.dict()) {
    for (const auto& item : dict->items) out.push_back(item.first);
  } else if (value.is_string()) {
    const Text& text = value.text();
    if (!Charge(text.size())) return out;
    out.reserve(text.size());
    for (size_t i = 0, n = 0; i < text.size(); i += n) {
      n = CharSize(text.view(), i);
      out.push_back(FromText(text.Slice(i, i + n)));
    }
  } else {
    Fail(fmt::format("'{}' object is not iterable", TypeName(value)));
  }
  Charge(out.size());
  return out;
}

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
  }
  if (found) return *found;
  // The message is made for each attribute that is missing, also where nobody reads it.
  constexpr size_t kMaxShown = 100;
  const char* more = name.size() > kMaxShown ? "..." : "";
  return Undefine(fmt::format("'{} object' has no attribute '{}{}'", TypeName(object),
                              name.substr(0, kMaxShown), more));
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

// Characters begin, begin + stride ... up to `end`, in one pass over the text.
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
