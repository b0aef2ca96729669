// Decoding stages that turn tokens into bytes, and bytes into text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "text/decoder.h"

namespace kvasir {

// Returns the bytes of a token in GPT-2's alphabet; the token itself where it has another
// character.
std::string BytesOfByteLevel(std::string_view token);
// Returns the byte of a token <0xXX>.
std::optional<uint8_t> ByteOfFallback(std::string_view token);

// Collects the whole token for stages that need it.
class WholeTokenStage : public DecodeStage {
 public:
  using DecodeStage::DecodeStage;
  void Append(std::string_view text) override { token_ += text; }
  void EndToken() override {
    Token(token_);
    token_.clear();
  }

 protected:
  virtual void Token(std::string_view token) = 0;

 private:
  std::string token_;
};

// Characters of GPT-2's alphabet back to bytes, and bytes to text. All tokens become one.
class ByteLevelStage : public WholeTokenStage {
 public:
  using WholeTokenStage::WholeTokenStage;
  void Finish() override;

 protected:
  void Token(std::string_view token) override;

 private:
  std::string held_;  // bytes of a character that is not whole yet
  std::string text_;
};

// <0xXX> tokens to bytes. A run of them is text if all of it is UTF-8, and else one U+FFFD a byte:
// it is certain only at its end. A run longer than kMaxRun gives its characters as they come, so
// that a stream never waits long; only there a broken byte does not affect the bytes before it.
class ByteFallbackStage : public WholeTokenStage {
 public:
  using WholeTokenStage::WholeTokenStage;
  void Finish() override;

 protected:
  void Token(std::string_view token) override;

 private:
  static constexpr size_t kMaxRun = 512;

  void Stream();
  void EndRun();
  void PutBroken(size_t count);

  std::string run_;
  bool streaming_ = false;
};

}  // namespace kvasir
