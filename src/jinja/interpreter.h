// Runs a parsed template.
#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "jinja/ast.h"
#include "kvasir/status.h"

namespace kvasir::jinja {

// Names in one block, and the block around it.
struct Scope {
  std::vector<std::pair<std::string, Value>> names;
  std::shared_ptr<Scope> parent;
  void Set(std::string_view name, Value value);
};

// The names that a template sees from the start.
using Variables = std::map<std::string, Value, std::less<>>;

// What a template may use up. A step is a node evaluated, an item made or walked, or 16 bytes of
// text read or built, and takes some tens of nanoseconds.
struct Limits {
  uint64_t steps = 5'000'000;
  // Expressions and bodies inside each other, calls included: each takes up to a kilobyte of stack.
  uint32_t depth = 600;

  // In proportion to what is rendered: 64 passes over it, and 5 million steps.
  static Limits For(const Variables& variables);
};

// One rendering. The first error is kept and everything after it is a quick no-op, so callees
// return plain values: a caller that loops checks failed(). Bytes that a loop writes while it walks
// over messages belong to the message of the iteration. One thread.
class Interpreter {
 public:
  Interpreter(std::string_view source, Limits limits, int64_t now_unix_s)
      : source_(source), limits_(limits), now_unix_s_(now_unix_s) {}
  ~Interpreter();

  Result<Text> Run(const std::vector<NodePtr>& body, Variables variables);
  uint64_t steps() const { return steps_; }  // taken so far

  // For filters, tests, methods and functions.
  Value Fail(std::string_view what, Code code = Code::kInvalidArgument);
  Value Raise(std::string_view message);  // raise_exception: the message alone
  bool failed() const { return failed_; }
  // False when the template has used up what it may.
  bool Charge(uint64_t units);
  bool ChargeText(size_t bytes) { return Charge(1 + bytes / 16); }
  // Writing a value as text copies what is inside once for each list around it.
  bool ChargeRepr(const Value& value) {
    return Charge(WeightOf(value) * std::max<uint64_t>(1, DepthOf(value)));
  }
  // A search: memmem takes up to 4 ns a byte where nearly everything matches.
  bool ChargeSearch(size_t text, size_t part) { return Charge(1 + text / 8 + part / 16); }
  Value Undefine(std::string why);
  // An undefined value cannot be used further: fails with its reason.
  Value FailUndefined(const Value& value);
  int64_t now_unix_s() const { return now_unix_s_; }

  Value Attribute(const Value& object, std::string_view name);            // object.name
  Value Subscript(const Value& object, const Value& index);               // object[index]
  Value Binary(std::string_view op, const Value& a, const Value& b);      // + - * / // % **
  bool CompareWith(std::string_view op, const Value& a, const Value& b);  // == < in "not in" ...
  bool Contains(const Value& container, const Value& item);
  // The items that a for loop would see; walks a generator to its end.
  std::vector<Value> Iterate(const Value& value);
  Value Call(const Value& callee, const Arguments& arguments);
  Value NewNamespace(std::vector<std::pair<std::string, Value>> items);

 private:
  enum class Flow { kNormal, kBreak, kContinue };

  Flow Execute(const std::vector<NodePtr>& body);
  Flow ExecuteNode(const Node& node);
  Flow If(const Node& node);
  void For(const Node& node, const Value& iterable, size_t depth);
  bool Iteration(const Node& node, const std::shared_ptr<Loop>& loop);
  void Set(const Node& node);
  Flow With(const Node& node);
  void CallBlock(const Node& node);
  void Assign(const Node& target, const Value& value);
  void Emit(const Value& value);
  // Runs a body in a scope of its own and returns what it writes.
  Text Capture(const std::vector<NodePtr>& body);
  Flow InScope(const std::vector<NodePtr>& body);
  Value MacroValue(const Node& node);
  Value CallMacro(const Callable& macro, const Arguments& arguments);
  void BindParameters(const Callable& macro, const Arguments& arguments);

  Value Evaluate(const Node& node);
  Value EvaluateKind(const Node& node);
  Value Name(std::string_view name);
  Value Collection(const Node& node);
  Value Unary(const Node& node);
  Value Concat(const Node& node);
  Value CompareChain(const Node& node);
  Value CallNode(const Node& node);
  Value FilterNode(const Node& node, const Value* input);
  Value Slice(const Value& object, const Node& node);
  Value SliceText(const Text& text, int64_t begin, int64_t end, int64_t stride);
  bool AnyEqual(const std::vector<Value>& items, const Value& item);
  Value LoopAttribute(const Loop& loop, std::string_view name);
  Arguments EvaluateArguments(const ArgumentNodes& nodes);

  std::string_view source_;
  Limits limits_;
  int64_t now_unix_s_;
  Variables variables_;
  std::shared_ptr<Scope> scope_;
  Text* out_ = nullptr;
  const Node* at_ = nullptr;
  std::optional<uint32_t> message_;  // whose iteration is running
  int loops_ = 0;
  uint64_t steps_ = 0;
  uint32_t depth_ = 0;
  bool failed_ = false;
  Error error_;
  // Namespaces and scopes that macros hold can form cycles: they are emptied at the end.
  std::vector<std::shared_ptr<Namespace>> namespaces_;
  std::vector<std::shared_ptr<Scope>> captured_;
};

}  // namespace kvasir::jinja
