#include "jinja/parser.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/result.h"
#include "jinja/expression_parser.h"

namespace kvasir::jinja {
namespace {

using Kind = Node::Kind;
using TokenKind = Token::Kind;
using Body = std::vector<NodePtr>;

class StatementParser {
 public:
  explicit StatementParser(TokenReader& reader) : in_(reader), expressions_(reader) {}

  // Parses statements up to a block whose name is in `ends`, which is left unread; without `ends`,
  // up to the end of the template.
  Body Statements(std::initializer_list<std::string_view> ends) {
    Body body;
    constexpr uint32_t kMaxNesting = 60;
    if (++nesting_ > kMaxNesting) in_.Fail(in_.Peek().offset, "nested too deeply");
    while (!in_.At(TokenKind::kEnd)) {
      const Token token = in_.Take();
      if (token.kind == TokenKind::kData) {
        body.push_back(in_.Make(Kind::kData, token.offset));
        body.back()->value = FromString(token.text);
      } else if (token.kind == TokenKind::kVariableBegin) {
        body.push_back(Wrap(Kind::kOutput, token.offset, expressions_.Tuple()));
        in_.Expect(TokenKind::kVariableEnd, "'}}'");
      } else {
        if (in_.AtAnyWord(ends)) return --nesting_, std::move(body);
        body.push_back(Statement());
      }
    }
    if (ends.size() > 0) in_.FailHere(fmt::format("{{% {} %}}", *(ends.end() - 1)));
    --nesting_;
    return body;
  }

 private:
  NodePtr Wrap(Kind kind, size_t offset, NodePtr child) {
    NodePtr node = in_.Make(kind, offset);
    in_.Adopt(*node, std::move(child));
    return node;
  }

  void EndBlock() { in_.Expect(TokenKind::kBlockEnd, "'%}'"); }

  // Parses a body up to {% end... %}, which is consumed.
  Body BodyUntil(std::string_view end) {
    EndBlock();
    Body body = Statements({end});
    if (!in_.failed()) {
      in_.Take();
      EndBlock();
    }
    return body;
  }

  NodePtr Statement() {
    const size_t offset = in_.Peek().offset;
    const std::string name = in_.ExpectName("the name of a statement");
    if (name == "if") return If(offset);
    if (name == "for") return For(offset);
    if (name == "set") return Set(offset);
    if (name == "macro") return Macro(offset);
    if (name == "call") return CallBlock(offset);
    if (name == "filter") return FilterBlock(offset);
    if (name == "with") return With(offset);
    if (name == "generation") {
      NodePtr node = in_.Make(Kind::kScope, offset);
      node->bodies.push_back(BodyUntil("endgeneration"));
      return node;
    }
    if (name == "break" || name == "continue") {
      if (loops_ == 0) in_.Fail(offset, fmt::format("'{}' outside of a loop", name));
      EndBlock();
      return in_.Make(name == "break" ? Kind::kBreak : Kind::kContinue, offset);
    }
    static constexpr std::string_view kKnown[] = {
        "include", "import", "from", "extends", "block", "do", "trans", "debug", "autoescape"};
    const bool known = std::find(std::begin(kKnown), std::end(kKnown), name) != std::end(kKnown);
    in_.Fail(offset, fmt::format("{} statement '{}'", known ? "unsupported" : "unknown", name),
             known ? Code::kUnsupported : Code::kInvalidArgument);
    return in_.Make(Kind::kScope, offset);
  }

  NodePtr If(size_t offset) {
    NodePtr node = in_.Make(Kind::kIf, offset);
    while (!in_.failed()) {
      in_.Adopt(*node, expressions_.Tuple(/*with_condition=*/true));
      EndBlock();
      node->bodies.push_back(Statements({"elif", "else", "endif"}));
      if (!in_.SkipWord("elif")) break;
    }
    if (in_.SkipWord("else")) {
      node->bodies.push_back(BodyUntil("endif"));
    } else if (!in_.failed()) {
      in_.Take();
      EndBlock();
    }
    return node;
  }

  // Parses a name, ns.name or a, b. `ends` names what follows, for the message.
  NodePtr Target() {
    const size_t offset = in_.Peek().offset;
    NodePtr first = SingleTarget();
    if (!in_.AtOperator(",")) return first;
    NodePtr tuple = in_.Make(Kind::kTuple, offset);
    in_.Adopt(*tuple, std::move(first));
    while (in_.SkipComma()) {
      if (in_.AtWord("in") || in_.AtOperator("=") || in_.AtOperator(")")) break;
      in_.Adopt(*tuple, SingleTarget());
    }
    return tuple;
  }

  NodePtr SingleTarget() {
    const size_t offset = in_.Peek().offset;
    if (in_.SkipOperator("(")) {
      if (++nesting_ > 60) in_.Fail(offset, "nested too deeply");
      NodePtr inner = Target();
      --nesting_;
      in_.Expect(")");
      return inner;
    }
    NodePtr node = in_.Make(Kind::kName, offset, in_.ExpectName("a name to assign to"));
    static constexpr std::string_view kReserved[] = {"true", "false", "none",
                                                     "True", "False", "None"};
    if (std::find(std::begin(kReserved), std::end(kReserved), node->name) != std::end(kReserved)) {
      in_.Fail(offset, fmt::format("can't assign to '{}'", node->name));
    }
    if (!in_.SkipOperator(".")) return node;
    NodePtr attribute = in_.Make(Kind::kAttribute, offset, in_.ExpectName("a name to assign to"));
    in_.Adopt(*attribute, std::move(node));
    return attribute;
  }

  NodePtr For(size_t offset) {
    NodePtr node = in_.Make(Kind::kFor, offset);
    in_.Adopt(*node, Target());
    if (!in_.SkipWord("in")) in_.FailHere("'in'");
    in_.Adopt(*node, expressions_.Tuple(/*with_condition=*/false));
    in_.Adopt(*node, in_.SkipWord("if") ? expressions_.Expression() : nullptr);
    node->recursive = in_.SkipWord("recursive");
    EndBlock();
    ++loops_;
    node->bodies.push_back(Statements({"else", "endfor"}));
    --loops_;
    if (in_.SkipWord("else")) {
      node->bodies.push_back(BodyUntil("endfor"));
    } else if (!in_.failed()) {
      in_.Take();
      EndBlock();
    }
    return node;
  }

  NodePtr Set(size_t offset) {
    NodePtr target = Target();
    if (in_.SkipOperator("=")) {
      NodePtr node = Wrap(Kind::kSet, offset, std::move(target));
      in_.Adopt(*node, expressions_.Tuple());
      EndBlock();
      return node;
    }
    NodePtr node = Wrap(Kind::kSetBlock, offset, std::move(target));
    in_.Adopt(*node, in_.SkipOperator("|") ? expressions_.Filters(nullptr) : nullptr);
    node->bodies.push_back(BodyUntil("endset"));
    return node;
  }

  // Parses "(a, b=1)" into names and default values.
  void Signature(Node& node) {
    in_.Expect("(");
    while (!in_.AtOperator(")") && !in_.failed()) {
      const size_t offset = in_.Peek().offset;
      node.names.push_back(in_.ExpectName("the name of a parameter"));
      if (in_.SkipOperator("=")) {
        in_.Adopt(node, expressions_.Expression());
      } else if (!node.children.empty()) {
        in_.Fail(offset, "parameter without a default after one with a default");
      }
      if (!in_.SkipComma()) break;
    }
    in_.Expect(")");
  }

  // Parses a macro's body, which runs separately: break and continue do not reach the loop around
  // it.
  Body MacroBody(std::string_view end) {
    const int loops = std::exchange(loops_, 0);
    Body body = BodyUntil(end);
    loops_ = loops;
    return body;
  }

  NodePtr Macro(size_t offset) {
    NodePtr node = in_.Make(Kind::kMacro, offset, in_.ExpectName("the name of a macro"));
    Signature(*node);
    node->bodies.push_back(MacroBody("endmacro"));
    return node;
  }

  NodePtr CallBlock(size_t offset) {
    NodePtr node = in_.Make(Kind::kCallBlock, offset, "caller");
    if (in_.AtOperator("(")) Signature(*node);
    node->call = in_.Nest(*node, expressions_.Expression());
    if (!in_.failed() && node->call->kind != Kind::kCall) in_.Fail(offset, "expected a call");
    node->bodies.push_back(MacroBody("endcall"));
    return node;
  }

  NodePtr FilterBlock(size_t offset) {
    NodePtr node = in_.Make(Kind::kFilterBlock, offset);
    node->call = in_.Nest(*node, expressions_.Filters(nullptr));
    node->bodies.push_back(BodyUntil("endfilter"));
    return node;
  }

  NodePtr With(size_t offset) {
    NodePtr node = in_.Make(Kind::kWith, offset);
    while (!in_.At(TokenKind::kBlockEnd) && !in_.failed()) {
      if (!node->children.empty()) in_.Expect(",");
      in_.Adopt(*node, Target());
      in_.Expect("=");
      in_.Adopt(*node, expressions_.Expression());
    }
    node->bodies.push_back(BodyUntil("endwith"));
    return node;
  }

  TokenReader& in_;
  ExpressionParser expressions_;
  uint32_t nesting_ = 0;
  int loops_ = 0;
};

}  // namespace

Result<std::vector<NodePtr>> ParseTemplate(std::string_view source) {
  KV_ASSIGN(std::vector<Token> tokens, Tokenize(source));
  TokenReader reader(source, std::move(tokens));
  Body body = StatementParser(reader).Statements({});
  if (reader.failed()) return tl::unexpected(reader.error());
  return body;
}

}  // namespace kvasir::jinja
