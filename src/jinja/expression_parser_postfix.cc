// What follows an operand: subscripts, calls and their arguments, filters, tests.
#include <fmt/format.h>

#include <algorithm>

#include "jinja/builtins.h"
#include "jinja/expression_parser.h"

namespace kvasir::jinja {

using Kind = Node::Kind;
using TokenKind = Token::Kind;

NodePtr ExpressionParser::Postfix(NodePtr node) {
  while (!in_.failed()) {
    if (in_.AtOperator(".") || in_.AtOperator("[")) {
      node = Subscript(std::move(node));
    } else if (in_.AtOperator("(")) {
      NodePtr call = in_.Make(Kind::kCall, in_.Peek().offset);
      in_.Adopt(*call, std::move(node));
      call->arguments = Arguments(*call);
      node = std::move(call);
    } else {
      break;
    }
  }
  return node;
}

NodePtr ExpressionParser::Subscript(NodePtr node) {
  const Token open = in_.Take();
  if (open.text == ".") {
    if (in_.At(TokenKind::kInteger)) {
      NodePtr item = in_.Make(Kind::kSubscript, open.offset);
      in_.Adopt(*item, std::move(node));
      in_.Adopt(*item, Number());
      return item;
    }
    NodePtr attribute = in_.Make(Kind::kAttribute, open.offset, in_.ExpectName("a name"));
    in_.Adopt(*attribute, std::move(node));
    return attribute;
  }
  NodePtr item = in_.Make(Kind::kSubscript, open.offset);
  in_.Adopt(*item, std::move(node));
  NodePtr index = SubscriptIndex();
  if (in_.AtOperator(",")) {
    NodePtr tuple = in_.Make(Kind::kTuple, open.offset);
    in_.Adopt(*tuple, std::move(index));
    while (in_.SkipComma()) in_.Adopt(*tuple, SubscriptIndex());
    index = std::move(tuple);
  }
  in_.Expect("]");
  in_.Adopt(*item, std::move(index));
  return item;
}

NodePtr ExpressionParser::SubscriptIndex() {
  const size_t offset = in_.Peek().offset;
  NodePtr begin = in_.AtOperator(":") ? nullptr : Expression();
  if (!in_.AtOperator(":")) return begin;
  NodePtr slice = in_.Make(Kind::kSlice, offset);
  in_.Adopt(*slice, std::move(begin));
  for (int part = 0; part < 2; ++part) {
    const bool written = in_.SkipOperator(":") && !in_.AtOperator(":") && !in_.AtOperator("]") &&
                         !in_.AtOperator(",");
    in_.Adopt(*slice, written ? Expression() : nullptr);
  }
  return slice;
}

ArgumentNodes ExpressionParser::Arguments(Node& owner) {
  ArgumentNodes out;
  in_.Expect("(");
  const auto nested = [&] { return in_.Nest(owner, Expression()); };
  while (!in_.AtOperator(")") && !in_.failed()) {
    const bool named = in_.At(TokenKind::kName) && in_.Peek(1).kind == TokenKind::kOperator &&
                       in_.Peek(1).text == "=";
    if (in_.SkipOperator("*")) {
      out.rest = nested();
    } else if (in_.SkipOperator("**")) {
      out.rest_named = nested();
    } else if (named) {
      std::string name = in_.Take().text;
      in_.Take();
      out.named.emplace_back(std::move(name), nested());
    } else {
      if (!out.named.empty() || out.rest || out.rest_named) {
        in_.Fail(in_.Peek().offset, "positional argument after a named one");
      }
      out.positional.push_back(nested());
    }
    if (!in_.SkipComma()) break;
  }
  in_.Expect(")");
  return out;
}

NodePtr ExpressionParser::FilterExpression(NodePtr node) {
  while (!in_.failed()) {
    if (in_.AtOperator("|")) {
      in_.Take();
      node = Filters(std::move(node));
    } else if (in_.AtWord("is")) {
      node = Test(std::move(node));
    } else if (in_.AtOperator("(")) {
      node = Postfix(std::move(node));
    } else {
      break;
    }
  }
  return node;
}

NodePtr ExpressionParser::Filters(NodePtr node) {
  do {
    const size_t offset = in_.Peek().offset;
    std::string name = in_.ExpectName("the name of a filter");
    while (in_.SkipOperator(".")) name += "." + in_.ExpectName("the name of a filter");
    if (!in_.failed() && !IsFilter(name)) {
      in_.Fail(offset, fmt::format("unknown filter '{}'", name), Code::kUnsupported);
    }
    NodePtr filter = in_.Make(Kind::kFilter, offset, std::move(name));
    in_.Adopt(*filter, std::move(node));
    if (in_.AtOperator("(")) filter->arguments = Arguments(*filter);
    node = std::move(filter);
  } while (in_.SkipOperator("|"));
  return node;
}

NodePtr ExpressionParser::Test(NodePtr node) {
  in_.Take();
  const bool negated = in_.SkipWord("not");
  const size_t offset = in_.Peek().offset;
  std::string name = in_.ExpectName("the name of a test");
  while (in_.SkipOperator(".")) name += "." + in_.ExpectName("the name of a test");
  if (!in_.failed() && !IsTest(name)) {
    in_.Fail(offset, fmt::format("unknown test '{}'", name), Code::kUnsupported);
  }
  NodePtr test = in_.Make(Kind::kTest, offset, std::move(name));
  in_.Adopt(*test, std::move(node));
  const Token& next = in_.Peek();
  const bool starts_argument = next.kind == TokenKind::kName || next.kind == TokenKind::kString ||
                               next.kind == TokenKind::kInteger || next.kind == TokenKind::kFloat ||
                               in_.AtOperator("[") || in_.AtOperator("{");
  if (in_.AtOperator("(")) {
    test->arguments = Arguments(*test);
  } else if (starts_argument && !in_.AtAnyWord({"else", "or", "and", "is", "if", "in", "not"})) {
    test->arguments.positional.push_back(in_.Nest(*test, Postfix(Primary())));
  }
  if (!negated) return test;
  NodePtr out = in_.Make(Kind::kUnary, offset, "not");
  in_.Adopt(*out, std::move(test));
  return out;
}

}  // namespace kvasir::jinja
