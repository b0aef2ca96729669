#include "chat/json_scanner.h"

#include <cstring>

#include "base/ascii.h"
#include "base/hex.h"

namespace kvasir {

JsonScanner::Result JsonScanner::Append(char c) {
  switch (at_) {
    case At::kString:
    case At::kEscape:
    case At::kHex:
      return InString(c);
    case At::kWord:
      if (*word_ != c) return Result::kBad;
      return *++word_ == '\0' ? Go(At::kAfter) : Result::kMore;
    case At::kMinus:
    case At::kZero:
    case At::kDigits:
    case At::kPoint:
    case At::kFraction:
    case At::kExponent:
    case At::kExponentSign:
    case At::kPower:
      return InNumber(c);
    default:
      break;
  }
  if (IsBlank(c)) return open_.empty() ? Result::kBad : Result::kMore;
  switch (at_) {
    case At::kFirstKey:
      if (c == '}') return Close(c);
      [[fallthrough]];
    case At::kKey:
      if (c != '"') return Result::kBad;
      is_key_ = true;
      return Go(At::kString);
    case At::kColon:
      return c == ':' ? Go(At::kValue) : Result::kBad;
    case At::kFirstItem:
      if (c == ']') return Close(c);
      return Begin(c);
    case At::kValue:
      return Begin(c);
    default:
      return Structure(c);
  }
}

JsonScanner::Result JsonScanner::Begin(char c) {
  if (c == '{' || c == '[') {
    if (open_.size() == kMaxDepth) return Result::kBad;
    open_ += c;
    return Go(c == '{' ? At::kFirstKey : At::kFirstItem);
  }
  if (open_.empty()) return Result::kBad;  // only objects and arrays say where they end
  is_key_ = false;
  if (c == '"') return Go(At::kString);
  if (c == '-') return Go(At::kMinus);
  if (c == '0') return Go(At::kZero);
  if (IsAsciiDigit(c)) return Go(At::kDigits);
  word_ = c == 't' ? "rue" : c == 'f' ? "alse" : c == 'n' ? "ull" : nullptr;
  return word_ != nullptr ? Go(At::kWord) : Result::kBad;
}

JsonScanner::Result JsonScanner::Structure(char c) {
  const bool in_object = open_.back() == '{';
  if (c == ',') return Go(in_object ? At::kKey : At::kValue);
  return c == '}' || c == ']' ? Close(c) : Result::kBad;
}

JsonScanner::Result JsonScanner::Close(char bracket) {
  if ((open_.back() == '{') != (bracket == '}')) return Result::kBad;
  open_.pop_back();
  at_ = At::kAfter;
  return open_.empty() ? Result::kEnd : Result::kMore;
}

JsonScanner::Result JsonScanner::InString(char c) {
  if (at_ == At::kHex) {
    if (!HexDigit(c, HexCase::kAny)) return Result::kBad;
    return --hex_ == 0 ? Go(At::kString) : Result::kMore;
  }
  if (at_ == At::kEscape) {
    hex_ = 4;
    if (c == 'u') return Go(At::kHex);
    return c != '\0' && std::strchr("\"\\/bfnrt", c) != nullptr ? Go(At::kString) : Result::kBad;
  }
  if (static_cast<unsigned char>(c) < 0x20) return Result::kBad;
  if (c == '\\') return Go(At::kEscape);
  if (c == '"') return Go(is_key_ ? At::kColon : At::kAfter);
  return Result::kMore;
}

JsonScanner::Result JsonScanner::InNumber(char c) {
  const bool digit = IsAsciiDigit(c);
  switch (at_) {
    case At::kMinus:
      return !digit ? Result::kBad : Go(c == '0' ? At::kZero : At::kDigits);
    case At::kPoint:
      return digit ? Go(At::kFraction) : Result::kBad;
    case At::kExponent:
      if (c == '+' || c == '-') return Go(At::kExponentSign);
      [[fallthrough]];
    case At::kExponentSign:
      return digit ? Go(At::kPower) : Result::kBad;
    default:
      break;
  }
  if (digit) return at_ == At::kZero ? Result::kBad : Result::kMore;
  if (c == '.' && (at_ == At::kZero || at_ == At::kDigits)) return Go(At::kPoint);
  if ((c == 'e' || c == 'E') && at_ != At::kPower) return Go(At::kExponent);
  at_ = At::kAfter;
  return IsBlank(c) ? Result::kMore : Structure(c);
}

}  // namespace kvasir
