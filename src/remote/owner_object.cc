#include "remote/owner_object.h"

#include <array>
#include <span>

#include "base/random_bytes.h"
#include "base/result.h"

namespace kvasir {
namespace {

constexpr const char* kLastByte = "96";  // one more than an object has: what is longer is seen
static_assert(kOwnerObjectBytes == 96);
constexpr int kChanges = 16;  // by other machines, one after the other

std::string_view TextOf(const OwnerObject& object) {
  return {reinterpret_cast<const char*>(object.data()), object.size()};
}

Result<OwnerObject> SealedOwner(const FleetKeys& keys, std::string_view name,
                                const OwnerEpoch& epoch) {
  RecordSalt salt;
  KV_TRY(FillRandom(salt));
  const auto sealed = keys.SealOwner(name, epoch, salt);
  if (!sealed) return Fail(Code::kExhausted, "no memory to seal an owner object");
  return *sealed;
}

// Sets a name that the connection watches; false: it has changed since.
Result<bool> SetWatched(RedisConnection& connection, std::string_view name, std::string_view value,
                        const RedisConnection::Waits& waits) {
  std::string text;
  AppendCommand(text, {"MULTI"});
  AppendCommand(text, {"SET", name, value});
  AppendCommand(text, {"EXEC"});
  KV_TRY(connection.Send(text, waits));
  std::string refused;
  for (int i = 0; i < 2; ++i) {
    KV_ASSIGN(const RedisReply queued, connection.Read({}, waits));
    if (queued.kind == RedisReply::Kind::kError && refused.empty()) refused = queued.text;
  }
  KV_ASSIGN(RedisReply done, connection.Read({}, waits));
  if (done.kind == RedisReply::Kind::kNil) return false;
  if (done.kind == RedisReply::Kind::kArray && done.number == 1) {
    KV_ASSIGN(done, connection.Read({}, waits));
    if (done.is_ok()) return true;
  }
  if (done.kind == RedisReply::Kind::kError) {
    return Fail(Code::kUnavailable, "{}", refused.empty() ? done.text : refused);
  }
  connection.Close();
  return Fail(Code::kCorruption, "what the store sent is not a reply to EXEC");
}

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

Result<bool> MakeOwner(RedisConnection& connection, const FleetKeys& keys, std::string_view name,
                       const OwnerEpoch& epoch, const RedisConnection::Waits& waits) {
  KV_ASSIGN(const OwnerObject sealed, SealedOwner(keys, name, epoch));
  KV_ASSIGN(const RedisReply set, connection.Ask({"SET", name, TextOf(sealed), "NX"}, {}, waits));
  if (set.is_ok()) return true;
  if (set.kind == RedisReply::Kind::kNil) return false;
  return Fail(Code::kUnavailable, "{}", set.text);
}

Result<StoredOwner> ChangeOwner(RedisConnection& connection, const FleetKeys& keys,
                                std::string_view name, const NextOwner& next,
                                const RedisConnection::Waits& waits) {
  for (int i = 0; i < kChanges; ++i) {
    KV_ASSIGN(const RedisReply watched, connection.Ask({"WATCH", name}, {}, waits));
    if (!watched.is_ok()) return Fail(Code::kUnavailable, "{}", watched.text);
    KV_ASSIGN(const StoredOwner stored, ReadOwner(connection, keys, name, waits));
    KV_ASSIGN(const std::optional<OwnerEpoch> epoch, next(stored));
    if (!epoch) {
      KV_TRY(connection.Ask({"UNWATCH"}, {}, waits));
      return stored;
    }
    KV_ASSIGN(const OwnerObject sealed, SealedOwner(keys, name, *epoch));
    KV_ASSIGN(const bool is_written, SetWatched(connection, name, TextOf(sealed), waits));
    if (is_written) return StoredOwner{.is_there = true, .epoch = epoch};
  }
  return Fail(Code::kUnavailable, "other machines change an owner's object all the time");
}

}  // namespace kvasir
