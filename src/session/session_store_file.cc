// SessionStore: the file in which sessions outlive the process.
#include <utility>

#include "base/clock.h"
#include "base/result.h"
#include "session/session_store_impl.h"

namespace kvasir {

// Returns a session as it is, read from the file if it is not in memory.
Result<SessionStore::Entry> SessionStore::Impl::Load(
    SessionStore& store, const std::shared_ptr<StoredSession>& session) {
  std::shared_ptr<SessionFile> from;
  {
    const MutexLock lock(mutex);
    if (session->removed) return tl::unexpected(NoSession());
    if (session->state) return EntryOf(*session);
    from = file;
  }
  auto read =
      MakingRoom(session->owner, [&] { return from->Read(store, session->owner, session->id); });
  if (!read && read.error().code == Code::kNotFound) return tl::unexpected(NoSession());
  if (!read) return tl::unexpected(read.error());
  KV_ASSIGN(std::shared_ptr<const SessionState> state, store.Keep(std::move(read->state)));
  const MutexLock lock(mutex);
  if (session->removed) return tl::unexpected(NoSession());
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
  KV_ASSIGN(const std::vector<SessionFile::Row> rows, file->List());
  std::vector<std::shared_ptr<const void>> dead;
  const MutexLock lock(impl_->mutex);
  for (auto& [id, session] : impl_->by_id) session->row_number = 0;
  for (const SessionFile::Row& row : rows) {
    if (!row.is_readable()) continue;
    std::shared_ptr<StoredSession>& session = impl_->by_id[row.id];
    if (session) {
      session->row_number = row.number;
      continue;
    }
    session = std::make_shared<StoredSession>();
    session->id = row.id;
    session->owner = row.owner;
    session->row_number = row.number;
    impl_->places.Add(row.owner, 1);
    {
      const MutexLock memory_lock(impl_->memory->mutex);
      impl_->memory->shares.Add(row.owner, kStoredSessionBytes);
    }
    impl_->Add(std::shared_ptr<StoredSession>(session));
  }
  std::vector<StoredSession*> lost;
  for (auto& [id, session] : impl_->by_id) {
    if (session->row_number == 0 && !session->state) lost.push_back(session.get());
  }
  for (StoredSession* one : lost) impl_->Remove(*one, &dead);
  file->SetWeights(impl_->weights);
  impl_->file = std::move(file);
  impl_->no_file.reset();
  return {};
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
    const auto turn = Queue(
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
