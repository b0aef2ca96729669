// How a server divides EngineOptions::request_memory_bytes.
#pragma once

#include <algorithm>
#include <cstdint>

#include "server/server.h"

namespace kvasir {

inline constexpr uint32_t kHeadBytes = 32 << 10;       // of a request, at most
inline constexpr uint64_t kSmallBodyBytes = 32 << 10;  // more counts in ConnectionSet
inline constexpr uint32_t kIoThreads = 2;              // each parses one request at a time
// Parsing, rendering and tokenizing a body takes at most this many times its size: worst are texts
// of one letter and a space, and lists of one-digit ids (tests/server_memory_test.py measures).
inline constexpr uint64_t kParseFactor = 12;

// Of all request memory: three quarters parse, an eighth is what connections hold, a sixteenth
// large bodies that are being read, a sixteenth requests that wait or run (engine.cc).
struct RequestMemory {
  uint64_t max_body_bytes;
  uint32_t max_connections;
  uint64_t large_bodies_bytes;
};

inline RequestMemory Divide(uint64_t request_memory_bytes, const ServerOptions& options) {
  const uint64_t per_connection = kHeadBytes + kSmallBodyBytes;
  return {.max_body_bytes = std::min(options.max_body_bytes,
                                     request_memory_bytes * 3 / 4 / (kIoThreads * kParseFactor)),
          .max_connections = static_cast<uint32_t>(std::min<uint64_t>(
              options.max_connections, request_memory_bytes / 8 / per_connection)),
          .large_bodies_bytes = request_memory_bytes / 16};
}

}  // namespace kvasir
