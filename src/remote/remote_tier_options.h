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
#include "remote/tls_stream.h"

namespace kvasir {

struct RemoteTierOptions {
  RemoteAddress address;
  std::string password = {};
  std::shared_ptr<const TlsContext> tls = {};  // where the address has TLS; shared by copies
  RemoteMode mode = RemoteMode::kReadWrite;
  uint64_t memory_bytes = uint64_t{64} << 20;
  uint64_t ttl_hours = 24;
  std::optional<uint64_t> daily_bytes = {};  // RemoteOptions::daily_bytes
  Secret fleet{};
  Digest identity{};
  RecordShape shape;
  std::string epochs =
      {};  // RemoteEpochs' folder: beside the disk's records, where there is a disk
  bool has_disk = false;
  std::vector<Digest> owners = {};  // of which the disk has records: followed from the start
  // How long an operation may take beyond four times the usual before it is a stall.
  uint64_t stall_ns = 20'000'000;
  uint64_t again_ns = 60'000'000'000;  // until an erase here that failed is tried again
  uint32_t num_names = 1u << 17;       // a power of two

  uint64_t value_bytes() const { return RawValueBytes(shape); }
  uint32_t num_buffers() const {
    return static_cast<uint32_t>(memory_bytes / RoundUp(value_bytes(), 64));
  }
};

}  // namespace kvasir
