// SessionStore: stored responses, which make room for each other.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/log.h"
#include "base/result.h"
#include "base/sizes.h"
#include "session/session_store_impl.h"

namespace kvasir {

// Removes responses from the table first, so that no call finds one of which half is gone. One that
// stays in the file is found again after a restart: it is the tenant's, which has not deleted it.
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
    if (gone) continue;
    Log(LogLevel::kWarning, "a response that had to go for newer ones stays in the file",
        LogField("why", gone.error().message));
  }
  return !dead.empty();
}

uint64_t SessionStore::Removals(std::string_view tenant) const {
  const MutexLock lock(impl_->mutex);
  return impl_->RemovalsOf(SessionOwnerOf(tenant));
}

// Tells whether the owner removed this response while, or just before, what goes on from it is
// answered; true also where so many were removed that it is not known any more.
bool SessionStore::Impl::WasRemoved(const SessionOwner& owner, std::string_view response) const {
  const auto found = removed_responses.find(owner);
  if (response.empty() || found == removed_responses.end()) return false;
  return found->second.has_left ||
         std::ranges::find(found->second.ids, response) != found->second.ids.end();
}

void SessionStore::Impl::NoteRemoved(const StoredSession& response) {
  Removed& removed = removed_responses[response.owner];
  if (removed.ids.size() == kMostRemoved) {
    removed.ids.pop_front();
    removed.has_left = IsAnswering(response.owner);
  }
  removed.ids.push_back(response.id);
}

bool SessionStore::Impl::IsAnswering(const SessionOwner& owner) const {
  return std::ranges::any_of(running, [&](const auto& one) { return one.second->owner == owner; });
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
    return Fail(Code::kExhausted, "you have {}, and {} (--responses)",
                CountText(places.used_by(owner_), "response"), MayHave(places, owner_));
  }
  void Leave() { is_taken_ = false; }

 private:
  SessionStore::Impl& impl_;
  const SessionOwner owner_;
  bool is_taken_ = false;
};

// Makes a response that no table has.
std::shared_ptr<StoredSession> NewResponse(std::string_view tenant, std::string id) {
  auto response = std::make_shared<StoredSession>();
  response->id = std::move(id);
  response->tenant = tenant;
  response->owner = SessionOwnerOf(tenant);
  response->kind = SessionKind::kResponse;
  response->created_s = UnixS();
  response->removed = true;
  return response;
}

}  // namespace

std::shared_ptr<SessionStore::Turn> SessionStore::Announce(std::string_view tenant,
                                                           std::string id) {
  const std::shared_ptr<StoredSession> response = NewResponse(tenant, std::move(id));
  const Share share{response->owner, response->kind};
  auto place = std::make_shared<Turn::Place>(impl_, share, Counts::kNot);
  place->session = response;
  const MutexLock lock(impl_->mutex);
  if (!impl_->IsAnswering(response->owner)) {
    const auto removed = impl_->removed_responses.find(response->owner);
    if (removed != impl_->removed_responses.end()) removed->second.has_left = false;
  }
  response->queue.push_back(&place->waiting);
  impl_->running[response->id] = response;
  return std::shared_ptr<Turn>(new Turn(std::move(place)));
}

// Writes the row only while the tenant's removals are `removals`: an erase of all of the tenant
// counts itself before it takes the rows, so no row is left that is written later.
Status SessionStore::Store(std::string_view tenant, std::string id, uint64_t removals,
                           const MakeState& make, std::string_view previous) {
  Sweep();
  Impl& impl = *impl_;
  const SessionOwner owner = SessionOwnerOf(tenant);
  std::shared_ptr<StoredSession> response;
  {
    const MutexLock lock(impl.mutex);
    response = impl.FindRunning(owner, id);
  }
  if (!response) response = NewResponse(tenant, std::move(id));
  ResponsePlace place(impl, owner);
  KV_TRY(impl.Evicting(owner, [&] { return place.Take(); }));
  SessionStore own(impl_, {owner, SessionKind::kResponse});
  std::shared_ptr<const EntryBytes> entry;
  std::shared_ptr<const SessionState> stored;
  KV_ASSIGN(stored, impl.Evicting(owner, [&]() -> Result<std::shared_ptr<const SessionState>> {
    entry = nullptr;
    KV_ASSIGN(entry, own.Keep(EntryBytes()));
    KV_ASSIGN(SessionState state, make(own));
    return own.Keep(std::move(state));
  }));
  const auto may = [&] {
    const MutexLock lock(impl.mutex);
    return impl.RemovalsOf(owner) == removals && !impl.WasRemoved(owner, previous);
  };
  const std::shared_ptr<SessionFile> to = stored->setup->on_disk ? file() : nullptr;
  if (to) {
    const SessionRecord record{.id = response->id,
                               .tenant = response->tenant,
                               .created_s = response->created_s,
                               .identity = {},
                               .state = *stored};
    KV_TRY(
        impl.Evicting(owner, [&] { return to->Write(record, 1, SessionFile::Scrub::kNo, may); }));
  }
  {
    const MutexLock lock(impl.mutex);
    // With a row it was stored before what it goes on from was removed.
    if (impl.RemovalsOf(owner) == removals && (to || !impl.WasRemoved(owner, previous))) {
      if (impl.HasLeft(to)) return {};
      response->state = std::move(stored);
      response->row_number = to ? 1 : 0;
      {
        const MutexLock memory_lock(impl.memory->mutex);
        impl.memory->shares.Add(owner, kStoredSessionBytes);
        impl.memory->responses.Add(owner, kStoredSessionBytes);
      }
      impl.Add(std::move(response));
      place.Leave();
      return {};
    }
  }
  // The erase takes the row, unless it had another file.
  if (to) KV_TRY(to->Remove(owner, response->id));
  return Fail(Code::kCancelled, "what it says, or goes on from, was removed");
}

}  // namespace kvasir
