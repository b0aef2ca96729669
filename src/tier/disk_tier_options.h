// DiskTierOptions: where a disk tier lies, how large it may become, and what its records look like.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/digest.h"
#include "base/secret.h"
#include "kvasir/disk.h"
#include "tier/segment.h"

namespace kvasir {

struct DiskTierOptions {
  std::string folder;
  // The limit of everything in the folder. Absent: a tenth of what is free or ours, at most 20 GiB.
  // The tier's memory depends on this option, never on the free space.
  std::optional<uint64_t> cap_bytes = {};
  uint64_t default_cap_bytes = kDefaultDiskCapBytes;  // in the place of the 20 GiB
  uint64_t ttl_hours = 168;                           // since last use; at least 1
  std::optional<uint64_t> reserve_bytes = {};         // DiskOptions::reserve_bytes
  Secret secret{};
  Digest identity{};
  RecordShape shape;
  std::string model = {}, kv_format = {};  // for about.json
  // 2: the tier's own threads. 0: nothing happens but in RunPending, on its caller's thread.
  uint32_t threads = 2;
  // Whether a file system that does not promise durability is refused (kUnsupported).
  bool needs_durable = false;
  // For tests, which need small ones: absent, by the cap.
  std::optional<uint64_t> segment_bytes = {};
  std::optional<uint32_t> num_buffers = {};  // absent: as many as 32 MiB have

  // Returns the cap that memory and segments are made for: the option alone decides it, so that
  // free space changes neither.
  uint64_t planned_cap_bytes() const { return cap_bytes.value_or(default_cap_bytes); }
  // Returns the bytes of a new segment.
  uint64_t new_segment_bytes() const {
    return segment_bytes.value_or(SegmentBytesFor(shape, planned_cap_bytes()));
  }
};

}  // namespace kvasir
