// Reads bytes as a node's reply to CLUSTER SLOTS, and its first line as an error that may send a
// command elsewhere. A map has only nodes that it names, and few of them.
#include <sys/socket.h>

#include <algorithm>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "fuzz_target.h"
#include "remote/redis_slots.h"

namespace kvasir {
namespace {

constexpr size_t kMostSlotsBytes = 32768;  // what a socket takes without a reader

void ReadMap(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  if (const auto redirect = ParseRedirect(text.substr(0, text.find('\n')))) {
    KV_CHECK(redirect->slot < kRedisSlots && redirect->to.port > 0);
  }
  int ends[2];
  KV_CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) == 0);
  RedisConnection connection;
  connection.Adopt(Descriptor(ends[0]));
  const Descriptor other(ends[1]);
  KV_CHECK(send(other.fd(), data, size, MSG_NOSIGNAL) == static_cast<ssize_t>(size));
  shutdown(other.fd(), SHUT_WR);
  const auto slots = ReadSlots(connection, {.host = "asked", .port = 7}, [] { return true; });
  if (!slots) {
    KV_CHECK(slots.error().code == Code::kUnavailable || !connection.is_open());
    return;
  }
  KV_CHECK(!slots->nodes.empty() && slots->nodes.size() <= RedisSlots::kMostNodes);
  for (const uint8_t number : slots->node_of) KV_CHECK(number < slots->nodes.size());
}

}  // namespace
}  // namespace kvasir

KV_FUZZ_TARGET(redis_slots)(const uint8_t* data, size_t size) {
  kvasir::ReadMap(data, std::min(size, kvasir::kMostSlotsBytes));
  return 0;
}
