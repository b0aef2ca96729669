// RemoteTierOptions: which store a remote tier uses, and what it may take.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/digest.h"
#include "base/secret.h"
#include "kvasir/remote.h"
#include "remote/remote_address.h"
#include "remote/remote_value.h"
#include "remote/s3_access.h"
#include "remote/tls_stream.h"

namespace kvasir {

// When a tier compresses what it writes.
enum class CompressWhen : uint8_t { kNever, kWhereSlow, kAlways };

struct RemoteTierOptions {
  RemoteAddress address;
  std::string password = {};
  std::shared_ptr<const TlsContext> tls = {};  // of a Redis with TLS; shared by copies
  S3Access s3 = {};
  RemoteMode mode = RemoteMode::kReadWrite;
  uint64_t memory_bytes = uint64_t{64} << 20;
  uint64_t ttl_hours = 24;
  std::optional<uint64_t> daily_bytes = {};  // RemoteOptions::daily_bytes
  Secret fleet{};
  Digest identity{};
  RecordShape shape;
  // Threads that compress and decompress at the same time, at most PlaneCodecs::kMost. 0: no member
  // of the fleet compresses values of this model.
  uint32_t num_codecs = 0;
  CompressWhen compresses = CompressWhen::kNever;  // REQUIRES: num_codecs > 0, or kNever
  std::string epochs =
      {};  // RemoteEpochs' folder: beside the disk's records, where there is a disk
  bool has_disk = false;
  std::vector<Digest> owners = {};  // of which the disk has records: followed from the start
  // Where the store is faster, compressing costs more time than it saves (kWhereSlow).
  double slow_bytes_per_s = 500e6;
  // How long an operation may take beyond four times the usual before it is a stall.
  uint64_t stall_ns = 20'000'000;
  // Until an erase that failed, here or in the store, is tried again.
  uint64_t again_ns = 60'000'000'000;
  // How long an erase removes names before it answers, and goes on.
  uint64_t answer_ns = 10'000'000'000;
  uint32_t num_names = 1u << 17;  // a power of two

  uint64_t value_bytes() const { return RawValueBytes(shape); }  // at most
  uint32_t num_buffers() const {
    return static_cast<uint32_t>(memory_bytes / RoundUp(value_bytes(), 64));
  }
};

}  // namespace kvasir
