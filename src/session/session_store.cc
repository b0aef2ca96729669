#include <fmt/format.h>

#include <array>
#include <unordered_set>
#include <utility>

#include "base/clock.h"
#include "base/hex.h"
#include "base/random_bytes.h"
#include "base/result.h"
#include "base/sizes.h"
#include "session/session_store_impl.h"

namespace kvasir {

SessionKind KindOfId(std::string_view id) {
  return id.starts_with("resp_") ? SessionKind::kResponse : SessionKind::kSession;
}

Error NoSession(SessionKind kind) {
  return {Code::kNotFound,
          kind == SessionKind::kResponse
              ? "no response of yours has this id: it was not stored, was deleted, or had to go "
                "for newer ones (--responses, --session-memory)"
              : "no session of yours has this id; GET /v1/sessions lists them"};
}

SessionStore::SessionStore(const SessionLimits& limits) : impl_(std::make_shared<Impl>(limits)) {}
SessionStore::SessionStore(std::shared_ptr<Impl> impl, const Share& share)
    : impl_(std::move(impl)), share_(share) {}
SessionStore::~SessionStore() = default;

SessionStore SessionStore::Of(std::string_view tenant) const {
  return SessionStore(impl_, {SessionOwnerOf(tenant), share_.kind});
}

SessionStore SessionStore::Responses() const {
  return SessionStore(impl_, {share_.owner, SessionKind::kResponse});
}

void SessionStore::SetTenants(const TenantTable& tenants) {
  Shares::Weights weights;
  for (const auto& [name, rules] : tenants) weights[SessionOwnerOf(name)] = rules.weight;
  std::shared_ptr<SessionFile> file;
  {
    const MutexLock lock(impl_->mutex);
    impl_->places.SetWeights(weights);
    impl_->response_places.SetWeights(weights);
    impl_->weights = weights;
    file = impl_->file;
    const MutexLock memory_lock(impl_->memory->mutex);
    impl_->memory->shares.SetWeights(weights);
    impl_->memory->responses.SetWeights(weights);
  }
  if (file) file->SetWeights(weights);
}

Result<SessionStore::Entry> SessionStore::Create(std::string_view tenant, SessionState state,
                                                 std::optional<uint64_t> removals) {
  std::array<uint8_t, 16> random;
  KV_TRY(FillRandom(random));
  auto session = std::make_shared<StoredSession>();
  session->id = "sess_" + ToHex(random);
  session->tenant = tenant;
  session->owner = SessionOwnerOf(tenant);
  session->created_s = UnixS();
  Sweep();
  SessionStore own = Of(tenant);
  KV_ASSIGN(const auto entry, own.Keep(EntryBytes()));
  KV_ASSIGN(session->state, own.Keep(std::move(state)));
  std::shared_ptr<SessionFile> file;
  {
    const MutexLock lock(impl_->mutex);
    if (impl_->limits.max_sessions == 0) {
      return Fail(Code::kExhausted, "this server keeps no sessions (--sessions 0)");
    }
    Shares& places = impl_->places;
    if (!places.Take(session->owner, 1)) {
      return Fail(Code::kExhausted, "you have {}, and {} (--sessions); delete one first",
                  CountText(places.used_by(session->owner), "session"),
                  MayHave(places, session->owner));
    }
    if (session->state->setup->on_disk) file = impl_->file;
  }
  const auto was_erased = [&]() KV_REQUIRES(impl_->mutex) {
    return removals && impl_->RemovalsOf(session->owner) != *removals;
  };
  Status written;
  if (file) {
    const auto may = [&] {
      const MutexLock lock(impl_->mutex);
      return !was_erased();
    };
    written = file->Write({.id = session->id,
                           .tenant = session->tenant,
                           .created_s = session->created_s,
                           .state = *session->state},
                          1, SessionFile::Scrub::kNo, may);
    session->row_number = 1;
  }
  const MutexLock lock(impl_->mutex);
  if (was_erased()) written = tl::unexpected(NoSession(session->kind));  // its row too
  if (!written) {
    impl_->places.Give(session->owner, 1);
    return tl::unexpected(written.error());
  }
  const Entry made = Impl::EntryOf(*session);
  if (impl_->HasLeft(file)) {
    impl_->places.Give(session->owner, 1);
    return made;
  }
  {
    const MutexLock memory_lock(impl_->memory->mutex);
    impl_->memory->shares.Add(session->owner, kStoredSessionBytes);
  }
  impl_->Add(std::move(session));
  return made;
}

Result<SessionStore::Entry> SessionStore::Find(std::string_view tenant, std::string_view id) {
  Sweep();
  std::shared_ptr<StoredSession> session;
  {
    const MutexLock lock(impl_->mutex);
    session = impl_->Find(share_.kind, tenant, id);
    if (!session) return tl::unexpected(impl_->Missing(share_.kind));
    impl_->Use(*session);
  }
  return impl_->Load(session);
}

std::optional<SessionStore::Entry> SessionStore::FindLoaded(std::string_view tenant,
                                                            std::string_view id) {
  Sweep();
  const MutexLock lock(impl_->mutex);
  const std::shared_ptr<StoredSession> session = impl_->Find(share_.kind, tenant, id);
  if (!session || !session->state) return std::nullopt;
  impl_->Use(*session);
  return Impl::EntryOf(*session);
}

Result<SessionStore::Page> SessionStore::List(std::string_view tenant,
                                              std::optional<std::string_view> after, size_t limit) {
  Sweep();
  Page page;
  std::shared_ptr<SessionFile> file;
  const SessionOwner owner = SessionOwnerOf(tenant);
  {
    const MutexLock lock(impl_->mutex);
    if (impl_->no_file && impl_->no_file->code == Code::kUnavailable) {
      return tl::unexpected(*impl_->no_file);
    }
    auto next = impl_->by_number.begin();
    if (after) {
      const std::shared_ptr<StoredSession> last =
          impl_->Find(SessionKind::kSession, tenant, *after);
      if (!last) return tl::unexpected(NoSession(SessionKind::kSession));
      next = impl_->by_number.upper_bound(last->number);
    }
    for (; next != impl_->by_number.end(); ++next) {
      const StoredSession& session = *next->second;
      if (session.owner != owner || session.kind != SessionKind::kSession) continue;
      if (page.entries.size() == limit) {
        page.has_more = true;
        break;
      }
      page.entries.push_back(Impl::EntryOf(session));
    }
    file = impl_->file;
  }
  // What a list shows is all that is read of sessions in the file.
  for (Entry& entry : page.entries) {
    if (entry.state) continue;
    auto head = file->ReadHead(owner, entry.id);
    if (!head) {
      page.damaged += head.error().code == Code::kCorruption;
      page.newer += head.error().code == Code::kUnsupported;
      continue;
    }
    SessionState shown;
    shown.setup = std::make_shared<const SessionSetup>(std::move(head->setup));
    shown.tokens = head->tokens;
    entry.state = std::make_shared<const SessionState>(std::move(shown));
    entry.created_s = head->created_s;
    entry.num_messages = head->num_messages;
    entry.title = std::move(head->title);
  }
  if (!page.entries.empty()) {
    page.first_id = page.entries.front().id;
    page.last_id = page.entries.back().id;
  }
  std::erase_if(page.entries, [](const Entry& entry) { return !entry.state; });
  return page;
}

std::vector<SessionStore::Entry> SessionStore::Loaded(std::string_view tenant, size_t limit) {
  Sweep();
  const SessionOwner owner = SessionOwnerOf(tenant);
  const MutexLock lock(impl_->mutex);
  std::vector<Entry> entries;
  for (const auto& [number, session] : impl_->by_number) {
    if (entries.size() == limit) break;
    const bool is_session = session->kind == SessionKind::kSession;
    if (is_session && session->owner == owner && session->state) {
      entries.push_back(Impl::EntryOf(*session));
    }
  }
  return entries;
}

Result<size_t> SessionStore::RemoveAll(std::string_view tenant) {
  const SessionOwner owner = SessionOwnerOf(tenant);
  std::unordered_set<std::string> with_row;  // ids, before the file is erased
  {
    const MutexLock lock(impl_->mutex);
    ++impl_->removals[owner];
    for (const auto& [number, session] : impl_->by_number) {
      if (session->owner == owner && session->row_number > 0) with_row.insert(session->id);
    }
  }
  Status erased;
  if (const std::shared_ptr<SessionFile> from = file()) erased = from->RemoveAll(owner);
  std::vector<std::string> late;  // first rows, which may have been written after that
  size_t removed = 0;
  std::shared_ptr<SessionFile> now;
  std::vector<std::shared_ptr<const void>> dead;
  {
    const MutexLock lock(impl_->mutex);
    now = impl_->file;
    for (auto next = impl_->by_number.begin(); next != impl_->by_number.end();) {
      StoredSession& session = *(next++)->second;
      if (session.owner != owner) continue;
      if (!erased && session.row_number > 0) {  // it can be asked for again
        if (session.state) impl_->Unload(session, &dead);
        continue;
      }
      if (session.row_number > 0 && !with_row.contains(session.id)) late.push_back(session.id);
      if (session.kind == SessionKind::kSession) ++removed;
      impl_->Remove(session, &dead);
    }
  }
  for (const std::string& id : late) {
    const Status gone = now->Remove(owner, id);
    if (!gone) erased = gone;
  }
  if (!erased) return tl::unexpected(erased.error());
  return removed;
}

std::vector<std::shared_ptr<const SessionState>> SessionStore::OthersOf(std::string_view tenant,
                                                                        std::string_view id) const {
  const SessionOwner owner = SessionOwnerOf(tenant);
  const MutexLock lock(impl_->mutex);
  std::vector<std::shared_ptr<const SessionState>> states;
  for (const auto& [number, session] : impl_->by_number) {
    if (session->owner == owner && session->id != id && session->state) {
      states.push_back(session->state);
    }
  }
  return states;
}

void SessionStore::Sweep() {
  std::vector<std::shared_ptr<const void>> dead;
  const MutexLock lock(impl_->mutex);
  impl_->Sweep(&dead);
}

std::optional<uint64_t> SessionStore::BytesOf(std::string_view tenant) const {
  const SessionOwner owner = SessionOwnerOf(tenant);
  const MutexLock lock(impl_->mutex);
  for (const auto& [number, session] : impl_->by_number) {
    if (session->owner == owner && !session->state) return std::nullopt;
  }
  const MutexLock memory_lock(impl_->memory->mutex);
  return impl_->memory->shares.used_by(owner);
}

SessionCounts SessionStore::counts() const {
  const MutexLock lock(impl_->mutex);
  const MutexLock memory_lock(impl_->memory->mutex);
  return {.sessions = impl_->by_id.size() - impl_->num_responses,
          .responses = impl_->num_responses,
          .bytes = impl_->memory->shares.used(),
          .response_bytes = impl_->memory->responses.used(),
          .expired = impl_->expired,
          .unreadable = impl_->unreadable};
}

SessionCounts SessionStore::ResponsesOf(std::string_view tenant) const {
  const SessionOwner owner = SessionOwnerOf(tenant);
  const MutexLock lock(impl_->mutex);
  const MutexLock memory_lock(impl_->memory->mutex);
  const auto own = impl_->responses.find(owner);
  return {.responses = own == impl_->responses.end() ? 0 : own->second.size(),
          .response_bytes = impl_->memory->responses.used_by(owner)};
}

const SessionLimits& SessionStore::limits() const { return impl_->limits; }

}  // namespace kvasir
