#include "jinja/expression_parser.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdlib>

namespace kvasir::jinja {

using Kind = Node::Kind;
using TokenKind = Token::Kind;

void TokenReader::Fail(size_t offset, std::string_view what, Code code) {
  if (!failed_) {
    const bool cut = what.size() > kMaxMessageBytes;  // a name or string may have megabytes
    error_ = {code, fmt::format("chat template: {}{}, {}", what.substr(0, kMaxMessageBytes),
                                cut ? "..." : "", Position(source_, offset))};
  }
  failed_ = true;
  at_ = tokens_.size() - 1;
}

void TokenReader::FailHere(std::string_view wanted) {
  const Token& token = Peek();
  const bool tag_end = token.kind == TokenKind::kVariableEnd || token.kind == TokenKind::kBlockEnd;
  const std::string got = token.kind == TokenKind::kEnd ? "the end of the template"
                          : tag_end                     ? "the end of the tag"
                                                        : fmt::format("'{}'", token.text);
  Fail(token.offset, fmt::format("expected {}, got {}", wanted, got));
}

void TokenReader::Expect(std::string_view op) {
  if (!SkipOperator(op)) FailHere(fmt::format("'{}'", op));
}

void TokenReader::Expect(TokenKind kind, std::string_view what) {
  if (!At(kind)) return FailHere(what);
  Take();
}

std::string TokenReader::ExpectName(std::string_view what) {
  if (!At(TokenKind::kName)) return FailHere(what), "";
  return Take().text;
}

NodePtr TokenReader::Make(Kind kind, size_t offset, std::string name) {
  if (++num_nodes_ > kMaxNodes) Fail(offset, "the template is too large");
  auto node = std::make_unique<Node>();
  node->kind = kind;
  node->offset = offset;
  node->name = std::move(name);
  return node;
}

void TokenReader::Adopt(Node& parent, NodePtr child) {
  parent.children.push_back(Nest(parent, std::move(child)));
}

NodePtr TokenReader::Nest(Node& parent, NodePtr child) {
  if (child) {
    parent.depth = std::max(parent.depth, child->depth + 1);
    if (parent.depth > kMaxNodeDepth) Fail(child->offset, "nested too deeply");
  }
  if (failed_) child = nullptr;
  return child;
}

NodePtr ExpressionParser::Expression() {
  constexpr uint32_t kMaxNesting = 100;  // each level is a dozen frames of the machine's stack
  if (nesting_ >= kMaxNesting) {
    const size_t offset = in_.Peek().offset;
    in_.Fail(offset, "nested too deeply");
    return in_.Make(Kind::kConstant, offset);
  }
  ++nesting_;
  NodePtr node = Or();
  while (in_.AtWord("if")) {
    NodePtr conditional = in_.Make(Kind::kConditional, in_.Take().offset);
    NodePtr test = Or();
    NodePtr otherwise = in_.SkipWord("else") ? Expression() : nullptr;
    in_.Adopt(*conditional, std::move(node));
    in_.Adopt(*conditional, std::move(test));
    in_.Adopt(*conditional, std::move(otherwise));
    node = std::move(conditional);
  }
  --nesting_;
  return node;
}

NodePtr ExpressionParser::ExpressionNoCondition() { return Or(); }

NodePtr ExpressionParser::Tuple(bool with_condition) {
  const size_t offset = in_.Peek().offset;
  const auto one = [&] { return with_condition ? Expression() : ExpressionNoCondition(); };
  NodePtr first = one();
  if (!in_.AtOperator(",")) return first;
  NodePtr tuple = in_.Make(Kind::kTuple, offset);
  in_.Adopt(*tuple, std::move(first));
  while (in_.SkipComma()) {
    const bool ends = in_.At(TokenKind::kVariableEnd) || in_.At(TokenKind::kBlockEnd) ||
                      in_.AtOperator(")") || in_.At(TokenKind::kEnd);
    if (ends) break;
    in_.Adopt(*tuple, one());
  }
  return tuple;
}

NodePtr ExpressionParser::Binary(NodePtr left, std::string op, size_t offset, NodePtr right) {
  const Kind kind = op == "and" ? Kind::kAnd : op == "or" ? Kind::kOr : Kind::kBinary;
  NodePtr node = in_.Make(kind, offset, std::move(op));
  in_.Adopt(*node, std::move(left));
  in_.Adopt(*node, std::move(right));
  return node;
}

NodePtr ExpressionParser::Or() {
  NodePtr node = And();
  while (in_.AtWord("or")) {
    const Token op = in_.Take();
    node = Binary(std::move(node), op.text, op.offset, And());
  }
  return node;
}

NodePtr ExpressionParser::And() {
  NodePtr node = Not();
  while (in_.AtWord("and")) {
    const Token op = in_.Take();
    node = Binary(std::move(node), op.text, op.offset, Not());
  }
  return node;
}

NodePtr ExpressionParser::Not() {
  std::vector<size_t> nots;
  while (in_.AtWord("not")) nots.push_back(in_.Take().offset);
  NodePtr node = CompareChain();
  for (size_t i = nots.size(); i-- > 0 && !in_.failed();) {
    NodePtr negated = in_.Make(Kind::kUnary, nots[i], "not");
    in_.Adopt(*negated, std::move(node));
    node = std::move(negated);
  }
  return node;
}

NodePtr ExpressionParser::CompareChain() {
  NodePtr first = Sum();
  NodePtr chain;
  while (true) {
    static constexpr std::string_view kOps[] = {"==", "!=", "<", "<=", ">", ">="};
    const Token& token = in_.Peek();
    std::string op;
    if (token.kind == TokenKind::kOperator &&
        std::find(std::begin(kOps), std::end(kOps), token.text) != std::end(kOps)) {
      op = token.text;
    } else if (in_.AtWord("in")) {
      op = "in";
    } else if (in_.AtWord("not") && in_.AtWord("in", 1)) {
      op = "not in";
    } else {
      return chain ? std::move(chain) : std::move(first);
    }
    const size_t offset = in_.Take().offset;
    if (op == "not in") in_.Take();
    if (!chain) {
      chain = in_.Make(Kind::kCompare, offset);
      in_.Adopt(*chain, std::move(first));
    }
    chain->names.push_back(op);
    in_.Adopt(*chain, Sum());
  }
}

NodePtr ExpressionParser::Sum() {
  NodePtr node = Concat();
  while (in_.AtOperator("+") || in_.AtOperator("-")) {
    const Token op = in_.Take();
    node = Binary(std::move(node), op.text, op.offset, Concat());
  }
  return node;
}

NodePtr ExpressionParser::Concat() {
  NodePtr first = Product();
  if (!in_.AtOperator("~")) return first;
  NodePtr node = in_.Make(Kind::kConcat, in_.Peek().offset);
  in_.Adopt(*node, std::move(first));
  while (in_.SkipOperator("~")) in_.Adopt(*node, Product());
  return node;
}

NodePtr ExpressionParser::Product() {
  NodePtr node = Power();
  while (in_.AtOperator("*") || in_.AtOperator("/") || in_.AtOperator("//") ||
         in_.AtOperator("%")) {
    const Token op = in_.Take();
    node = Binary(std::move(node), op.text, op.offset, Power());
  }
  return node;
}

NodePtr ExpressionParser::Power() {
  NodePtr node = Unary(true);
  while (in_.AtOperator("**")) {
    const Token op = in_.Take();
    node = Binary(std::move(node), op.text, op.offset, Unary(true));
  }
  return node;
}

NodePtr ExpressionParser::Unary(bool with_filter) {
  NodePtr node;
  if (in_.AtOperator("-") || in_.AtOperator("+")) {
    const Token op = in_.Take();
    node = in_.Make(Kind::kUnary, op.offset, op.text);
    if (++nesting_ > 100) in_.Fail(op.offset, "nested too deeply");
    in_.Adopt(*node, Unary(false));
    --nesting_;
  } else {
    node = Primary();
  }
  node = Postfix(std::move(node));
  return with_filter ? FilterExpression(std::move(node)) : std::move(node);
}

NodePtr ExpressionParser::Number() {
  const Token token = in_.Take();
  NodePtr node = in_.Make(Kind::kConstant, token.offset);
  if (token.kind == TokenKind::kFloat) {
    node->value = Value(std::strtod(token.text.c_str(), nullptr));
    return node;
  }
  const char marker = token.text.size() > 2 ? token.text[1] : '0';
  const int base = (marker | 32) == 'x'   ? 16
                   : (marker | 32) == 'o' ? 8
                   : (marker | 32) == 'b' ? 2
                                          : 10;
  int64_t number = 0;
  const char* begin = token.text.data() + (base == 10 ? 0 : 2);
  const char* end = token.text.data() + token.text.size();
  const auto [stop, error] = std::from_chars(begin, end, number, base);
  if (error != std::errc() || stop != end) in_.Fail(token.offset, "bad or too large integer");
  node->value = FromInt(number);
  return node;
}

NodePtr ExpressionParser::Primary() {
  const Token& token = in_.Peek();
  if (token.kind == TokenKind::kInteger || token.kind == TokenKind::kFloat) return Number();
  if (token.kind == TokenKind::kString) {
    NodePtr node = in_.Make(Kind::kConstant, token.offset);
    std::string text;
    while (in_.At(TokenKind::kString)) text += in_.Take().text;
    node->value = FromString(text);
    return node;
  }
  if (token.kind == TokenKind::kName) {
    const Token name = in_.Take();
    NodePtr node = in_.Make(Kind::kConstant, name.offset);
    if (name.text == "true" || name.text == "True") {
      node->value = Value(true);
    } else if (name.text == "false" || name.text == "False") {
      node->value = Value(false);
    } else if (name.text == "none" || name.text == "None") {
      node->value = Value(None{});
    } else {
      node->kind = Kind::kName;
      node->name = name.text;
    }
    return node;
  }
  if (in_.AtOperator("(")) return Parenthesis();
  if (in_.AtOperator("[")) return ListLiteral();
  if (in_.AtOperator("{")) return DictLiteral();
  NodePtr node = in_.Make(Kind::kConstant, token.offset);
  in_.FailHere("an expression");
  return node;
}

NodePtr ExpressionParser::Parenthesis() {
  const size_t offset = in_.Take().offset;
  if (in_.SkipOperator(")")) return in_.Make(Kind::kTuple, offset);
  NodePtr node = Tuple();
  in_.Expect(")");
  return node;
}

NodePtr ExpressionParser::ListLiteral() {
  NodePtr list = in_.Make(Kind::kList, in_.Take().offset);
  while (!in_.AtOperator("]") && !in_.failed()) {
    in_.Adopt(*list, Expression());
    if (!in_.SkipComma()) break;
  }
  in_.Expect("]");
  return list;
}

NodePtr ExpressionParser::DictLiteral() {
  NodePtr dict = in_.Make(Kind::kDict, in_.Take().offset);
  while (!in_.AtOperator("}") && !in_.failed()) {
    in_.Adopt(*dict, Expression());
    in_.Expect(":");
    in_.Adopt(*dict, Expression());
    if (!in_.SkipComma()) break;
  }
  in_.Expect("}");
  return dict;
}

}  // namespace kvasir::jinja
