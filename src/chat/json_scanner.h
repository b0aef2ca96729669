// JsonScanner: finds where a JSON value ends that comes byte by byte.
#pragma once

#include <cstdint>
#include <string>

namespace kvasir {

// Takes the bytes of one JSON object or array. It accepts exactly the grammar of RFC 8259, nested
// at most kMaxDepth deep, except that it does not check UTF-8 nor pairs of \u escapes. One thread.
class JsonScanner {
 public:
  enum class Result : uint8_t { kMore, kEnd, kBad };
  static constexpr size_t kMaxDepth = 120;

  // kEnd: this byte is the value's last one. After kEnd and kBad, it takes no more bytes.
  Result Append(char c);
  size_t depth() const { return open_.size(); }

 private:
  enum class At : uint8_t {
    kValue,         // a value must begin
    kFirstKey,      // after {
    kFirstItem,     // after [
    kKey,           // after a comma in an object
    kString,        // inside a string
    kEscape,        // after its backslash
    kHex,           // inside the digits of \u
    kColon,         // after a key
    kWord,          // inside true, false or null
    kMinus,         // after a number's sign
    kZero,          // after a number's leading 0
    kDigits,        // inside a number's integer
    kPoint,         // after its point
    kFraction,      // inside its fraction
    kExponent,      // after e
    kExponentSign,  // after its sign
    kPower,         // inside its exponent
    kAfter,         // after a value in an object or array
  };
  Result Begin(char c);      // the first byte of a value
  Result Structure(char c);  // after a value
  Result InString(char c);
  Result InNumber(char c);
  Result Close(char bracket);
  Result Go(At at) {
    at_ = at;
    return Result::kMore;
  }

  At at_ = At::kValue;
  bool is_key_ = false;         // of the string
  uint8_t hex_ = 0;             // digits of \u that are missing
  const char* word_ = nullptr;  // the rest of a word
  std::string open_;            // brackets, outermost first
};

}  // namespace kvasir
