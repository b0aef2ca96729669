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

// The names of one block, and the block around it.
struct Scope {
  std::vector<std::pair<std::string, Value>> names;
  std::shared_ptr<Scope> parent;
  void Set(std::string_view name, Value value);
  static std::shared_ptr<Scope> Inside(std::shared_ptr<Scope> parent);
};

// The names that a template has at the start.
using Variables = std::map<std::string, Value, std::less<>>;

// The limits of a template. A step is one evaluated node, one item that is made or visited, or 16
// bytes of text that is read or built. It takes some tens of nanoseconds.
struct Limits {
  uint64_t steps = 5'000'000;
  // Nesting of expressions and bodies, including calls: each takes up to a kilobyte of stack.
  uint32_t depth = 600;

  // Returns a limit that is proportional to the variables: 64 passes over them, and 5 million
  // steps.
  static Limits For(const Variables& variables);
};

// One rendering. The first error is kept and everything after it is a quick no-op, so callees
// return plain values: a caller that loops checks failed(). Bytes that a loop over messages writes
// belong to the message of the iteration. One thread.
class Interpreter {
 public:
  Interpreter(std::string_view source, Limits limits, int64_t now_unix_s)
      : source_(source), limits_(limits), now_unix_s_(now_unix_s) {}
  ~Interpreter();

  Result<Text> Run(const std::vector<NodePtr>& body, Variables variables);
  uint64_t steps() const { return steps_; }  // taken so far

  // Fails for filters, tests, methods and functions.
  Value Fail(std::string_view what, Code code = Code::kInvalidArgument);
  Value Raise(std::string_view message);  // raise_exception: only the message
  bool failed() const { return failed_; }
  // Counts steps; false when the template has used up its limit.
  bool Charge(uint64_t units) {
    steps_ += std::min(units, limits_.steps + 1);
    return steps_ > limits_.steps ? FailOfSteps() : !failed_;
  }
  bool ChargeText(size_t bytes) { return Charge(1 + bytes / 16); }
  // Charges for writing a value as text, which copies its content once for each list around it.
  bool ChargeRepr(const Value& value) {
    return Charge(WeightOf(value) * std::max<uint64_t>(1, DepthOf(value)));
  }
  // Charges for a search: memmem takes up to 4 ns a byte where nearly everything matches.
  bool ChargeSearch(size_t text, size_t part) { return Charge(1 + text / 8 + part / 16); }
  Value Undefine(std::string why);
  // Fails for an undefined value, with its reason: it cannot be used further.
  Value FailUndefined(const Value& value);
  int64_t ReadClock() {
    has_read_clock_ = true;
    return now_unix_s_;
  }
  bool has_read_clock() const { return has_read_clock_; }
  // Tells whether the template has looked at this variable.
  bool has_read(std::string_view name) const;

  Value Attribute(const Value& object, std::string_view name);  // object.name
  // Returns object[name]: an entry of a dict comes before a method of that name.
  Value Item(const Value& object, std::string_view name);
  Value Subscript(const Value& object, const Value& index);               // object[index]
  Value Binary(std::string_view op, const Value& a, const Value& b);      // + - * / // % **
  bool CompareWith(std::string_view op, const Value& a, const Value& b);  // == < in "not in" ...
  bool Contains(const Value& container, const Value& item);
  // Returns the items that a for loop would see; walks a generator to its end.
  std::vector<Value> Iterate(const Value& value);
  Value Call(const Value& callee, const Arguments& arguments);
  Value NewNamespace(std::vector<std::pair<std::string, Value>> items);

 private:
  bool FailOfSteps();                                  // false
  Error ErrorHere(Code code, std::string what) const;  // names the message of the iteration
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
  // Runs a body in a new scope and returns what it writes.
  Text Capture(const std::vector<NodePtr>& body);
  Flow InScope(const std::vector<NodePtr>& body);
  Value MacroValue(const Node& node);
  Value CallMacro(const Callable& macro, const Arguments& arguments);
  void BindParameters(const Callable& macro, const Arguments& arguments);

  Value Evaluate(const Node& node);
  Value EvaluateKind(const Node& node);
  Value BinaryNode(const Node& node);
  const Value* FindName(std::string_view name);  // null: not a variable
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
  bool has_read_clock_ = false;
  Variables variables_;
  std::vector<const Value*> read_;  // of the variables
  std::shared_ptr<Scope> scope_;
  Text* out_ = nullptr;
  const Node* at_ = nullptr;
  std::optional<uint32_t> message_;  // the message of the current iteration
  int loops_ = 0;
  uint64_t steps_ = 0;
  uint32_t depth_ = 0;
  bool failed_ = false;
  Error error_;
  // Namespaces and scopes of macros can form cycles, so they are emptied at the end.
  std::vector<std::shared_ptr<Namespace>> namespaces_;
  std::vector<std::shared_ptr<Scope>> captured_;
};

}  // namespace kvasir::jinja
