#include "tier/record_buffers.h"

#include <algorithm>

namespace kvasir {
namespace {

constexpr uint64_t kScratchBytes = 256 * 1024;  // of each of the two threads

uint64_t ScratchBytes(const RecordShape& shape) {
  return std::max(kScratchBytes, RoundUp(shape.slot_bytes(), kTierPageBytes));
}

}  // namespace

RecordBuffers::RecordBuffers(Arena& index, Arena& buffers, const RecordShape& shape,
                             uint32_t num_buffers)
    : shape_(shape),
      num_buffers_(num_buffers),
      buffers_(index.TakeArray<RecordBuffer>(num_buffers)),
      payloads_(buffers.Take(num_buffers * shape.stride_bytes())),
      scratch_(buffers.Take(2 * ScratchBytes(shape))),
      headers_(buffers.Take(num_buffers * shape.header_bytes())) {
  if (buffers_ != nullptr) std::fill_n(buffers_, num_buffers, RecordBuffer{});
}

std::span<std::byte> RecordBuffers::HeaderOf(uint32_t buffer) const {
  const uint64_t bytes = shape_.header_bytes();
  return {headers_ + buffer * bytes, bytes};
}
std::span<std::byte> RecordBuffers::TokensOf(uint32_t buffer) const {
  return HeaderOf(buffer).subspan(kPublicBytes, uint64_t{4} * shape_.block_tokens);
}
std::span<std::byte> RecordBuffers::PayloadOf(uint32_t buffer) const {
  const uint64_t bytes = shape_.stride_bytes();
  return {payloads_ + buffer * bytes, bytes};
}
std::span<std::byte> RecordBuffers::ScratchOf(uint32_t thread) const {
  const uint64_t bytes = ScratchBytes(shape_);
  return {scratch_ + thread * bytes, bytes};
}

}  // namespace kvasir
