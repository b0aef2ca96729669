#include "jinja/interpreter.h"

#include <fmt/format.h>

#include <algorithm>

#include "jinja/builtins.h"
#include "jinja/lexer.h"

namespace kvasir::jinja {

using Kind = Node::Kind;

void Scope::Set(std::string_view name, Value value) {
  for (auto& [key, old] : names) {
    if (key == name) {
      old = std::move(value);
      return;
    }
  }
  names.emplace_back(name, std::move(value));
}

std::shared_ptr<Scope> Scope::Inside(std::shared_ptr<Scope> parent) {
  constexpr size_t kUsual = 6;  // names of a loop over messages
  auto scope = std::make_shared<Scope>();
  scope->names.reserve(kUsual);
  scope->parent = std::move(parent);
  return scope;
}

Interpreter::~Interpreter() {
  for (auto& ns : namespaces_) ns->items.clear();
  for (auto& scope : captured_) scope->names.clear();
}

Limits Limits::For(const Variables& variables) {
  constexpr uint64_t kPasses = 64, kPlenty = uint64_t{1} << 40;
  Limits limits;
  for (const auto& [name, value] : variables) {
    limits.steps += kPasses * std::min(WeightOf(value), kPlenty);
  }
  return limits;
}

Result<Text> Interpreter::Run(const std::vector<NodePtr>& body, Variables variables) {
  Text out;
  out_ = &out;
  scope_ = std::make_shared<Scope>();
  variables_ = std::move(variables);
  Execute(body);
  if (failed_) return tl::unexpected(error_);
  return out;
}

Value Interpreter::Fail(std::string_view what, Code code) {
  if (!failed_) {
    const size_t line = at_ ? LineOf(source_, at_->offset) : 1;
    error_ = ErrorHere(code, fmt::format("chat template, line {}: {}", line, what));
  }
  failed_ = true;
  return Value();
}

Value Interpreter::Raise(std::string_view message) {
  if (!failed_) error_ = ErrorHere(Code::kInvalidArgument, std::string(message));
  failed_ = true;
  return Value();
}

Error Interpreter::ErrorHere(Code code, std::string what) const {
  Error error{code, std::move(what)};
  if (message_) {
    error.field = "messages";
    error.index = *message_;
  }
  return error;
}

bool Interpreter::FailOfSteps() {
  Fail("the template takes too many steps or builds too much text");
  return false;
}

Value Interpreter::Undefine(std::string why) {
  return Value(Undefined{std::make_shared<const std::string>(std::move(why))});
}

Value Interpreter::FailUndefined(const Value& value) {
  const auto* undefined = std::get_if<Undefined>(&value.data);
  return Fail(undefined && undefined->why ? *undefined->why : "a value is undefined");
}

Value Interpreter::NewNamespace(std::vector<std::pair<std::string, Value>> items) {
  auto ns = std::make_shared<Namespace>();
  ns->items = std::move(items);
  namespaces_.push_back(ns);
  return Value(std::move(ns));
}

Interpreter::Flow Interpreter::Execute(const std::vector<NodePtr>& body) {
  if (depth_ >= limits_.depth) {
    Fail("calls nested too deeply");
    return Flow::kBreak;
  }
  ++depth_;
  Flow flow = Flow::kNormal;
  for (size_t i = 0; i < body.size() && flow == Flow::kNormal; ++i) {
    flow = ExecuteNode(*body[i]);
    if (failed_) flow = Flow::kBreak;
  }
  --depth_;
  return flow;
}

Interpreter::Flow Interpreter::ExecuteNode(const Node& node) {
  at_ = &node;
  if (!Charge(1)) return Flow::kBreak;
  switch (node.kind) {
    case Kind::kData:
      Emit(node.value);
      break;
    case Kind::kOutput:
      Emit(Evaluate(*node.children[0]));
      break;
    case Kind::kIf:
      return If(node);
    case Kind::kFor:
      For(node, Evaluate(*node.children[1]), 0);
      break;
    case Kind::kSet:
    case Kind::kSetBlock:
      Set(node);
      break;
    case Kind::kMacro:
      scope_->Set(node.name, MacroValue(node));
      break;
    case Kind::kCallBlock:
      CallBlock(node);
      break;
    case Kind::kFilterBlock: {
      const Value text = FromText(Capture(node.bodies[0]));
      Emit(FilterNode(*node.call, &text));
      break;
    }
    case Kind::kWith:
      return With(node);
    case Kind::kScope:
      return InScope(node.bodies[0]);
    case Kind::kBreak:
      return Flow::kBreak;
    case Kind::kContinue:
      return Flow::kContinue;
    default:
      Emit(Evaluate(node));
  }
  return Flow::kNormal;
}

Interpreter::Flow Interpreter::If(const Node& node) {
  for (size_t i = 0; i < node.children.size(); ++i) {
    const bool taken = Truthy(Evaluate(*node.children[i]));
    if (failed_) return Flow::kBreak;
    if (taken) return Execute(node.bodies[i]);
  }
  const bool has_else = node.bodies.size() > node.children.size();
  return has_else ? Execute(node.bodies.back()) : Flow::kNormal;
}

void Interpreter::For(const Node& node, const Value& iterable, size_t depth) {
  std::vector<Value> items = Iterate(iterable);
  const std::shared_ptr<Scope> outer = scope_;
  if (node.children[2]) {
    const auto rejected = [&](const Value& item) {
      scope_ = Scope::Inside(outer);
      Assign(*node.children[0], item);
      return failed_ || !Truthy(Evaluate(*node.children[2]));
    };
    items.erase(std::remove_if(items.begin(), items.end(), rejected), items.end());
    scope_ = outer;
  }
  if (failed_) return;
  if (items.empty()) {
    if (node.bodies.size() > 1) InScope(node.bodies[1]);
    return;
  }
  auto loop = std::make_shared<Loop>();
  loop->items = std::move(items);
  for (const Value& item : loop->items) {
    loop->held_depth = std::max(loop->held_depth, DepthOf(item));
  }
  loop->depth = depth;
  loop->node = &node;
  if (node.recursive) loop->scope = outer;  // for loop(...)
  ++loops_;
  for (; loop->index < loop->items.size(); ++loop->index) {
    scope_ = Scope::Inside(outer);
    const bool goes_on = Iteration(node, loop);
    if (!goes_on || failed_) break;
  }
  --loops_;
  scope_ = outer;
  // The scope of a loop may refer to the loop.
  loop->scope.reset();
  loop->last_changed.clear();
}

bool Interpreter::Iteration(const Node& node, const std::shared_ptr<Loop>& loop) {
  const Value& item = loop->items[loop->index];
  const std::optional<uint32_t> saved = message_;
  if (item.dict() && item.origin.message) message_ = item.origin.message;
  scope_->Set("loop", Value(loop));
  Assign(*node.children[0], item);
  const Flow flow = Execute(node.bodies[0]);
  message_ = saved;
  return flow != Flow::kBreak;
}

void Interpreter::Set(const Node& node) {
  if (node.kind == Kind::kSet) return Assign(*node.children[0], Evaluate(*node.children[1]));
  Value value = FromText(Capture(node.bodies[0]));
  if (node.children[1]) value = FilterNode(*node.children[1], &value);
  Assign(*node.children[0], value);
}

void Interpreter::Assign(const Node& target, const Value& value) {
  if (failed_) return;
  if (target.kind == Kind::kName) {
    if (Charge(scope_->names.size() / 8)) scope_->Set(target.name, value);
    return;
  }
  if (target.kind == Kind::kAttribute) {
    const Value object = Name(target.children[0]->name);
    if (!object.ns()) {
      Fail("cannot assign attribute on non-namespace object");
    } else if (Charge(object.ns()->items.size() / 8)) {
      object.ns()->Set(target.name, value);
    }
    return;
  }
  const std::vector<Value> items = Iterate(value);
  if (failed_) return;
  if (items.size() != target.children.size()) {
    Fail(
        fmt::format("cannot unpack {} values into {} names", items.size(), target.children.size()));
    return;
  }
  for (size_t i = 0; i < items.size(); ++i) Assign(*target.children[i], items[i]);
}

Interpreter::Flow Interpreter::With(const Node& node) {
  // The values see the scope around the block, not each other.
  std::vector<Value> values;
  for (size_t i = 1; i < node.children.size(); i += 2)
    values.push_back(Evaluate(*node.children[i]));
  const std::shared_ptr<Scope> outer = scope_;
  scope_ = Scope::Inside(outer);
  for (size_t i = 0; i < values.size(); ++i) Assign(*node.children[2 * i], values[i]);
  const Flow flow = Execute(node.bodies[0]);
  scope_ = outer;
  return flow;
}

Interpreter::Flow Interpreter::InScope(const std::vector<NodePtr>& body) {
  const std::shared_ptr<Scope> outer = scope_;
  scope_ = Scope::Inside(outer);
  const Flow flow = Execute(body);
  scope_ = outer;
  return flow;
}

Text Interpreter::Capture(const std::vector<NodePtr>& body) {
  Text text;
  Text* const outer = std::exchange(out_, &text);
  InScope(body);
  out_ = outer;
  return text;
}

void Interpreter::Emit(const Value& value) {
  if (failed_ || !ChargeRepr(value)) return;
  if (value.is_string()) return out_->AppendFor(value.text(), message_);
  out_->AppendFor(ToText(value), message_);
}

Value Interpreter::MacroValue(const Node& node) {
  captured_.push_back(scope_);
  auto macro = std::make_shared<Callable>();
  macro->kind = Callable::Kind::kMacro;
  macro->name = node.name;
  macro->node = &node;
  macro->scope = scope_;
  return Value(std::shared_ptr<const Callable>(std::move(macro)));
}

void Interpreter::CallBlock(const Node& node) {
  const Value callee = Evaluate(*node.call->children[0]);
  Arguments arguments = EvaluateArguments(node.call->arguments);
  arguments.named.emplace_back("caller", MacroValue(node));
  if (!failed_) Emit(Call(callee, arguments));
}

void Interpreter::BindParameters(const Callable& macro, const Arguments& arguments) {
  const Node& node = *macro.node;
  const size_t first_default = node.names.size() - node.children.size();
  if (!Charge(node.names.size() * (8 + arguments.named.size()) / 8)) return;
  for (size_t i = 0; i < node.names.size(); ++i) {
    if (const Value* given = arguments.Find(i, node.names[i])) {
      scope_->Set(node.names[i], *given);
    } else if (i >= first_default) {
      scope_->Set(node.names[i], Evaluate(*node.children[i - first_default]));
    } else {
      scope_->Set(node.names[i],
                  Undefine(fmt::format("parameter '{}' was not provided", node.names[i])));
    }
  }
  std::vector<Value> rest;
  for (size_t i = node.names.size(); i < arguments.positional.size(); ++i) {
    rest.push_back(arguments.positional[i]);
  }
  Dict named;
  for (const auto& [name, value] : arguments.named) {
    const bool parameter =
        std::find(node.names.begin(), node.names.end(), name) != node.names.end();
    if (name == "caller" && !parameter) {
      scope_->Set(name, value);
    } else if (!parameter) {
      named.Set(FromString(name), value);
    }
  }
  scope_->Set("varargs", FromItems(std::move(rest), List::Kind::kTuple));
  scope_->Set("kwargs", FromDict(std::move(named)));
}

Value Interpreter::CallMacro(const Callable& macro, const Arguments& arguments) {
  const std::shared_ptr<Scope> outer = scope_;
  scope_ = Scope::Inside(macro.scope);
  BindParameters(macro, arguments);
  Text text;
  Text* const out = std::exchange(out_, &text);
  Execute(macro.node->bodies[0]);
  out_ = out;
  scope_ = outer;
  return FromText(std::move(text));
}

Value Interpreter::Call(const Value& callee, const Arguments& arguments) {
  if (failed_ || !Charge(1)) return Value();
  if (callee.is_undefined()) return FailUndefined(callee);
  if (const Loop* loop = callee.loop(); loop && loop->scope) {
    if (arguments.positional.size() != 1) return Fail("loop() takes one argument");
    const std::shared_ptr<Scope> outer = std::exchange(scope_, loop->scope);
    Text text;
    Text* const out = std::exchange(out_, &text);
    For(*loop->node, arguments.positional[0], loop->depth + 1);
    out_ = out;
    scope_ = outer;
    return FromText(std::move(text));
  }
  const Callable* callable = callee.callable();
  if (!callable) return Fail(fmt::format("'{}' object is not callable", TypeName(callee)));
  switch (callable->kind) {
    case Callable::Kind::kFunction:
      return CallFunction(*this, callable->name, arguments);
    case Callable::Kind::kMethod:
      return CallMethod(*this, callable->self, callable->name, arguments);
    case Callable::Kind::kMacro:
      return CallMacro(*callable, arguments);
  }
  return Value();
}

}  // namespace kvasir::jinja
