// TokenReader: shared by the parsers of statements and expressions; has the tokens, the position
// and the first error.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "jinja/ast.h"
#include "jinja/lexer.h"
#include "kvasir/status.h"

namespace kvasir::jinja {

// After a failure the reader is at the end of the template, so that every loop ends.
class TokenReader {
 public:
  TokenReader(std::string_view source, std::vector<Token> tokens)
      : source_(source), tokens_(std::move(tokens)) {}

  const Token& Peek(size_t ahead = 0) const {
    return tokens_[std::min(at_ + ahead, tokens_.size() - 1)];
  }
  bool At(Token::Kind kind) const { return Peek().kind == kind; }
  bool AtOperator(std::string_view op) const {
    return At(Token::Kind::kOperator) && Peek().text == op;
  }
  bool AtWord(std::string_view word, size_t ahead = 0) const {
    return Peek(ahead).kind == Token::Kind::kName && Peek(ahead).text == word;
  }
  bool AtAnyWord(std::initializer_list<std::string_view> words) const {
    return std::any_of(words.begin(), words.end(), [&](auto word) { return AtWord(word); });
  }
  Token Take() {
    Token token = Peek();
    if (at_ + 1 < tokens_.size()) ++at_;
    return token;
  }
  bool SkipOperator(std::string_view op) { return AtOperator(op) && (Take(), true); }
  bool SkipWord(std::string_view word) { return AtWord(word) && (Take(), true); }
  bool SkipComma() { return SkipOperator(","); }

  void Expect(std::string_view op);
  void Expect(Token::Kind kind, std::string_view what);
  std::string ExpectName(std::string_view what);
  void Fail(size_t offset, std::string_view what, Code code = Code::kInvalidArgument);
  void FailHere(std::string_view wanted);
  bool failed() const { return failed_; }
  const Error& error() const { return error_; }

  NodePtr Make(Node::Kind kind, size_t offset, std::string name = {});
  // Adds a child; fails when the tree gets too deep for recursion. After a failure null replaces
  // the child, so that a tree never gets deeper than kMaxNodeDepth.
  void Adopt(Node& parent, NodePtr child);
  // Does as Adopt, but returns the child, which parent.children does not own.
  NodePtr Nest(Node& parent, NodePtr child);

 private:
  std::string_view source_;
  std::vector<Token> tokens_;
  size_t at_ = 0;
  size_t num_nodes_ = 0;
  bool failed_ = false;
  Error error_;
};

inline constexpr uint32_t kMaxNodeDepth = 400;
inline constexpr size_t kMaxNodes = 1'000'000;  // about 300 MB; templates in use have thousands
inline constexpr size_t kMaxMessageBytes = 200;

}  // namespace kvasir::jinja
