#include "remote/remote_buffers.h"

#include <algorithm>

#include "base/bytes.h"

namespace kvasir {
namespace {

uint64_t StrideOf(uint64_t value_bytes) { return RoundUp(value_bytes, 64); }

}  // namespace

RemoteBuffers::RemoteBuffers(Arena& index, Arena& out, const RemoteTierOptions& options)
    : value_bytes_(options.value_bytes()),
      num_(options.num_buffers()),
      all_(index.TakeArray<RemoteBuffer>(num_)),
      values_(out.Take(num_ * StrideOf(value_bytes_))),
      probe_(out.Take(kProbeBytes)),
      codecs_(out, options.shape.payload_bytes, options.num_codecs) {
  if (all_ != nullptr) std::fill_n(all_, num_, RemoteBuffer{});
}

std::span<std::byte> RemoteBuffers::ValueOf(uint32_t buffer) const {
  return {values_ + buffer * StrideOf(value_bytes_), value_bytes_};
}

}  // namespace kvasir
