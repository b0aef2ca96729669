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
  const bool is_small = value.is_undefined() || value.is_none() || value.is_number();
  if (!is_small) {
    if (!value.is_string() && DepthOf(value) > kMaxValueDepth) {
      return Fail("a value is nested too deeply");
    }
    if (WeightOf(value) > limits_.steps) return Fail("a value is too large");
  }
  if (failed_) return Value();
  return value;
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
      if (const Node& object = *node.children[0]; object.kind == Kind::kName) {
        at_ = &object;
        if (!Charge(1)) return Value();
        if (const Value* found = FindName(object.name)) return Attribute(*found, node.name);
      }
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
    case Kind::kBinary:
      return BinaryNode(node);
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

// "a + b + c" of texts is how templates write a message: a text that only `left` holds grows.
Value Interpreter::BinaryNode(const Node& node) {
  Value left = Evaluate(*node.children[0]);
  const Value right = Evaluate(*node.children[1]);
  auto* text = std::get_if<std::shared_ptr<const Text>>(&left.data);
  if (failed_ || node.name != "+" || !text || text->use_count() > 1 || !right.is_string() ||
      left.is_markup != right.is_markup) {
    return Binary(node.name, left, right);
  }
  if (!Charge(WeightOf(left) + WeightOf(right))) return Value();
  const_cast<Text&>(**text).Append(right.text());
  left.origin = (*text)->Summary();
  return left;
}

const Value* Interpreter::FindName(std::string_view name) {
  for (const Scope* scope = scope_.get(); scope; scope = scope->parent.get()) {
    if (!Charge(scope->names.size() / 8)) return nullptr;
    for (const auto& [key, value] : scope->names) {
      if (key == name) return &value;
    }
  }
  const auto found = variables_.find(name);
  if (found == variables_.end()) return nullptr;
  const Value* const value = &found->second;
  if (std::ranges::find(read_, value) == read_.end()) read_.push_back(value);
  return value;
}

bool Interpreter::has_read(std::string_view name) const {
  const auto found = variables_.find(name);
  return found != variables_.end() && std::ranges::find(read_, &found->second) != read_.end();
}

Value Interpreter::Name(std::string_view name) {
  if (const Value* found = FindName(name)) return *found;
  if (failed_) return Value();
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

}  // namespace kvasir::jinja
