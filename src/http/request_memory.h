// The division of EngineOptions::request_memory_bytes among a server's tasks.
#pragma once

#include <algorithm>
#include <cstdint>

namespace kvasir {

inline constexpr uint32_t kHeadBytes = 32 << 10;  // limit of a request's headers
// Bytes beyond this count in ConnectionSet: of a body, then of its answer (kept until the client
// has read it; the piece that is being written reuses the memory of the headers).
inline constexpr uint64_t kSmallBodyBytes = 32 << 10;
// OpenSSL's memory for a connection in ordinary use; a handshake may take 210 KiB until its end.
inline constexpr uint64_t kTlsBytes = 64 << 10;
inline constexpr uint32_t kIoThreads = 2;
// Usual limit of the memory for parsing, rendering and tokenizing a body, as a multiple of its
// size. Hostile bodies take more and fail when the quota is used up (server/prepare_pool.h).
inline constexpr uint64_t kPrepareFactor = 12;

// Kept for /metrics, so that it can be read while other answers fill their part. With the series of
// as many tenants as there may be it has half a MiB.
inline constexpr uint64_t kMetricsBytes = uint64_t{2} << 20;

// Divides the request memory into twentieths: twelve for preparing requests (two of them only for
// small bodies), two for connections, one for large bodies that are read or wait to be prepared,
// four for answers that are not sent yet, one for requests that wait or run (kWaitingShare). Those
// for large bodies give at most one to metrics (kMetricsBytes).
struct RequestMemory {
  uint64_t max_body_bytes;
  uint32_t max_connections;
  uint64_t large_bodies_bytes;
  uint64_t answers_bytes;
  uint64_t metrics_bytes;
  uint64_t prepare_small_bytes;
  uint64_t prepare_large_bytes;
};

// Divides it, with at most `max_body_bytes` for a body, and `max_connections`, each of which takes
// `more_bytes` beside those of its request.
inline RequestMemory Divide(uint64_t request_memory_bytes, uint64_t max_body_bytes,
                            uint32_t max_connections, uint64_t more_bytes = 0) {
  const uint64_t share = request_memory_bytes / 20;
  const uint64_t metrics_bytes = std::min(share, kMetricsBytes);
  const uint64_t per_connection = kHeadBytes + kSmallBodyBytes + more_bytes;
  return {.max_body_bytes = std::min(max_body_bytes, 6 * share / kPrepareFactor),
          .max_connections = static_cast<uint32_t>(
              std::min<uint64_t>(max_connections, 2 * share / per_connection)),
          .large_bodies_bytes = share,
          .answers_bytes = 4 * share,
          .metrics_bytes = metrics_bytes,
          .prepare_small_bytes = 2 * share,
          .prepare_large_bytes = 10 * share - metrics_bytes};
}

}  // namespace kvasir
