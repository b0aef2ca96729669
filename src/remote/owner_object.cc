#include "remote/owner_object.h"

#include <array>
#include <span>

#include "base/random_bytes.h"
#include "base/result.h"

namespace kvasir {
namespace {

constexpr const char* kLastByte = "96";  // one more than an object has: what is longer is seen
static_assert(kOwnerObjectBytes == 96);

}  // namespace

// GETRANGE, so that a value of any length is read as one of 97 bytes at most.
void AppendReadOwner(std::string& text, std::string_view name) {
  AppendCommand(text, {"GETRANGE", name, "0", kLastByte});
}

Result<StoredOwner> ReadOwnerReply(RedisConnection& connection, const FleetKeys& keys,
                                   std::string_view name, const RedisConnection::Waits& waits) {
  std::array<std::byte, kOwnerObjectBytes + 1> bytes;
  KV_ASSIGN(const RedisReply reply, connection.Read(bytes, waits));
  if (reply.kind == RedisReply::Kind::kError && reply.text.starts_with("WRONGTYPE")) {
    return StoredOwner{.is_there = true, .epoch = std::nullopt};
  }
  if (reply.kind == RedisReply::Kind::kError) return Fail(Code::kUnavailable, "{}", reply.text);
  if (reply.kind != RedisReply::Kind::kBulk) {
    connection.Close();
    return Fail(Code::kCorruption, "the store sent another kind of reply than a bulk");
  }
  const auto size = static_cast<size_t>(reply.number);
  return StoredOwner{.is_there = size > 0,
                     .epoch = keys.OpenOwner(name, std::span<const std::byte>(bytes).first(size))};
}

Result<StoredOwner> ReadOwner(RedisConnection& connection, const FleetKeys& keys,
                              std::string_view name, const RedisConnection::Waits& waits) {
  std::string text;
  AppendReadOwner(text, name);
  KV_TRY(connection.Send(text, waits));
  return ReadOwnerReply(connection, keys, name, waits);
}

Result<bool> WriteOwner(RedisConnection& connection, const FleetKeys& keys, std::string_view name,
                        const OwnerEpoch& epoch, IfThere if_there,
                        const RedisConnection::Waits& waits) {
  RecordSalt salt;
  KV_TRY(FillRandom(salt));
  const auto sealed = keys.SealOwner(name, epoch, salt);
  if (!sealed) return Fail(Code::kExhausted, "no memory to seal an owner object");
  const std::string_view text(reinterpret_cast<const char*>(sealed->data()), sealed->size());
  KV_ASSIGN(const RedisReply set, if_there == IfThere::kKeep
                                      ? connection.Ask({"SET", name, text, "NX"}, {}, waits)
                                      : connection.Ask({"SET", name, text}, {}, waits));
  if (set.is_ok()) return true;
  if (if_there == IfThere::kKeep && set.kind == RedisReply::Kind::kNil) return false;
  return Fail(Code::kUnavailable, "{}", set.text);
}

}  // namespace kvasir
