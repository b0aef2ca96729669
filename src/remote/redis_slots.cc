#include "remote/redis_slots.h"

#include <algorithm>
#include <optional>

#include "base/result.h"
#include "base/sizes.h"

namespace kvasir {
namespace {

constexpr std::array<uint16_t, 256> kCrc16 = [] {
  std::array<uint16_t, 256> table{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t crc = byte << 8;
    for (int bit = 0; bit < 8; ++bit) crc = crc << 1 ^ ((crc & 0x8000) != 0 ? 0x1021 : 0);
    table[byte] = static_cast<uint16_t>(crc);
  }
  return table;
}();

// Reads a reply to CLUSTER SLOTS, of which it keeps what is wanted.
class SlotsReader {
 public:
  SlotsReader(RedisConnection& connection, const RedisNode& here,
              const RedisConnection::Waits& waits)
      : connection_(connection), here_(here), waits_(waits) {}

  Result<RedisSlots> Read() {
    KV_ASSIGN(const RedisReply list, Next());
    if (list.kind == RedisReply::Kind::kError) return Fail(Code::kUnavailable, "{}", list.text);
    if (list.kind != RedisReply::Kind::kArray || list.number > kRedisSlots) return Wrong();
    RedisSlots slots;
    for (int64_t i = 0; i < list.number; ++i) KV_TRY(ReadRange(&slots));
    if (slots.nodes.empty()) return Fail(Code::kUnavailable, "no node of the cluster has a slot");
    return slots;
  }

 private:
  static constexpr int kMostElements = 1 << 20, kMostDepth = 4;

  tl::unexpected<Error> Wrong() {
    connection_.Close();
    return Fail(Code::kCorruption, "what the store sent is not a reply to CLUSTER SLOTS");
  }
  Result<RedisReply> Next() {
    if (++elements_ > kMostElements) return Wrong();
    return connection_.Read(bulk_, waits_);
  }
  Status Skip(int64_t elements, int depth = 0) {
    if (depth > kMostDepth) return Wrong();
    for (int64_t i = 0; i < elements; ++i) {
      KV_ASSIGN(const RedisReply one, Next());
      if (one.kind == RedisReply::Kind::kArray) KV_TRY(Skip(one.number, depth + 1));
    }
    return {};
  }
  Result<int64_t> ReadInteger(int64_t most) {
    KV_ASSIGN(const RedisReply one, Next());
    if (one.kind != RedisReply::Kind::kInteger || one.number < 0 || one.number > most) {
      return Wrong();
    }
    return one.number;
  }
  Result<int64_t> ReadArray(int64_t least) {
    KV_ASSIGN(const RedisReply one, Next());
    if (one.kind != RedisReply::Kind::kArray || one.number < least) return Wrong();
    return one.number;
  }
  // Reads a range: its first and last slot, its master, its replicas.
  Status ReadRange(RedisSlots* slots) {
    KV_ASSIGN(const int64_t fields, ReadArray(3));
    KV_ASSIGN(const int64_t first, ReadInteger(kRedisSlots - 1));
    KV_ASSIGN(const int64_t last, ReadInteger(kRedisSlots - 1));
    KV_ASSIGN(const int64_t facts, ReadArray(2));
    KV_ASSIGN(const RedisReply host, Next());
    RedisNode node = here_;
    if (host.kind == RedisReply::Kind::kBulk && host.number > 0) {
      node.host.assign(reinterpret_cast<const char*>(bulk_.data()),
                       static_cast<size_t>(host.number));
    } else if (host.kind != RedisReply::Kind::kBulk && host.kind != RedisReply::Kind::kNil) {
      return Wrong();
    }
    KV_ASSIGN(const int64_t port, ReadInteger(65535));
    node.port = static_cast<uint16_t>(port);
    KV_TRY(Skip(facts - 2));
    KV_TRY(Skip(fields - 3));
    const std::optional<uint8_t> number = slots->NumberOf(node);
    if (!number) {
      connection_.Close();
      return Fail(Code::kUnavailable, "the cluster has over {} masters", RedisSlots::kMostNodes);
    }
    for (int64_t slot = first; slot <= last; ++slot) {
      slots->node_of[static_cast<size_t>(slot)] = *number;
    }
    return {};
  }

  RedisConnection& connection_;
  const RedisNode& here_;
  const RedisConnection::Waits& waits_;
  std::array<std::byte, 256> bulk_;
  int elements_ = 0;
};

}  // namespace

uint16_t SlotOf(std::string_view name) {
  if (const size_t open = name.find('{'); open != std::string_view::npos) {
    const size_t close = name.find('}', open);
    if (close != std::string_view::npos && close > open + 1) {
      name = name.substr(open + 1, close - open - 1);
    }
  }
  uint16_t crc = 0;
  for (const char c : name) {
    crc = static_cast<uint16_t>(crc << 8 ^ kCrc16[(crc >> 8 ^ static_cast<uint8_t>(c)) & 0xFF]);
  }
  return crc % kRedisSlots;
}

std::optional<RedisRedirect> ParseRedirect(std::string_view error) {
  constexpr std::string_view kMoved = "MOVED ", kAsk = "ASK ";
  RedisRedirect redirect{.is_ask = error.starts_with(kAsk), .slot = 0, .to = {}};
  if (!redirect.is_ask && !error.starts_with(kMoved)) return std::nullopt;
  error.remove_prefix(redirect.is_ask ? kAsk.size() : kMoved.size());
  const size_t space = error.find(' '), colon = error.rfind(':');
  if (space == std::string_view::npos || colon == std::string_view::npos || colon < space) {
    return std::nullopt;
  }
  const std::optional<uint64_t> slot = ParseUint(error.substr(0, space)),
                                port = ParseUint(error.substr(colon + 1));
  if (!slot || *slot >= kRedisSlots || !port || *port == 0 || *port > UINT16_MAX) {
    return std::nullopt;
  }
  redirect.slot = static_cast<uint16_t>(*slot);
  redirect.to.port = static_cast<uint16_t>(*port);
  redirect.to.host = error.substr(space + 1, colon - space - 1);
  return redirect;
}

std::optional<uint8_t> RedisSlots::NumberOf(const RedisNode& node) {
  const auto found = std::ranges::find(nodes, node);
  const auto number = static_cast<uint8_t>(found - nodes.begin());
  if (found != nodes.end()) return number;
  if (nodes.size() >= kMostNodes) return std::nullopt;
  nodes.push_back(node);
  return number;
}

Result<RedisSlots> ReadSlots(RedisConnection& connection, const RedisNode& here,
                             const RedisConnection::Waits& waits) {
  std::string text;
  AppendCommand(text, {"CLUSTER", "SLOTS"});
  KV_TRY(connection.Send(text, waits));
  return SlotsReader(connection, here, waits).Read();
}

}  // namespace kvasir
