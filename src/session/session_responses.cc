// SessionStore: stored responses, which make room for each other.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/log.h"
#include "base/result.h"
#include "session/session_store_impl.h"

namespace kvasir {

// The table forgets them first, so that no call finds one of which half is gone. One that stays in
// the file is found again after a restart: it is the tenant's, which has not deleted it.
bool SessionStore::Impl::EvictResponses(const SessionOwner& owner, size_t most) {
  std::vector<std::string> with_row;  // ids
  std::shared_ptr<SessionFile> now;
  std::vector<std::shared_ptr<const void>> dead;  // ends without the mutex
  {
    const MutexLock lock(mutex);
    const auto own = responses.find(owner);
    if (own == responses.end()) return false;
    std::vector<StoredSession*> idle;
    for (StoredSession* one : own->second) {
      if (idle.size() == most) break;
      if (one->queue.empty()) idle.push_back(one);
    }
    for (StoredSession* one : idle) {
      if (one->row_number > 0) with_row.push_back(one->id);
      Remove(*one, &dead);
    }
    now = file;
  }
  for (const std::string& id : with_row) {
    const Status gone = now ? now->Remove(owner, id) : Status();
    if (gone || gone.error().code == Code::kNotFound) continue;
    Log(LogLevel::kWarning, "a response that had to go for newer ones stays in the file",
        LogField("why", gone.error().message));
  }
  return !dead.empty();
}

uint64_t SessionStore::Removals(std::string_view tenant) const {
  const MutexLock lock(impl_->mutex);
  const auto it = impl_->removals.find(SessionOwnerOf(tenant));
  return it == impl_->removals.end() ? 0 : it->second;
}

namespace {

// A response's place, which is given back unless the table has it. One thread.
class ResponsePlace {
 public:
  ResponsePlace(SessionStore::Impl& impl, const SessionOwner& owner) : impl_(impl), owner_(owner) {}
  ~ResponsePlace() {
    if (!is_taken_) return;
    const MutexLock lock(impl_.mutex);
    impl_.response_places.Give(owner_, 1);
  }
  ResponsePlace(const ResponsePlace&) = delete;
  ResponsePlace& operator=(const ResponsePlace&) = delete;

  Status Take() {
    const MutexLock lock(impl_.mutex);
    Shares& places = impl_.response_places;
    is_taken_ = places.Take(owner_, 1);
    if (is_taken_) return {};
    return Fail(Code::kExhausted, "you have {} responses, and {} (--responses)",
                places.used_by(owner_), MayHave(places, owner_));
  }
  void Leave() { is_taken_ = false; }

 private:
  SessionStore::Impl& impl_;
  const SessionOwner owner_;
  bool is_taken_ = false;
};

// The memory of the table's entry, until the table has it.
struct EntryBytes {
  uint64_t HeldBytes() const { return kStoredSessionBytes; }
};

}  // namespace

// Tells whether all of the tenant's were removed meanwhile, or the one that it goes on from.
bool SessionStore::Impl::WasRemoved(const StoredSession& response, uint64_t removals_before,
                                    std::string_view previous) const {
  const auto now = removals.find(response.owner);
  if ((now == removals.end() ? 0 : now->second) != removals_before) return true;
  return std::ranges::any_of(removed_responses, [&](const auto& one) {
    return one.first == response.owner && one.second == previous;
  });
}

// Puts a response into the table, unless it WasRemoved.
bool SessionStore::Impl::AddUnlessRemoved(std::shared_ptr<StoredSession> response,
                                          uint64_t removals_before, std::string_view previous) {
  const MutexLock lock(mutex);
  if (WasRemoved(*response, removals_before, previous)) return false;
  {
    const MutexLock memory_lock(memory->mutex);
    memory->shares.Add(response->owner, kStoredSessionBytes);
    memory->responses.Add(response->owner, kStoredSessionBytes);
  }
  Add(std::move(response));
  return true;
}

Status SessionStore::Store(std::string_view tenant, std::string id, uint64_t removals,
                           const MakeState& make, std::string_view previous) {
  auto response = std::make_shared<StoredSession>();
  response->id = std::move(id);
  response->tenant = tenant;
  response->owner = SessionOwnerOf(tenant);
  response->kind = SessionKind::kResponse;
  response->created_s = UnixS();
  Sweep();
  Impl& impl = *impl_;
  const SessionOwner& owner = response->owner;
  ResponsePlace place(impl, owner);
  KV_TRY(impl.Evicting(owner, [&] { return place.Take(); }));
  SessionStore own(impl_, {owner, SessionKind::kResponse});
  std::shared_ptr<const EntryBytes> entry;
  KV_ASSIGN(response->state, impl.Evicting(owner, [&] {
    return impl.MakingRoom(owner, [&]() -> Result<std::shared_ptr<const SessionState>> {
      entry = nullptr;
      KV_ASSIGN(entry, own.Keep(EntryBytes()));
      KV_ASSIGN(SessionState state, make(own));
      return own.Keep(std::move(state));
    });
  }));
  const std::shared_ptr<SessionFile> to = response->state->setup->on_disk ? file() : nullptr;
  const SessionRecord record{.id = response->id,
                             .tenant = response->tenant,
                             .created_s = response->created_s,
                             .identity = {},
                             .state = *response->state};
  const auto was_removed =
      Fail(Code::kCancelled, "it was removed, or what it goes on from, while it was made");
  {
    const MutexLock lock(impl.mutex);
    if (impl.WasRemoved(*response, removals, previous)) return was_removed;
  }
  if (to) {
    KV_TRY(impl.Evicting(owner, [&] { return to->Write(record, 1, SessionFile::Scrub::kNo); }));
    response->row_number = 1;
  }
  if (impl.AddUnlessRemoved(std::move(response), removals, previous)) {
    place.Leave();
    return {};
  }
  // The row may have been written after the others were erased.
  if (to) KV_TRY(to->Remove(SessionOwnerOf(tenant), record.id));
  return was_removed;
}

}  // namespace kvasir
