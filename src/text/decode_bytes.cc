#include "text/decode_bytes.h"

#include "base/hex.h"
#include "base/utf8.h"
#include "text/byte_level.h"

namespace kvasir {

std::optional<uint8_t> ByteOfFallback(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return std::nullopt;
  const char high = token[3] == '+' ? '0' : token[3];  // as Rust reads numbers
  return HexByte(high, token[4], HexCase::kAny);
}

std::string BytesOfByteLevel(std::string_view token) {
  std::string bytes;
  for (size_t pos = 0; pos < token.size();) {
    const std::optional<uint8_t> byte = ByteOfChar(NextChar(token, &pos));
    if (!byte) return std::string(token);  // then the token is plain text
    bytes.push_back(static_cast<char>(*byte));
  }
  return bytes;
}

void ByteLevelStage::Finish() {
  if (!held_.empty()) next_->Append(kReplacementChar);
  next_->EndToken();
  next_->Finish();
}

void ByteLevelStage::Token(std::string_view token) {
  held_ += BytesOfByteLevel(token);
  text_.clear();
  held_.erase(0, AppendLossyUtf8(held_, &text_));
  if (!text_.empty()) next_->Append(text_);
}

void ByteFallbackStage::Finish() {
  EndRun();
  next_->Finish();
}

void ByteFallbackStage::Token(std::string_view token) {
  const std::optional<uint8_t> byte = ByteOfFallback(token);
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
