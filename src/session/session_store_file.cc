// SessionStore: the file in which sessions outlive the process.
#include <algorithm>
#include <cstdint>
#include <utility>

#include "base/clock.h"
#include "base/result.h"
#include "session/session_store_impl.h"

namespace kvasir {

// Returns a session as it is, read from the file if it is not in memory.
Result<SessionStore::Entry> SessionStore::Impl::Load(
    const std::shared_ptr<StoredSession>& session) {
  std::shared_ptr<SessionFile> from;
  {
    const MutexLock lock(mutex);
    if (session->removed) return tl::unexpected(Missing(session->kind));
    if (session->state) return EntryOf(*session);
    from = file;
  }
  SessionStore store(shared_from_this(), {session->owner, session->kind});
  auto read = from->Read(store, session->owner, session->id);
  if (!read && read.error().code == Code::kNotFound)
    return tl::unexpected(NoSession(session->kind));
  if (!read) return tl::unexpected(read.error());
  KV_ASSIGN(std::shared_ptr<const SessionState> state, store.Keep(std::move(read->state)));
  const MutexLock lock(mutex);
  if (session->removed) return tl::unexpected(Missing(session->kind));
  if (!session->state) {  // else another call was first, and it may have changed since
    session->state = std::move(state);
    session->tenant = read->tenant;
    session->created_s = read->created_s;
    session->by_use = by_use.insert(by_use.end(), session.get());
    Use(*session);
  }
  return EntryOf(*session);
}

std::shared_ptr<SessionFile> SessionStore::file() const {
  const MutexLock lock(impl_->mutex);
  return impl_->file;
}

Status SessionStore::UseFile(std::shared_ptr<SessionFile> file) {
  KV_ASSIGN(std::vector<SessionFile::Row> rows, file->List());
  // Responses come after sessions, used longest ago first.
  std::ranges::stable_sort(rows, {}, [](const SessionFile::Row& row) {
    return KindOfId(row.id) == SessionKind::kResponse ? row.used_s : INT64_MIN;
  });
  std::vector<std::shared_ptr<const void>> dead;
  const MutexLock lock(impl_->mutex);
  for (auto& [id, session] : impl_->by_id) session->row_number = 0;
  for (const SessionFile::Row& row : rows) {
    const SessionKind kind = KindOfId(row.id);
    const bool is_response = kind == SessionKind::kResponse;
    // One that the store is not for stays in the file.
    const bool is_for =
        (is_response ? impl_->limits.max_responses : impl_->limits.max_sessions) > 0;
    if (!row.is_readable() || !is_for) continue;
    std::shared_ptr<StoredSession>& session = impl_->by_id[row.id];
    if (session) {
      session->row_number = row.number;
      continue;
    }
    session = std::make_shared<StoredSession>();
    session->id = row.id;
    session->owner = row.owner;
    session->kind = kind;
    session->row_number = row.number;
    (is_response ? impl_->response_places : impl_->places).Add(row.owner, 1);
    {
      const MutexLock memory_lock(impl_->memory->mutex);
      impl_->memory->shares.Add(row.owner, kStoredSessionBytes);
      if (is_response) impl_->memory->responses.Add(row.owner, kStoredSessionBytes);
    }
    impl_->Add(std::shared_ptr<StoredSession>(session));
  }
  std::vector<StoredSession*> lost;
  for (auto& [id, session] : impl_->by_id) {
    if (session->row_number == 0 && !session->state) lost.push_back(session.get());
  }
  for (StoredSession* one : lost) impl_->Remove(*one, &dead);
  impl_->unreadable = static_cast<uint64_t>(std::ranges::count_if(rows, [](const auto& row) {
    return !row.is_readable() && KindOfId(row.id) == SessionKind::kSession;
  }));
  file->SetWeights(impl_->weights);
  impl_->file = std::move(file);
  impl_->no_file.reset();
  return {};
}

void SessionStore::LeaveFile(Error why) {
  std::vector<std::shared_ptr<const void>> dead;  // ends without the mutex, as the file does
  const MutexLock lock(impl_->mutex);
  dead.push_back(std::exchange(impl_->file, nullptr));
  impl_->no_file = std::move(why);
  impl_->unreadable = 0;
  for (auto next = impl_->by_number.begin(); next != impl_->by_number.end();) {
    StoredSession& session = *(next++)->second;
    if (session.row_number > 0) impl_->Remove(session, &dead);
  }
}

void SessionStore::set_no_file(Error why) {
  const MutexLock lock(impl_->mutex);
  if (!impl_->file) impl_->no_file = std::move(why);
}

std::optional<Error> SessionStore::no_file() const {
  const MutexLock lock(impl_->mutex);
  return impl_->no_file;
}

// Writes sessions that were made while there was no file, or that another file had.
Status SessionStore::WriteUnwritten() {
  std::vector<std::pair<std::string, std::string>> unwritten;
  {
    const MutexLock lock(impl_->mutex);
    for (const auto& [number, session] : impl_->by_number) {
      const bool is_wanted = session->state && session->state->setup->on_disk;
      if (is_wanted && session->row_number == 0) {
        unwritten.emplace_back(session->tenant, session->id);
      }
    }
  }
  Status failed;  // one that does not fit keeps none of the others from the file
  for (const auto& [tenant, id] : unwritten) {
    SessionStore of_kind(impl_, {{}, KindOfId(id)});
    const auto turn = of_kind.Queue(
        tenant, id, [] {}, Counts::kNot);
    if (!turn || !(*turn)->has_come()) continue;  // the change that is under way writes it
    const Result<Entry> entry = (*turn)->Read();
    const Status written =
        entry ? (*turn)->Replace(SessionState(*entry->state)) : tl::unexpected(entry.error());
    if (!written) failed = written;
  }
  return failed;
}

Status SessionStore::SweepFile() {
  Sweep();
  const std::shared_ptr<SessionFile> from = file();
  if (!from) return {};
  Status written = WriteUnwritten();
  KV_ASSIGN(const std::vector<SessionFile::Row> rows, from->List());
  constexpr int64_t kTouchS = 3600;
  for (const SessionFile::Row& row : rows) {
    if (UnixS() - row.used_s < kTouchS) continue;
    int64_t unused_s = INT64_MAX;
    {
      const MutexLock lock(impl_->mutex);
      const auto it = impl_->by_id.find(row.id);
      if (it != impl_->by_id.end() && it->second->state) {
        unused_s = static_cast<int64_t>((MonotonicNs() - it->second->used_ns) / 1'000'000'000);
      }
    }
    if (unused_s < kTouchS) KV_TRY(from->Touch(row.id));
  }
  KV_ASSIGN(const std::vector<std::string> removed, from->RemoveOld());
  std::vector<std::shared_ptr<const void>> dead;
  const MutexLock lock(impl_->mutex);
  for (const std::string& id : removed) {
    const auto it = impl_->by_id.find(id);
    if (it == impl_->by_id.end()) continue;
    impl_->Remove(*it->second, &dead);
    ++impl_->expired;
  }
  return written;
}

}  // namespace kvasir
