// Expressions of a template: the part of the grammar below statements.
#pragma once

#include <string>

#include "jinja/token_reader.h"

namespace kvasir::jinja {

// Each call returns a node even after a failure (its children may then be null).
class ExpressionParser {
 public:
  explicit ExpressionParser(TokenReader& reader) : in_(reader) {}
  NodePtr Expression();             // with "a if b else c"
  NodePtr ExpressionNoCondition();  // the iterable of a for
  // Parses "a", or "a, b" as a tuple: the grammar of {{ }}, set and for.
  NodePtr Tuple(bool with_condition = true);
  NodePtr Primary();
  NodePtr Postfix(NodePtr node);
  // Parses filter(args)|filter...; `node` is null inside a filter block.
  NodePtr Filters(NodePtr node);
  ArgumentNodes Arguments(Node& owner);

 private:
  NodePtr Or();
  NodePtr And();
  NodePtr Not();
  NodePtr CompareChain();
  NodePtr Sum();
  NodePtr Concat();
  NodePtr Product();
  NodePtr Power();
  NodePtr Unary(bool with_filter);
  NodePtr FilterExpression(NodePtr node);
  NodePtr Test(NodePtr node);
  NodePtr Subscript(NodePtr node);
  NodePtr SubscriptIndex();
  NodePtr Parenthesis();
  NodePtr ListLiteral();
  NodePtr DictLiteral();
  NodePtr Number();
  NodePtr Binary(NodePtr left, std::string op, size_t offset, NodePtr right);

  TokenReader& in_;
  uint32_t nesting_ = 0;
};

}  // namespace kvasir::jinja
