#include "text/decode_bytes.h"

#include "base/hex.h"
#include "base/utf8.h"
#include "text/byte_level.h"

namespace kvasir {
namespace {

// The byte of a token <0xXX>.
std::optional<uint8_t> ByteOf(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return std::nullopt;
  const char high = token[3] == '+' ? '0' : token[3];  // as Rust reads numbers
  return HexByte(high, token[4], HexCase::kAny);
}

}  // namespace

void ByteLevelStage::Finish() {
  if (!held_.empty()) next_->Append(kReplacementChar);
  next_->EndToken();
  next_->Finish();
}

void ByteLevelStage::Token(std::string_view token) {
  const size_t size = held_.size();
  for (size_t pos = 0; pos < token.size();) {
    const std::optional<uint8_t> byte = ByteOfChar(NextChar(token, &pos));
    if (!byte) {  // then the token is plain text
      held_.resize(size);
      held_ += token;
      break;
    }
    held_.push_back(static_cast<char>(*byte));
  }
  text_.clear();
  held_.erase(0, AppendLossyUtf8(held_, &text_));
  if (!text_.empty()) next_->Append(text_);
}

void ByteFallbackStage::Finish() {
  EndRun();
  next_->Finish();
}

void ByteFallbackStage::Token(std::string_view token) {
  const std::optional<uint8_t> byte = ByteOf(token);
  if (byte) {
    run_.push_back(static_cast<char>(*byte));
    if (run_.size() > kMaxRun) streaming_ = true;
    if (streaming_) Stream();
    return;
  }
  EndRun();
  next_->Append(token);
  next_->EndToken();
}

void ByteFallbackStage::Stream() {
  std::string text;
  run_.erase(0, AppendLossyUtf8(run_, &text));
  if (text.empty()) return;
  next_->Append(text);
  next_->EndToken();
}

void ByteFallbackStage::EndRun() {
  if (streaming_) {
    if (!run_.empty()) PutBroken(1);
  } else if (FirstInvalidUtf8(run_) == run_.size()) {
    if (!run_.empty()) {
      next_->Append(run_);
      next_->EndToken();
    }
  } else {
    PutBroken(run_.size());
  }
  run_.clear();
  streaming_ = false;
}

void ByteFallbackStage::PutBroken(size_t count) {
  for (size_t i = 0; i < count; ++i) {
    next_->Append(kReplacementChar);
    next_->EndToken();
  }
}

}  // namespace kvasir
