// Reads bytes as a store's replies, in pieces of any size. Nothing beyond the caller's memory is
// written, and a wrong reply closes the connection.
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>

#include "base/check.h"
#include "fuzz_target.h"
#include "remote/redis_connection.h"

namespace kvasir {
namespace {

constexpr size_t kMostReplyBytes = 32768;  // what a socket takes without a reader
constexpr size_t kBulkBytes = 24, kGuardBytes = 8;

void ReadReplies(const uint8_t* data, size_t size) {
  int ends[2];
  KV_CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) == 0);
  RedisConnection connection;
  connection.Adopt(Descriptor(ends[0]));
  const Descriptor other(ends[1]);
  KV_CHECK(send(other.fd(), data, size, MSG_NOSIGNAL) == static_cast<ssize_t>(size));
  shutdown(other.fd(), SHUT_WR);
  const auto waits = [] { return true; };
  std::array<std::byte, kBulkBytes + kGuardBytes> bulk{};
  const std::span<std::byte> room = std::span(bulk).first(kBulkBytes);
  for (bool wants_bulk = false; connection.is_open(); wants_bulk = !wants_bulk) {
    if (wants_bulk) {
      const auto text = connection.ReadBulk(room, waits);
      KV_CHECK(text ? text->size() <= kBulkBytes : !connection.is_open());
    } else {
      const auto reply = connection.Read(room, waits);
      KV_CHECK(reply || !connection.is_open());
      if (reply && reply->kind == RedisReply::Kind::kBulk) {
        KV_CHECK(reply->number >= 0 && reply->number <= static_cast<int64_t>(kBulkBytes));
      }
    }
    for (size_t i = kBulkBytes; i < bulk.size(); ++i) KV_CHECK(bulk[i] == std::byte{0});
  }
}

}  // namespace
}  // namespace kvasir

KV_FUZZ_TARGET(resp)(const uint8_t* data, size_t size) {
  kvasir::ReadReplies(data, std::min(size, kvasir::kMostReplyBytes));
  return 0;
}
