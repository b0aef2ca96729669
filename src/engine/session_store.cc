#include <fmt/format.h>

#include <array>
#include <atomic>
#include <deque>
#include <list>
#include <map>
#include <unordered_map>

#include "base/check.h"
#include "base/clock.h"
#include "base/hex.h"
#include "base/mutex.h"
#include "base/random_bytes.h"
#include "base/result.h"
#include "base/wipe.h"
#include "kvasir/session.h"

namespace kvasir {
namespace {

// Of an object that a shared pointer owns: its counts, its deleter, and what the heap adds.
constexpr uint64_t kSharedBytes = 96;

struct TextMemory {
  explicit TextMemory(uint64_t limit) : max_bytes(limit) {}
  bool Take(uint64_t bytes) {
    uint64_t now = taken.load(std::memory_order_relaxed);
    do {
      if (now > max_bytes || bytes > max_bytes - now) return false;
    } while (!taken.compare_exchange_weak(now, now + bytes, std::memory_order_relaxed));
    return true;
  }
  void Give(uint64_t bytes) { taken.fetch_sub(bytes, std::memory_order_relaxed); }

  const uint64_t max_bytes;
  std::atomic<uint64_t> taken{0};  // relaxed: a sum that orders nothing
};

// What a text has allocated beside itself.
uint64_t HeapBytes(const std::string& text) {
  static const size_t inside = std::string().capacity();
  return text.capacity() > inside ? text.capacity() + 1 : 0;
}

Error NoSession() {
  return {Code::kNotFound, "no session of yours has this id; GET /v1/sessions lists them"};
}

}  // namespace

SessionMessage::~SessionMessage() {
  for (std::string* text : {&role, &content, &fields, &written}) Wipe(text);
  for (SessionSegment& segment : segments) Wipe(&segment.name);
  Wipe(&ids);
}

uint64_t SessionMessage::NewNumber() {
  static std::atomic<uint64_t> next{0};  // relaxed: a name
  return next.fetch_add(1, std::memory_order_relaxed);
}

uint64_t SessionMessage::HeldBytes() const {
  uint64_t bytes = kSharedBytes + sizeof(*this) + HeapBytes(role) + HeapBytes(content) +
                   HeapBytes(fields) + HeapBytes(written) +
                   segments.capacity() * sizeof(SessionSegment) + ids.capacity() * sizeof(TokenId);
  for (const SessionSegment& segment : segments) bytes += HeapBytes(segment.name);
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
  std::string id, tenant;
  int64_t created_s = 0;
  uint64_t number = 0;  // in the order of creation
  std::shared_ptr<const SessionState> state;
  uint64_t used_ns = 0;
  std::list<Session*>::iterator by_use;
  std::deque<Waiting*> queue;  // the first one has its turn
  bool removed = false;
};

// A session's own bytes: its places in the three tables, and what the heap adds.
constexpr uint64_t kSessionBytes = sizeof(Session) + 640;

}  // namespace

struct SessionStore::Impl {
  explicit Impl(const SessionLimits& given)
      : limits(given), memory(new TextMemory(given.memory_bytes)) {}

  // Null: not there, or another tenant's.
  std::shared_ptr<Session> Find(std::string_view tenant, std::string_view id) const
      KV_REQUIRES(mutex) {
    const auto it = by_id.find(std::string(id));
    if (it == by_id.end() || it->second->tenant != tenant) return nullptr;
    return it->second;
  }

  void Use(Session& session) KV_REQUIRES(mutex) {
    session.used_ns = MonotonicNs();
    by_use.splice(by_use.end(), by_use, session.by_use);
  }

  // Its state ends with *dead, which the caller destroys without the mutex: zeroing takes time.
  void Remove(Session& session, std::vector<std::shared_ptr<const void>>* dead) KV_REQUIRES(mutex) {
    session.removed = true;
    dead->push_back(std::move(session.state));
    by_use.erase(session.by_use);
    by_number.erase(session.number);
    memory->Give(kSessionBytes);
    const auto it = by_id.find(session.id);
    dead->push_back(std::move(it->second));
    by_id.erase(it);
  }

  void Sweep(std::vector<std::shared_ptr<const void>>* dead) KV_REQUIRES(mutex) {
    if (limits.ttl_ns == 0) return;
    const uint64_t now = MonotonicNs();
    while (!by_use.empty() && now - by_use.front()->used_ns >= limits.ttl_ns) {
      Session& oldest = *by_use.front();
      if (!oldest.queue.empty()) {
        Use(oldest);
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
  std::list<Session*> by_use KV_GUARDED_BY(mutex);  // used longest ago first
  uint64_t next_number KV_GUARDED_BY(mutex) = 0;
  uint64_t expired KV_GUARDED_BY(mutex) = 0;
};

struct SessionStore::Turn::Place {
  std::shared_ptr<Impl> store;
  std::shared_ptr<Session> session;
  Waiting waiting;
};

SessionStore::SessionStore(const SessionLimits& limits) : impl_(std::make_shared<Impl>(limits)) {}
SessionStore::~SessionStore() = default;

bool SessionStore::TakeBytes(uint64_t bytes, Room room) {
  if (room == Room::kWithinLimit) return impl_->memory->Take(bytes);
  impl_->memory->taken.fetch_add(bytes, std::memory_order_relaxed);
  return true;
}

std::shared_ptr<void> SessionStore::Memory() const { return impl_->memory; }

void SessionStore::GiveBytes(void* memory, uint64_t bytes) {
  static_cast<TextMemory*>(memory)->Give(bytes);
}

Error SessionStore::NoMemory() const {
  return {Code::kExhausted,
          fmt::format("the sessions hold {} bytes of text and ids, and at most {} are allowed "
                      "(--session-memory); delete sessions, or make them shorter",
                      impl_->memory->taken.load(std::memory_order_relaxed),
                      impl_->limits.memory_bytes)};
}

Result<SessionStore::Entry> SessionStore::Create(std::string_view tenant, SessionState state) {
  std::array<uint8_t, 16> random;
  KV_TRY(FillRandom(random));
  auto session = std::make_shared<Session>();
  session->id = "sess_" + ToHex(random);
  session->tenant = tenant;
  session->created_s = UnixS();
  Sweep();
  KV_ASSIGN(session->state, Keep(std::move(state)));
  const Entry made{session->id, session->created_s, session->state};
  const MutexLock lock(impl_->mutex);
  if (impl_->by_id.size() >= impl_->limits.max_sessions) {
    return Fail(Code::kExhausted,
                "there are {} sessions, and at most {} are allowed (--sessions); delete one first",
                impl_->by_id.size(), impl_->limits.max_sessions);
  }
  if (!TakeBytes(kSessionBytes, Room::kWithinLimit)) return tl::unexpected(NoMemory());
  session->number = impl_->next_number++;
  session->used_ns = MonotonicNs();
  session->by_use = impl_->by_use.insert(impl_->by_use.end(), session.get());
  impl_->by_number.emplace(session->number, session.get());
  impl_->by_id.emplace(session->id, std::move(session));
  return made;
}

Result<SessionStore::Entry> SessionStore::Find(std::string_view tenant, std::string_view id) {
  Sweep();
  const MutexLock lock(impl_->mutex);
  const std::shared_ptr<Session> session = impl_->Find(tenant, id);
  if (!session) return tl::unexpected(NoSession());
  impl_->Use(*session);
  return Entry{session->id, session->created_s, session->state};
}

Result<SessionStore::Page> SessionStore::List(std::string_view tenant,
                                              std::optional<std::string_view> after, size_t limit) {
  Sweep();
  const MutexLock lock(impl_->mutex);
  auto next = impl_->by_number.begin();
  if (after) {
    const std::shared_ptr<Session> last = impl_->Find(tenant, *after);
    if (!last) return tl::unexpected(NoSession());
    next = impl_->by_number.upper_bound(last->number);
  }
  Page page;
  for (; next != impl_->by_number.end(); ++next) {
    const Session& session = *next->second;
    if (session.tenant != tenant) continue;
    if (page.entries.size() == limit) {
      page.has_more = true;
      break;
    }
    page.entries.push_back({session.id, session.created_s, session.state});
  }
  return page;
}

Result<std::shared_ptr<SessionStore::Turn>> SessionStore::Queue(std::string_view tenant,
                                                                std::string_view id,
                                                                std::function<void()> on_turn) {
  Sweep();
  auto place = std::make_shared<Turn::Place>();
  place->store = impl_;
  place->waiting.on_turn = std::move(on_turn);
  const std::shared_ptr<Turn> turn(new Turn(place));
  const MutexLock lock(impl_->mutex);
  std::shared_ptr<Session> session = impl_->Find(tenant, id);
  if (!session || session->queue.size() > kMaxSessionQueue) {
    turn->place_ = nullptr;
    if (!session) return tl::unexpected(NoSession());
    return Fail(Code::kExhausted,
                "{} calls of this session wait already, and at most {} may; try again later",
                kMaxSessionQueue, kMaxSessionQueue);
  }
  impl_->Use(*session);
  session->queue.push_back(&place->waiting);
  place->session = std::move(session);
  return turn;
}

size_t SessionStore::RemoveAll(std::string_view tenant) {
  std::vector<std::shared_ptr<const void>> dead;
  const MutexLock lock(impl_->mutex);
  size_t removed = 0;
  for (auto next = impl_->by_number.begin(); next != impl_->by_number.end();) {
    Session& session = *(next++)->second;
    if (session.tenant != tenant) continue;
    impl_->Remove(session, &dead);
    ++removed;
  }
  return removed;
}

std::vector<std::shared_ptr<const SessionState>> SessionStore::OthersOf(std::string_view tenant,
                                                                        std::string_view id) const {
  const MutexLock lock(impl_->mutex);
  std::vector<std::shared_ptr<const SessionState>> states;
  for (const auto& [number, session] : impl_->by_number) {
    if (session->tenant == tenant && session->id != id) states.push_back(session->state);
  }
  return states;
}

void SessionStore::Sweep() {
  std::vector<std::shared_ptr<const void>> dead;
  const MutexLock lock(impl_->mutex);
  impl_->Sweep(&dead);
}

SessionCounts SessionStore::counts() const {
  const MutexLock lock(impl_->mutex);
  return {.sessions = impl_->by_id.size(),
          .bytes = impl_->memory->taken.load(std::memory_order_relaxed),
          .expired = impl_->expired};
}

const SessionLimits& SessionStore::limits() const { return impl_->limits; }

SessionStore::Turn::~Turn() { End(); }

bool SessionStore::Turn::has_come() const {
  const MutexLock lock(place_->store->mutex);
  return place_->session->queue.front() == &place_->waiting;
}

const std::string& SessionStore::Turn::id() const { return place_->session->id; }

Result<SessionStore::Entry> SessionStore::Turn::Read() const {
  KV_CHECK(place_ && has_come());
  const Session& session = *place_->session;
  const MutexLock lock(place_->store->mutex);
  if (session.removed) return tl::unexpected(NoSession());
  return Entry{session.id, session.created_s, session.state};
}

Status SessionStore::Turn::Replace(SessionState state) {
  KV_CHECK(place_ && has_come());
  SessionStore store(place_->store);
  KV_ASSIGN(const Entry now, Read());
  const Room room =
      state.HeldBytes() <= now.state->HeldBytes() ? Room::kMayExceed : Room::kWithinLimit;
  KV_ASSIGN(std::shared_ptr<const SessionState> kept, store.Keep(std::move(state), room));
  const MutexLock lock(place_->store->mutex);
  if (place_->session->removed) return tl::unexpected(NoSession());
  place_->session->state.swap(kept);  // the old one ends without the mutex
  place_->store->Use(*place_->session);
  return {};
}

Status SessionStore::Turn::Remove() {
  KV_CHECK(place_ && has_come());
  std::vector<std::shared_ptr<const void>> dead;
  const MutexLock lock(place_->store->mutex);
  if (place_->session->removed) return tl::unexpected(NoSession());
  place_->store->Remove(*place_->session, &dead);
  return {};
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
    if (!session.removed) place->store->Use(session);
    if (had_turn && !session.queue.empty()) next = std::move(session.queue.front()->on_turn);
  }
  if (next) next();
}

}  // namespace kvasir
