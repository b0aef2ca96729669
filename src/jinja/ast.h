// The syntax tree of a template.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "jinja/value.h"

namespace kvasir::jinja {

struct Node;
using NodePtr = std::unique_ptr<Node>;

// Arguments as written: a, name=b, *rest, **named.
struct ArgumentNodes {
  std::vector<NodePtr> positional;
  std::vector<std::pair<std::string, NodePtr>> named;
  NodePtr rest, rest_named;
};

// One node of any kind; the comment of each kind says what its fields mean. Immutable once parsed.
struct Node {
  enum class Kind {
    // Expressions.
    kConstant,   // value
    kName,       // name
    kList,       // children
    kTuple,      // children
    kDict,       // children: key, value, key, value ...
    kAttribute,  // children[0] . name
    kSubscript,  // children[0] [ children[1] ]
    kSlice,      // children: begin, end, step; null where not written
    kCall,       // children[0] ( arguments )
    kFilter,     // children[0] | name ( arguments ); no child inside a filter block
    kTest,       // children[0] is name ( arguments )
    kUnary,      // name: not, -, +; children[0]
    kAnd,        // children[0], children[1]
    kOr,
    kBinary,       // name: + - * / // % **; children[0], children[1]
    kConcat,       // children
    kCompare,      // children[0] names[0] children[1] names[1] children[2] ...
    kConditional,  // children: value, test, value if not (or null)
    // Statements.
    kData,         // value
    kOutput,       // children[0]
    kIf,           // children: tests; bodies: one for each, and one more for else
    kFor,          // children: target, iterable, filter (or null); bodies: body, else; recursive
    kSet,          // children: target, value
    kSetBlock,     // children: target, filter (or null); bodies[0]
    kMacro,        // name, names (parameters), children (defaults of the last ones), bodies[0]
    kCallBlock,    // as kMacro, without name; call
    kFilterBlock,  // call: the filters; bodies[0]
    kWith,         // children: target, value, target, value ...; bodies[0]
    kScope,        // bodies[0]: a generation block
    kBreak,
    kContinue,
  };
  Kind kind;
  size_t offset = 0;   // into the source
  uint32_t depth = 1;  // nesting below, bounded by the parser
  std::string name;
  Value value;
  bool recursive = false;
  std::vector<std::string> names;
  std::vector<NodePtr> children;
  std::vector<std::vector<NodePtr>> bodies;
  ArgumentNodes arguments;
  NodePtr call;
};

}  // namespace kvasir::jinja
