#include "remote/owner_object.h"

#include <span>

#include "base/random_bytes.h"
#include "base/result.h"

namespace kvasir {
namespace {

constexpr int kChanges = 16;  // by other machines, one after the other

Result<OwnerObject> SealedOwner(const FleetKeys& keys, std::string_view name,
                                const OwnerEpoch& epoch) {
  RecordSalt salt;
  KV_TRY(FillRandom(salt));
  const auto sealed = keys.SealOwner(name, epoch, salt);
  if (!sealed) return Fail(Code::kExhausted, "no memory to seal an owner object");
  return *sealed;
}

}  // namespace

StoreRequest PeekOwner(const std::string& name, OwnerBytes& bytes) {
  return {.what = StoreRequest::What::kPeek, .name = name, .into = bytes};
}

Result<StoredOwner> OwnerOfReply(const StoreReply& reply, const FleetKeys& keys,
                                 std::string_view name, const OwnerBytes& bytes) {
  switch (reply.outcome) {
    case StoreReply::Outcome::kRefused:
      return Fail(Code::kUnavailable, "{}", reply.words);
    case StoreReply::Outcome::kNot:
      return StoredOwner{};
    case StoreReply::Outcome::kForeign:
      return StoredOwner{.is_there = true, .epoch = std::nullopt};
    case StoreReply::Outcome::kDone:
      break;
  }
  return StoredOwner{.is_there = true,
                     .epoch = keys.UnsealOwner(name, std::span(bytes).first(reply.bytes))};
}

Result<StoredOwner> ReadOwner(StoreClient& client, const FleetKeys& keys, const std::string& name,
                              const StoreClient::Waits& waits) {
  OwnerBytes bytes;
  KV_ASSIGN(const StoreReply reply, client.Ask(PeekOwner(name, bytes), waits));
  return OwnerOfReply(reply, keys, name, bytes);
}

Result<bool> MakeOwner(StoreClient& client, const FleetKeys& keys, const std::string& name,
                       const OwnerEpoch& epoch, const StoreClient::Waits& waits) {
  KV_ASSIGN(const OwnerObject sealed, SealedOwner(keys, name, epoch));
  KV_ASSIGN(
      const StoreReply made,
      client.Ask({.what = StoreRequest::What::kPutNew, .name = name, .value = sealed}, waits));
  if (made.is_refused()) return Fail(Code::kUnavailable, "{}", made.words);
  return made.is_done();
}

Status RemoveOwner(StoreClient& client, const FleetKeys& keys, const Digest& owner,
                   const StoreClient::Waits& waits) {
  std::string page;
  do {
    KV_ASSIGN(StorePage found, client.List(keys.OwnerName(owner), page, waits));
    for (const std::string& name : found.names) {
      KV_ASSIGN(const StoreReply reply,
                client.Ask({.what = StoreRequest::What::kRemove, .name = name}, waits));
      if (reply.is_refused()) return Fail(Code::kUnavailable, "{}", reply.words);
    }
    page = std::move(found.next);
  } while (!page.empty());
  return {};
}

Result<StoredOwner> ChangeOwner(StoreClient& client, const FleetKeys& keys, const std::string& name,
                                const NextOwner& next, const StoreClient::Waits& waits) {
  for (int i = 0; i < kChanges; ++i) {
    OwnerBytes bytes;
    KV_ASSIGN(const StoreReply watched, client.Watch(name, bytes, waits));
    KV_ASSIGN(const StoredOwner stored, OwnerOfReply(watched, keys, name, bytes));
    KV_ASSIGN(const std::optional<OwnerEpoch> epoch, next(stored));
    if (!epoch) {
      KV_TRY(client.Unwatch(waits));
      return stored;
    }
    KV_ASSIGN(const OwnerObject sealed, SealedOwner(keys, name, *epoch));
    KV_ASSIGN(const bool is_written, client.Replace(name, sealed, waits));
    if (is_written) return StoredOwner{.is_there = true, .epoch = epoch};
  }
  return Fail(Code::kUnavailable, "other machines change an owner's object all the time");
}

}  // namespace kvasir
