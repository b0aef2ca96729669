#include <fmt/format.h>

#include <array>
#include <atomic>
#include <list>
#include <map>
#include <unordered_map>

#include "base/check.h"
#include "base/clock.h"
#include "base/hex.h"
#include "base/mutex.h"
#include "base/random_bytes.h"
#include "base/result.h"
#include "base/shares.h"
#include "base/wipe.h"
#include "kvasir/session.h"
#include "kvasir/session_file.h"

namespace kvasir {
namespace {

// Of an object that a shared pointer owns: its counts, its deleter, and what the heap adds.
constexpr uint64_t kSharedBytes = 144;

// The bytes of all that sessions hold. Thread-safe.
struct TextMemory {
  explicit TextMemory(uint64_t limit) : shares(limit) {}
  void Give(const SessionOwner& owner, uint64_t bytes) {
    const MutexLock lock(mutex);
    shares.Give(owner, bytes);
  }

  mutable Mutex mutex;  // taken behind the store's
  Shares shares KV_GUARDED_BY(mutex);
};

// What a text has allocated beside itself.
uint64_t HeapBytes(const std::string& text) {
  static const size_t inside = std::string().capacity();
  return text.capacity() > inside ? text.capacity() + 1 : 0;
}

// What an error says of the owner's share, and of nobody else's.
std::string MayHave(const Shares& shares, const SessionOwner& owner) {
  const uint64_t most = shares.kept_for(owner);
  return shares.are_divided() ? fmt::format("{} are kept for you, with no room for more now", most)
                              : fmt::format("at most {} are allowed", most);
}

Error NoSession() {
  return {Code::kNotFound, "no session of yours has this id; GET /v1/sessions lists them"};
}

}  // namespace

SessionMessage::More::~More() {
  for (std::string* text : {&fields, &written}) Wipe(text);
  for (SessionSegment& segment : segments) Wipe(&segment.name);
}

SessionMessage::More SessionMessage::More::WithoutWritten() const {
  More more;
  more.fields = fields;
  more.segments = segments;
  return more;
}

SessionMessage::~SessionMessage() {
  for (std::string* text : {&role, &content}) Wipe(text);
  Wipe(&ids);
}

const SessionMessage::More& SessionMessage::more() const {
  static const More kNone;
  return more_ ? *more_ : kNone;
}

void SessionMessage::SetMore(More more) {
  const bool has_some = !more.fields.empty() || !more.written.empty() || !more.segments.empty();
  more_ = has_some ? std::make_unique<const More>(std::move(more)) : nullptr;
}

uint64_t SessionMessage::NewNumber() {
  static std::atomic<uint64_t> next{0};  // relaxed: a name
  return next.fetch_add(1, std::memory_order_relaxed);
}

uint64_t SessionMessage::HeldBytes() const {
  uint64_t bytes = kSharedBytes + sizeof(*this) + HeapBytes(role) + HeapBytes(content) +
                   ids.capacity() * sizeof(TokenId);
  if (!more_) return bytes;
  bytes += sizeof(*more_) + HeapBytes(more_->fields) + HeapBytes(more_->written) +
           more_->segments.capacity() * sizeof(SessionSegment);
  for (const SessionSegment& segment : more_->segments) bytes += HeapBytes(segment.name);
  return bytes;
}

SessionSetup::~SessionSetup() {
  for (std::string* text : {&fields, &sampling, &metadata}) Wipe(text);
}

uint64_t SessionSetup::HeldBytes() const {
  return kSharedBytes + sizeof(*this) + model.capacity() + fields.capacity() + sampling.capacity() +
         metadata.capacity();
}

SessionPath::~SessionPath() { Wipe(&ids); }

uint64_t SessionPath::HeldBytes() const {
  return kSharedBytes + sizeof(*this) + ids.capacity() * sizeof(TokenId) +
         begins.capacity() * sizeof(begins[0]) + (cache_salt ? HeapBytes(*cache_salt) : 0);
}

uint64_t SessionState::HeldBytes() const {
  return kSharedBytes + sizeof(*this) + messages.capacity() * sizeof(messages[0]) +
         paths.capacity() * sizeof(paths[0]);
}

namespace {

// A call in a session's queue; the first one has its turn.
struct Waiting {
  std::function<void()> on_turn;
};

struct Session {
  std::string id, tenant;  // tenant: "" until it was read from the file
  SessionOwner owner{};
  int64_t created_s = 0;                      // 0 until it was read
  uint64_t number = 0;                        // in the order of creation
  std::shared_ptr<const SessionState> state;  // null: in the file alone
  uint64_t row_number = 0;                    // of its row in the file; 0: it has none
  uint64_t used_ns = 0;
  std::list<Session*>::iterator by_use;  // if it has a state
  std::vector<Waiting*> queue;           // the first one has its turn; of kMaxSessionQueue + 1
  bool removed = false;
};

// A session's own bytes: its places in the three tables, and what the heap adds.
constexpr uint64_t kSessionBytes = sizeof(Session) + 400;

}  // namespace

struct SessionStore::Impl {
  explicit Impl(const SessionLimits& given)
      : limits(given),
        memory(std::make_shared<TextMemory>(given.memory_bytes)),
        places(given.max_sessions, 1) {}

  // Null: not there, or another tenant's.
  std::shared_ptr<Session> Find(std::string_view tenant, std::string_view id) const
      KV_REQUIRES(mutex) {
    const auto it = by_id.find(std::string(id));
    if (it == by_id.end()) return nullptr;
    const Session& session = *it->second;
    // The names say the same without a digest, where they are known.
    const bool is_own =
        session.created_s > 0 ? session.tenant == tenant : session.owner == SessionOwnerOf(tenant);
    return is_own ? it->second : nullptr;
  }

  void Use(Session& session, Counts counts = Counts::kAsUse) KV_REQUIRES(mutex) {
    if (counts == Counts::kNot) return;
    session.used_ns = MonotonicNs();
    if (session.state) by_use.splice(by_use.end(), by_use, session.by_use);
  }

  void Add(std::shared_ptr<Session> session) KV_REQUIRES(mutex) {
    session->number = next_number++;
    session->used_ns = MonotonicNs();
    if (session->state) session->by_use = by_use.insert(by_use.end(), session.get());
    by_number.emplace(session->number, session.get());
    by_id.emplace(session->id, std::move(session));
  }

  static Entry EntryOf(const Session& session) {
    return {session.id, session.created_s, session.state, session.row_number > 0,
            session.state ? session.state->messages.size() : 0};
  }

  // A session's state leaves memory; it stays in the file.
  void Unload(Session& session, std::vector<std::shared_ptr<const void>>* dead) KV_REQUIRES(mutex) {
    by_use.erase(session.by_use);
    dead->push_back(std::move(session.state));
    session.state = nullptr;
  }

  Result<Entry> Load(SessionStore& store, const std::shared_ptr<Session>& session);

  // Its state ends with *dead, which the caller destroys without the mutex: zeroing takes time.
  void Remove(Session& session, std::vector<std::shared_ptr<const void>>* dead) KV_REQUIRES(mutex) {
    session.removed = true;
    if (session.state) Unload(session, dead);
    by_number.erase(session.number);
    memory->Give(session.owner, kSessionBytes);
    places.Give(session.owner, 1);
    const auto it = by_id.find(session.id);
    dead->push_back(std::move(it->second));
    by_id.erase(it);
  }

  void Sweep(std::vector<std::shared_ptr<const void>>* dead) KV_REQUIRES(mutex) {
    if (limits.ttl_ns == 0) return;
    const uint64_t now = MonotonicNs();
    while (!by_use.empty()) {
      Session& oldest = *by_use.front();
      // A clock that goes back, as in a machine that was suspended, makes nothing old.
      if (now < oldest.used_ns || now - oldest.used_ns < limits.ttl_ns) return;
      if (!oldest.queue.empty()) {
        Use(oldest);
        continue;
      }
      if (oldest.row_number > 0) {
        Unload(oldest, dead);
        continue;
      }
      Remove(oldest, dead);
      ++expired;
    }
  }

  const SessionLimits limits;
  const std::shared_ptr<TextMemory> memory;  // parts of states may outlive the store
  mutable Mutex mutex;
  std::unordered_map<std::string, std::shared_ptr<Session>> by_id KV_GUARDED_BY(mutex);
  std::map<uint64_t, Session*, std::greater<>> by_number KV_GUARDED_BY(mutex);  // newest first
  std::list<Session*> by_use KV_GUARDED_BY(mutex);  // those with a state, used longest ago first
  Error Missing() const KV_REQUIRES(mutex) {
    return no_file && no_file->code == Code::kUnavailable ? *no_file : NoSession();
  }

  std::shared_ptr<SessionFile> file KV_GUARDED_BY(mutex);
  std::optional<Error> no_file KV_GUARDED_BY(mutex);
  Shares places KV_GUARDED_BY(mutex);  // with those of sessions that are being created
  Shares::Weights weights KV_GUARDED_BY(mutex);
  uint64_t next_number KV_GUARDED_BY(mutex) = 0;
  uint64_t expired KV_GUARDED_BY(mutex) = 0;
};

struct SessionStore::Turn::Place {
  Place(const std::shared_ptr<Impl>& impl, const SessionOwner& owner, Counts given)
      : store(impl), view(impl, owner), counts(given) {}

  std::shared_ptr<Impl> store;
  SessionStore view;
  const Counts counts;
  std::shared_ptr<Session> session;
  Waiting waiting;
};

SessionStore::SessionStore(const SessionLimits& limits) : impl_(std::make_shared<Impl>(limits)) {}
SessionStore::SessionStore(std::shared_ptr<Impl> impl, const SessionOwner& owner)
    : impl_(std::move(impl)), owner_(owner) {}
SessionStore::~SessionStore() = default;

SessionStore SessionStore::Of(std::string_view tenant) const {
  return SessionStore(impl_, SessionOwnerOf(tenant));
}

void SessionStore::SetTenants(const TenantTable& tenants) {
  Shares::Weights weights;
  for (const auto& [name, rules] : tenants) weights[SessionOwnerOf(name)] = rules.weight;
  std::shared_ptr<SessionFile> file;
  {
    const MutexLock lock(impl_->mutex);
    impl_->places.SetWeights(weights);
    impl_->weights = weights;
    file = impl_->file;
    const MutexLock memory_lock(impl_->memory->mutex);
    impl_->memory->shares.SetWeights(weights);
  }
  if (file) file->SetWeights(weights);
}

bool SessionStore::TakeBytes(uint64_t bytes, Room room) {
  const MutexLock lock(impl_->memory->mutex);
  Shares& shares = impl_->memory->shares;
  if (room == Room::kWithinLimit) return shares.Take(owner_, bytes);
  shares.AddBriefly(owner_, bytes);
  return true;
}

std::shared_ptr<void> SessionStore::Memory() const { return impl_->memory; }

void SessionStore::GiveBytes(void* memory, const SessionOwner& owner, uint64_t bytes, Room room) {
  auto* of = static_cast<TextMemory*>(memory);
  const MutexLock lock(of->mutex);
  room == Room::kMayExceed ? of->shares.GiveBrief(owner, bytes) : of->shares.Give(owner, bytes);
}

Error SessionStore::NoMemory() const {
  const TextMemory& memory = *impl_->memory;
  const MutexLock lock(memory.mutex);
  return {Code::kExhausted,
          fmt::format("your sessions hold {} bytes of text and ids, and {} "
                      "(--session-memory); delete sessions, or make them shorter",
                      memory.shares.used_by(owner_), MayHave(memory.shares, owner_))};
}

// A session as it is, read from the file if it is not in memory.
Result<SessionStore::Entry> SessionStore::Impl::Load(SessionStore& store,
                                                     const std::shared_ptr<Session>& session) {
  std::shared_ptr<SessionFile> from;
  {
    const MutexLock lock(mutex);
    if (session->removed) return tl::unexpected(NoSession());
    if (session->state) return EntryOf(*session);
    from = file;
  }
  auto read = from->Read(store, session->owner, session->id);
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
    std::shared_ptr<Session>& session = impl_->by_id[row.id];
    if (session) {
      session->row_number = row.number;
      continue;
    }
    session = std::make_shared<Session>();
    session->id = row.id;
    session->owner = row.owner;
    session->row_number = row.number;
    impl_->places.Add(row.owner, 1);
    {
      const MutexLock memory_lock(impl_->memory->mutex);
      impl_->memory->shares.Add(row.owner, kSessionBytes);
    }
    impl_->Add(std::shared_ptr<Session>(session));
  }
  std::vector<Session*> lost;
  for (auto& [id, session] : impl_->by_id) {
    if (session->row_number == 0 && !session->state) lost.push_back(session.get());
  }
  for (Session* one : lost) impl_->Remove(*one, &dead);
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

Result<SessionStore::Entry> SessionStore::Create(std::string_view tenant, SessionState state) {
  std::array<uint8_t, 16> random;
  KV_TRY(FillRandom(random));
  auto session = std::make_shared<Session>();
  session->id = "sess_" + ToHex(random);
  session->tenant = tenant;
  session->owner = SessionOwnerOf(tenant);
  session->created_s = UnixS();
  Sweep();
  SessionStore own = Of(tenant);
  KV_ASSIGN(session->state, own.Keep(std::move(state)));
  std::shared_ptr<SessionFile> file;
  {
    const MutexLock lock(impl_->mutex);
    if (impl_->limits.max_sessions == 0) {
      return Fail(Code::kExhausted, "this server keeps no sessions (--sessions 0)");
    }
    Shares& places = impl_->places;
    if (!places.Take(session->owner, 1)) {
      return Fail(Code::kExhausted, "you have {} sessions, and {} (--sessions); delete one first",
                  places.used_by(session->owner), MayHave(places, session->owner));
    }
    if (!own.TakeBytes(kSessionBytes, Room::kWithinLimit)) {
      places.Give(session->owner, 1);
      return tl::unexpected(own.NoMemory());
    }
    if (session->state->setup->on_disk) file = impl_->file;
  }
  Status written;
  if (file) {
    written = file->Write({.id = session->id,
                           .tenant = session->tenant,
                           .created_s = session->created_s,
                           .state = *session->state},
                          1, SessionFile::Scrub::kNo);
    session->row_number = 1;
  }
  const MutexLock lock(impl_->mutex);
  if (!written) {
    impl_->memory->Give(session->owner, kSessionBytes);
    impl_->places.Give(session->owner, 1);
    return tl::unexpected(written.error());
  }
  const Entry made = Impl::EntryOf(*session);
  impl_->Add(std::move(session));
  return made;
}

Result<SessionStore::Entry> SessionStore::Find(std::string_view tenant, std::string_view id) {
  Sweep();
  std::shared_ptr<Session> session;
  {
    const MutexLock lock(impl_->mutex);
    session = impl_->Find(tenant, id);
    if (!session) return tl::unexpected(impl_->Missing());
    impl_->Use(*session);
  }
  SessionStore own(impl_, session->owner);
  return impl_->Load(own, session);
}

std::optional<SessionStore::Entry> SessionStore::FindLoaded(std::string_view tenant,
                                                            std::string_view id) {
  Sweep();
  const MutexLock lock(impl_->mutex);
  const std::shared_ptr<Session> session = impl_->Find(tenant, id);
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
      const std::shared_ptr<Session> last = impl_->Find(tenant, *after);
      if (!last) return tl::unexpected(NoSession());
      next = impl_->by_number.upper_bound(last->number);
    }
    for (; next != impl_->by_number.end(); ++next) {
      const Session& session = *next->second;
      if (session.owner != owner) continue;
      if (page.entries.size() == limit) {
        page.has_more = true;
        break;
      }
      page.entries.push_back(Impl::EntryOf(session));
    }
    file = impl_->file;
  }
  // Those in the file are read one by one, and only what a list shows is kept of them.
  for (Entry& entry : page.entries) {
    if (entry.state) continue;
    SessionStore unlimited(SessionLimits{.memory_bytes = UINT64_MAX});
    const auto read = file->Read(unlimited, owner, entry.id);
    if (!read) continue;
    SessionState shown;
    shown.setup = read->state.setup;
    shown.tokens = read->state.tokens;
    entry.state = std::make_shared<const SessionState>(std::move(shown));
    entry.created_s = read->created_s;
    entry.num_messages = read->state.messages.size();
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
    if (session->owner == owner && session->state) entries.push_back(Impl::EntryOf(*session));
  }
  return entries;
}

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
  auto place = std::make_shared<Turn::Place>(impl_, SessionOwnerOf(tenant), counts);
  place->waiting.on_turn = std::move(on_turn);
  const std::shared_ptr<Turn> turn(new Turn(place));
  const MutexLock lock(impl_->mutex);
  std::shared_ptr<Session> session = impl_->Find(tenant, id);
  if (!session || session->queue.size() > kMaxSessionQueue) {
    turn->place_ = nullptr;
    if (!session) return tl::unexpected(impl_->Missing());
    return Fail(Code::kExhausted,
                "{} calls of this session wait already, and at most {} may; try again later",
                kMaxSessionQueue, kMaxSessionQueue);
  }
  impl_->Use(*session, counts);
  session->queue.push_back(&place->waiting);
  place->session = std::move(session);
  return turn;
}

Result<size_t> SessionStore::RemoveAll(std::string_view tenant) {
  const SessionOwner owner = SessionOwnerOf(tenant);
  Status erased;
  if (const std::shared_ptr<SessionFile> from = file()) erased = from->RemoveAll(owner);
  std::vector<std::shared_ptr<const void>> dead;
  const MutexLock lock(impl_->mutex);
  size_t removed = 0;
  for (auto next = impl_->by_number.begin(); next != impl_->by_number.end();) {
    Session& session = *(next++)->second;
    if (session.owner != owner) continue;
    if (!erased && session.row_number > 0) {  // it can be asked for again
      if (session.state) impl_->Unload(session, &dead);
      continue;
    }
    impl_->Remove(session, &dead);
    ++removed;
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

// Sessions that were made while there was no file, or that another one had.
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

SessionCounts SessionStore::counts() const {
  const MutexLock lock(impl_->mutex);
  const MutexLock memory_lock(impl_->memory->mutex);
  return {.sessions = impl_->by_id.size(),
          .bytes = impl_->memory->shares.used(),
          .expired = impl_->expired};
}

const SessionLimits& SessionStore::limits() const { return impl_->limits; }

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
  return place_->store->Load(place_->view, place_->session);
}

namespace {

// Whether a change only adds messages: then nothing of the old state is forgotten.
bool Extends(const SessionState& state, const SessionState& old) {
  return state.messages.size() >= old.messages.size() &&
         std::equal(old.messages.begin(), old.messages.end(), state.messages.begin());
}

}  // namespace

Status SessionStore::Turn::Replace(SessionState state, Durable durable) {
  KV_CHECK(place_ && has_come());
  Impl& impl = *place_->store;
  Session& session = *place_->session;
  KV_ASSIGN(const Entry now, Read());
  const Room room =
      state.HeldBytes() <= now.state->HeldBytes() ? Room::kMayExceed : Room::kWithinLimit;
  const auto scrub =
      Extends(state, *now.state) ? SessionFile::Scrub::kNo : SessionFile::Scrub::kYes;
  KV_ASSIGN(std::shared_ptr<const SessionState> kept, place_->view.Keep(std::move(state), room));
  std::shared_ptr<SessionFile> file;
  uint64_t row_number = 0;
  {
    const MutexLock lock(impl.mutex);
    if (session.removed) return tl::unexpected(NoSession());
    const bool is_kept = session.row_number > 0 || kept->setup->on_disk;
    if (is_kept && durable == Durable::kNow) file = impl.file;
    row_number = session.row_number + 1;
  }
  if (file) {
    const Status written = file->Write({.id = session.id,
                                        .tenant = session.tenant,
                                        .created_s = session.created_s,
                                        .state = *kept},
                                       row_number, scrub);
    if (!written && written.error().code == Code::kNotFound) return tl::unexpected(NoSession());
    KV_TRY(written);
  }
  {
    const MutexLock lock(impl.mutex);
    if (!session.removed) {
      if (file) session.row_number = row_number;
      // An erase of all that failed meanwhile has taken the old state out of memory.
      if (!session.state) session.by_use = impl.by_use.insert(impl.by_use.end(), &session);
      session.state.swap(kept);  // the old one ends without the mutex
      impl.Use(session, place_->counts);
      return {};
    }
  }
  // Its first row may have been written behind the erase of all.
  if (file && row_number == 1) KV_TRY(file->Remove(session.owner, session.id));
  return tl::unexpected(NoSession());
}

Status SessionStore::Turn::Remove() {
  KV_CHECK(place_ && has_come());
  Impl& impl = *place_->store;
  Session& session = *place_->session;
  std::shared_ptr<SessionFile> file;
  {
    const MutexLock lock(impl.mutex);
    if (session.removed) return tl::unexpected(NoSession());
    if (session.row_number > 0) file = impl.file;
  }
  Status erased;
  if (file) erased = file->Remove(session.owner, session.id);
  std::vector<std::shared_ptr<const void>> dead;
  const MutexLock lock(impl.mutex);
  if (session.removed) return tl::unexpected(NoSession());
  if (erased) {
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
  Session& session = *place_->session;
  if (session.removed || session.row_number == 0) return false;
  if (session.state) place_->store->Unload(session, &dead);
  return true;
}

void SessionStore::Turn::End() {
  const std::shared_ptr<Place> place = std::exchange(place_, nullptr);
  if (!place) return;
  std::function<void()> next;
  {
    const MutexLock lock(place->store->mutex);
    Session& session = *place->session;
    const bool had_turn = session.queue.front() == &place->waiting;
    std::erase(session.queue, &place->waiting);
    if (!session.removed) place->store->Use(session, place->counts);
    if (had_turn && !session.queue.empty()) next = std::move(session.queue.front()->on_turn);
  }
  if (next) next();
}

}  // namespace kvasir
