// What SessionStore holds: the table of sessions, their order of use, their queues.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/shares.h"
#include "kvasir/session.h"
#include "kvasir/session_file.h"

namespace kvasir {

// The bytes of all that sessions hold. Thread-safe.
struct TextMemory {
  explicit TextMemory(uint64_t limit) : shares(limit), responses(limit / 2) {}
  void Give(const SessionOwner& owner, SessionKind kind, uint64_t bytes) {
    const MutexLock lock(mutex);
    GiveLocked(owner, kind, bytes);
  }
  void GiveLocked(const SessionOwner& owner, SessionKind kind, uint64_t bytes) KV_REQUIRES(mutex) {
    shares.Give(owner, bytes);
    if (kind == SessionKind::kResponse) responses.Give(owner, bytes);
  }
  bool Take(const SessionOwner& owner, SessionKind kind, uint64_t bytes) KV_REQUIRES(mutex) {
    const bool is_response = kind == SessionKind::kResponse;
    if (is_response && !responses.Take(owner, bytes)) return false;
    const bool fits = shares.Take(owner, bytes);
    if (is_response && !fits) responses.Give(owner, bytes);
    return fits;
  }
  // What Take lacks, and what will be given before it is tried again.
  struct Need {
    uint64_t bytes = 0, given = 0;
  };
  // Tells whether Take would fit when the owner has given `given` bytes more, of which responses
  // had `of_responses`.
  bool Fits(const SessionOwner& owner, SessionKind kind, Need need, uint64_t given,
            uint64_t of_responses) KV_REQUIRES(mutex) {
    return shares.Fits(owner, need.bytes, need.given + given) &&
           ResponsesFit(owner, kind, need, of_responses);
  }
  bool ResponsesFit(const SessionOwner& owner, SessionKind kind, Need need, uint64_t given)
      KV_REQUIRES(mutex) {
    return kind == SessionKind::kSession || responses.Fits(owner, need.bytes, need.given + given);
  }
  void AddBriefly(const SessionOwner& owner, SessionKind kind, uint64_t bytes) KV_REQUIRES(mutex) {
    shares.AddBriefly(owner, bytes);
    if (kind == SessionKind::kResponse) responses.AddBriefly(owner, bytes);
  }
  void EndBrief(SessionKind kind, uint64_t bytes) KV_REQUIRES(mutex) {
    shares.EndBrief(bytes);
    if (kind == SessionKind::kResponse) responses.EndBrief(bytes);
  }

  mutable Mutex mutex;                    // taken after the store's
  Shares shares KV_GUARDED_BY(mutex);     // of all
  Shares responses KV_GUARDED_BY(mutex);  // of responses alone
};

// A call in a session's queue; the first one has its turn.
struct WaitingCall {
  std::function<void()> on_turn;
};

// A session, in memory or in the file alone.
struct StoredSession {
  std::string id, tenant;  // tenant: "" until it was read from the file
  SessionOwner owner{};
  SessionKind kind = SessionKind::kSession;
  int64_t created_s = 0;                      // 0 until it was read
  uint64_t number = 0;                        // in the order of creation
  std::shared_ptr<const SessionState> state;  // null: in the file alone
  uint64_t row_number = 0;                    // of its row in the store's file; 0: it has none
  uint64_t used_ns = 0;
  std::list<StoredSession*>::iterator by_use;  // if it has a state
  std::list<StoredSession*>::iterator by_age;  // of a response
  std::vector<WaitingCall*> queue;  // the first one has its turn; of kMaxSessionQueue + 1
  bool removed = false;             // the table has it no more, or not yet
};

// A session's own bytes: its places in the three tables, and what the heap adds.
inline constexpr uint64_t kStoredSessionBytes = sizeof(StoredSession) + 400;
// The memory of those, until the table has the session.
struct EntryBytes {
  uint64_t HeldBytes() const { return kStoredSessionBytes; }
};

Error NoSession(SessionKind kind);
// Returns what an error says of the owner's share, and not of other tenants'.
std::string MayHave(const Shares& shares, const SessionOwner& owner);

// The table of sessions, which stores of all tenants share. Thread-safe by its mutex.
struct SessionStore::Impl : std::enable_shared_from_this<Impl> {
  explicit Impl(const SessionLimits& given)
      : limits(given),
        memory(std::make_shared<TextMemory>(given.memory_bytes)),
        places(given.max_sessions, 1),
        response_places(given.max_responses, 1) {}

  // Finds a session. Null: not there, another tenant's, or of another kind.
  std::shared_ptr<StoredSession> Find(SessionKind kind, std::string_view tenant,
                                      std::string_view id) const KV_REQUIRES(mutex) {
    const auto it = by_id.find(std::string(id));
    if (it == by_id.end()) return nullptr;
    const StoredSession& session = *it->second;
    if (session.kind != kind) return nullptr;
    // The names say the same without a digest, where they are known.
    const bool is_own =
        session.created_s > 0 ? session.tenant == tenant : session.owner == SessionOwnerOf(tenant);
    return is_own ? it->second : nullptr;
  }

  // Finds a response that is being answered. Null: the owner has not begun it.
  std::shared_ptr<StoredSession> FindRunning(const SessionOwner& owner, std::string_view id) const
      KV_REQUIRES(mutex) {
    const auto it = running.find(id);
    return it != running.end() && it->second->owner == owner ? it->second : nullptr;
  }

  void Use(StoredSession& session, Counts counts = Counts::kAsUse) KV_REQUIRES(mutex) {
    if (counts == Counts::kNot) return;
    session.used_ns = MonotonicNs();
    if (session.state) by_use.splice(by_use.end(), by_use, session.by_use);
    if (session.kind == SessionKind::kSession) return;
    std::list<StoredSession*>& own = responses[session.owner];
    own.splice(own.end(), own, session.by_age);
  }

  void Add(std::shared_ptr<StoredSession> session) KV_REQUIRES(mutex) {
    session->removed = false;
    session->number = next_number++;
    session->used_ns = MonotonicNs();
    if (session->state) session->by_use = by_use.insert(by_use.end(), session.get());
    if (session->kind == SessionKind::kResponse) {
      std::list<StoredSession*>& own = responses[session->owner];
      session->by_age = own.insert(own.end(), session.get());
      ++num_responses;
    }
    by_number.emplace(session->number, session.get());
    by_id.emplace(session->id, std::move(session));
  }

  static Entry EntryOf(const StoredSession& session) {
    return {session.id, session.created_s, session.state, session.row_number > 0,
            session.state ? session.state->messages.size() : 0};
  }

  // Takes a session's state out of memory; it stays in the file.
  void Unload(StoredSession& session, std::vector<std::shared_ptr<const void>>* dead)
      KV_REQUIRES(mutex) {
    by_use.erase(session.by_use);
    dead->push_back(std::move(session.state));
    session.state = nullptr;
  }

  // Tells whether a session can leave memory: no call has it, and the file does.
  static bool IsIdle(const StoredSession& session) {
    return session.row_number > 0 && session.queue.empty();
  }
  // Tells whether what is needed may fit once idle sessions of the owner have left memory. O(their
  // parts), up to those that are enough.
  bool CanMakeRoom(const Share& share, TextMemory::Need need);
  // Takes idle sessions of the owner that are in the way of what is needed out of memory, at most
  // so many: those that were used longest ago. False: there was none. O(sessions in memory).
  bool UnloadIdle(const Share& share, TextMemory::Need need, size_t most);
  // Runs a step that takes what is needed, and again with less of the owner's sessions in memory
  // while it is kExhausted. Where they cannot make room they all stay.
  template <typename Step>
  Status MakingRoom(const Share& share, TextMemory::Need need, const Step& step) {
    Status done = step();
    if (done || !CanMakeRoom(share, need)) return done;
    for (size_t most = 1; !done && done.error().code == Code::kExhausted; most *= 2) {
      if (!UnloadIdle(share, need, most)) break;
      done = step();
    }
    return done;
  }

  // Removes the owner's idle responses that were used longest ago, at most so many. False: there
  // was none. Disk.
  bool EvictResponses(const SessionOwner& owner, size_t most);
  uint64_t RemovalsOf(const SessionOwner& owner) const KV_REQUIRES(mutex) {
    const auto it = removals.find(owner);
    return it == removals.end() ? 0 : it->second;
  }
  bool WasRemoved(const SessionOwner& owner, std::string_view response) const KV_REQUIRES(mutex);
  void NoteRemoved(const StoredSession& response) KV_REQUIRES(mutex);
  // Tells whether a response of the owner is being answered. O(those that are).
  bool IsAnswering(const SessionOwner& owner) const KV_REQUIRES(mutex);
  // Runs a step, and again with fewer of the owner's responses while it is kExhausted. Disk.
  template <typename Step>
  auto Evicting(const SessionOwner& owner, const Step& step) {
    auto done = step();
    for (size_t most = 1; !done && done.error().code == Code::kExhausted; most *= 2) {
      if (!EvictResponses(owner, most)) break;
      done = step();
    }
    return done;
  }

  Result<Entry> Load(const std::shared_ptr<StoredSession>& session);

  // Removes a session. Its state ends with *dead, which the caller destroys without the mutex:
  // zeroing takes time.
  void Remove(StoredSession& session, std::vector<std::shared_ptr<const void>>* dead)
      KV_REQUIRES(mutex) {
    session.removed = true;
    if (session.state) Unload(session, dead);
    by_number.erase(session.number);
    memory->Give(session.owner, session.kind, kStoredSessionBytes);
    if (session.kind == SessionKind::kResponse) {
      std::list<StoredSession*>& own = responses[session.owner];
      own.erase(session.by_age);
      if (own.empty()) responses.erase(session.owner);
      --num_responses;
      response_places.Give(session.owner, 1);
    } else {
      places.Give(session.owner, 1);
    }
    const auto it = by_id.find(session.id);
    dead->push_back(std::move(it->second));
    by_id.erase(it);
  }

  void Sweep(std::vector<std::shared_ptr<const void>>* dead) KV_REQUIRES(mutex) {
    if (limits.ttl_ns == 0) return;
    const uint64_t now = MonotonicNs();
    while (!by_use.empty()) {
      StoredSession& oldest = *by_use.front();
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

  // Tells whether a row was written to a file that was given up meanwhile: who opens it next has
  // the session.
  bool HasLeft(const std::shared_ptr<SessionFile>& to) const KV_REQUIRES(mutex) {
    return to && !file;
  }

  // Returns what to say of a session that is not there.
  Error Missing(SessionKind kind) const KV_REQUIRES(mutex) {
    return no_file && no_file->code == Code::kUnavailable ? *no_file : NoSession(kind);
  }

  const SessionLimits limits;
  const std::shared_ptr<TextMemory> memory;  // parts of states may outlive the store
  mutable Mutex mutex;
  std::unordered_map<std::string, std::shared_ptr<StoredSession>> by_id KV_GUARDED_BY(mutex);
  // Lists sessions, the newest first.
  std::map<uint64_t, StoredSession*, std::greater<>> by_number KV_GUARDED_BY(mutex);
  // Sessions with a state, used longest ago first.
  std::list<StoredSession*> by_use KV_GUARDED_BY(mutex);
  std::shared_ptr<SessionFile> file KV_GUARDED_BY(mutex);
  std::optional<Error> no_file KV_GUARDED_BY(mutex);
  // Lists each owner's responses, used longest ago first.
  std::map<SessionOwner, std::list<StoredSession*>> responses KV_GUARDED_BY(mutex);
  uint64_t num_responses KV_GUARDED_BY(mutex) = 0;
  // Calls of RemoveAll.
  std::map<SessionOwner, uint64_t> removals KV_GUARDED_BY(mutex);
  // Responses that are being answered, by their ids.
  std::map<std::string, std::shared_ptr<StoredSession>, std::less<>> running KV_GUARDED_BY(mutex);
  // The responses that each owner removed last: what goes on from one may still be answered.
  static constexpr size_t kMostRemoved = 128;
  struct Removed {
    std::deque<std::string> ids;
    bool has_left = false;  // one has left `ids` while a response of the owner was being answered
  };
  std::map<SessionOwner, Removed> removed_responses KV_GUARDED_BY(mutex);
  Shares places KV_GUARDED_BY(mutex);  // with those of sessions that are being created
  Shares response_places KV_GUARDED_BY(mutex);
  Shares::Weights weights KV_GUARDED_BY(mutex);
  uint64_t next_number KV_GUARDED_BY(mutex) = 0;
  uint64_t expired KV_GUARDED_BY(mutex) = 0;
  uint64_t unreadable KV_GUARDED_BY(mutex) = 0;  // sessions of `file` without a key
};

// A turn's place in the queue of its session.
struct SessionStore::Turn::Place {
  Place(const std::shared_ptr<Impl>& impl, const Share& share, Counts given)
      : store(impl), view(impl, share), counts(given) {}

  std::shared_ptr<Impl> store;
  SessionStore view;
  const Counts counts;
  std::shared_ptr<StoredSession> session;
  WaitingCall waiting;
};

}  // namespace kvasir
