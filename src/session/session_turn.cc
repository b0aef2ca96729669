// SessionStore::Turn: calls of one session, one after the other.
#include <algorithm>
#include <unordered_set>
#include <utility>

#include "base/check.h"
#include "base/result.h"
#include "session/session_store_impl.h"

namespace kvasir {

Result<std::shared_ptr<SessionStore::Turn>> SessionStore::Queue(std::string_view tenant,
                                                                std::string_view id,
                                                                std::function<void()> on_turn) {
  return Queue(tenant, id, std::move(on_turn), Counts::kAsUse);
}

Result<std::shared_ptr<SessionStore::Turn>> SessionStore::Queue(std::string_view tenant,
                                                                std::string_view id,
                                                                std::function<void()> on_turn,
                                                                Counts counts) {
  Sweep();
  const Share share{SessionOwnerOf(tenant), share_.kind};
  auto place = std::make_shared<Turn::Place>(impl_, share, counts);
  place->waiting.on_turn = std::move(on_turn);
  const std::shared_ptr<Turn> turn(new Turn(place));
  const MutexLock lock(impl_->mutex);
  std::shared_ptr<StoredSession> session = impl_->Find(share_.kind, tenant, id);
  if (!session && share_.kind == SessionKind::kResponse) {
    session = impl_->FindRunning(share.owner, id);
  }
  if (!session || session->queue.size() > kMaxSessionQueue) {
    turn->place_ = nullptr;
    if (!session) return tl::unexpected(impl_->Missing(share_.kind));
    return Fail(Code::kExhausted,
                "{} calls of this session wait already, and at most {} may; try again later",
                kMaxSessionQueue, kMaxSessionQueue);
  }
  if (!session->removed) impl_->Use(*session, counts);
  session->queue.push_back(&place->waiting);
  place->session = std::move(session);
  return turn;
}

SessionStore::Turn::~Turn() { End(); }

bool SessionStore::Turn::has_come() const {
  const MutexLock lock(place_->store->mutex);
  return place_->session->queue.front() == &place_->waiting;
}

const std::string& SessionStore::Turn::id() const { return place_->session->id; }

SessionStore& SessionStore::Turn::store() { return place_->view; }

bool SessionStore::Turn::on_disk() const {
  const MutexLock lock(place_->store->mutex);
  return place_->session->row_number > 0;
}

Result<SessionStore::Entry> SessionStore::Turn::Read() const {
  KV_CHECK(place_ && has_come());
  return place_->store->Load(place_->session);
}

namespace {

// Returns whether a change only adds messages: then nothing of the old state is forgotten.
bool Extends(const SessionState& state, const SessionState& old) {
  return state.messages.size() >= old.messages.size() &&
         std::equal(old.messages.begin(), old.messages.end(), state.messages.begin());
}

// Returns the bytes of the parts that end when `state` replaces `old`. 0 where a reader has the old
// one.
uint64_t FreedBytes(const std::shared_ptr<const SessionState>& old, const SessionState& state) {
  constexpr int64_t kOwnUses = 3;  // of the table, of the call that changes it, and of Replace
  if (old.use_count() > kOwnUses) return 0;
  std::unordered_set<const void*> stay;
  for (const auto& message : state.messages) stay.insert(message.get());
  for (const auto& path : state.paths) stay.insert(path.get());
  uint64_t bytes = old->HeldBytes();
  const auto add = [&](const auto& parts) {
    for (const auto& part : parts) {
      if (part.use_count() == 1 && !stay.contains(part.get())) bytes += part->HeldBytes();
    }
  };
  add(old->messages);
  add(old->paths);
  return bytes;
}

}  // namespace

Status SessionStore::Turn::Replace(SessionState state, Durable durable) {
  KV_CHECK(place_ && has_come());
  Impl& impl = *place_->store;
  StoredSession& session = *place_->session;
  struct Brief {  // what was kept for this change is like all else after it
    SessionStore& view;
    ~Brief() { view.EndBrief(); }
  } const brief{place_->view};
  KV_ASSIGN(const Entry now, Read());
  const Room room =
      state.HeldBytes() <= now.state->HeldBytes() ? Room::kMayExceed : Room::kWithinLimit;
  const auto scrub =
      Extends(state, *now.state) ? SessionFile::Scrub::kNo : SessionFile::Scrub::kYes;
  const uint64_t freed_bytes = FreedBytes(now.state, state);
  KV_ASSIGN(std::shared_ptr<const SessionState> kept, place_->view.Keep(std::move(state), room));
  Status fits = place_->view.Settle(freed_bytes);
  std::shared_ptr<SessionFile> file;
  uint64_t row_number = 0, removals = 0;
  {
    const MutexLock lock(impl.mutex);
    if (session.removed) return tl::unexpected(impl.Missing(session.kind));
    removals = impl.RemovalsOf(session.owner);
    const bool is_kept = session.row_number > 0 || kept->setup->on_disk;
    if (is_kept && durable != Durable::kLater) file = impl.file;
    row_number = session.row_number + 1;
  }
  if (!fits && !file) return fits;
  if (file) {
    // Where an erase of all has taken no row of it, it must not get its first one.
    const auto may = [&] {
      const MutexLock lock(impl.mutex);
      return row_number > 1 || impl.RemovalsOf(session.owner) == removals;
    };
    const Status written = file->Write({.id = session.id,
                                        .tenant = session.tenant,
                                        .created_s = session.created_s,
                                        .state = *kept},
                                       row_number, scrub, may);
    const bool is_gone = !written && (written.error().code == Code::kNotFound ||
                                      written.error().code == Code::kCancelled);
    if (is_gone) return tl::unexpected(NoSession(session.kind));
    const bool may_have_none = fits && row_number == 1 && durable == Durable::kNowIfKept;
    if (!may_have_none) KV_TRY(written);
    if (!written) file = nullptr;
  }
  std::vector<std::shared_ptr<const void>> dead;  // ends without the mutex
  {
    const MutexLock lock(impl.mutex);
    if (impl.HasLeft(file) && (row_number > 1 || !session.removed)) {
      if (!session.removed) impl.Remove(session, &dead);
      return {};
    }
    if (!session.removed) {
      if (file) session.row_number = row_number;
      // An erase of all that failed meanwhile has taken the old state out of memory.
      if (fits) {
        if (!session.state) session.by_use = impl.by_use.insert(impl.by_use.end(), &session);
        session.state.swap(kept);
      } else if (session.state) {
        impl.Unload(session, &dead);
      }
      impl.Use(session, place_->counts);
      return {};
    }
  }
  // Its first row may have been written after the erase of all.
  if (file && row_number == 1) KV_TRY(file->Remove(session.owner, session.id));
  return tl::unexpected(NoSession(session.kind));
}

Status SessionStore::Turn::Remove() {
  KV_CHECK(place_ && has_come());
  Impl& impl = *place_->store;
  StoredSession& session = *place_->session;
  std::shared_ptr<SessionFile> file;
  {
    const MutexLock lock(impl.mutex);
    if (session.removed) return tl::unexpected(impl.Missing(session.kind));
    if (session.row_number > 0) file = impl.file;
  }
  Status erased;
  if (file) erased = file->Remove(session.owner, session.id);
  std::vector<std::shared_ptr<const void>> dead;
  const MutexLock lock(impl.mutex);
  if (session.removed) return tl::unexpected(impl.Missing(session.kind));
  if (erased) {
    if (session.kind == SessionKind::kResponse) impl.NoteRemoved(session);
    impl.Remove(session, &dead);
  } else if (session.state) {
    impl.Unload(session, &dead);
  }
  return erased;
}

bool SessionStore::Turn::LeaveMemory() {
  KV_CHECK(place_ && has_come());
  std::vector<std::shared_ptr<const void>> dead;
  const MutexLock lock(place_->store->mutex);
  StoredSession& session = *place_->session;
  if (session.removed || session.row_number == 0) return false;
  if (session.state) place_->store->Unload(session, &dead);
  return true;
}

void SessionStore::Turn::End() {
  const std::shared_ptr<Place> place = std::exchange(place_, nullptr);
  if (!place) return;
  place->view.EndBrief();
  std::function<void()> next;
  {
    const MutexLock lock(place->store->mutex);
    StoredSession& session = *place->session;
    const bool had_turn = session.queue.front() == &place->waiting;
    std::erase(session.queue, &place->waiting);
    if (had_turn) place->store->running.erase(session.id);
    if (!session.removed) place->store->Use(session, place->counts);
    if (had_turn && !session.queue.empty()) next = std::move(session.queue.front()->on_turn);
  }
  if (next) next();
}

}  // namespace kvasir
