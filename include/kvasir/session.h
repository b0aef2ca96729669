// Sessions: conversations that are kept between calls, edited, forked and forgotten.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kvasir/status.h"
#include "kvasir/tenant.h"
#include "kvasir/types.h"

namespace kvasir {

class SessionStore;

// A named part of a message's content, in code points: [begin, end).
struct MessageSegment {
  std::string name;
  uint32_t begin = 0, end = 0;
};

// One message. Its text and ids are zeroed when it ends.
struct SessionMessage {
  uint64_t number = NewNumber();   // the same in forks, and after an edit; else no other has it
  uint64_t version = NewNumber();  // the same in forks; another one after an edit
  std::string role, content;       // UTF-8
  bool generated = false;          // an answer of this session
  bool ids_read_back = false;      // it was checked that the ids decode to it, wherever they stand
  // Generated: the ids that stand for the first ids_bytes bytes of that text. Those of an answer
  // that a stop string cut stand for a part of it.
  std::vector<TokenId> ids;
  uint64_t ids_bytes = 0;

  // What few messages have; it takes memory only where there is some of it. Zeroed when it ends.
  struct More {
    // The message as JSON with its other fields, such as tool_calls, in their order; its content is
    // "". Empty: it has only a role and a content.
    std::string fields;
    // Generated: the text as the model wrote it, where it is not the content: with its thoughts and
    // calls.
    std::string written;
    std::vector<MessageSegment> segments;  // ascending, apart

    More() = default;
    More(const More&) = default;
    More(More&&) = default;
    ~More();
    More WithoutWritten() const;  // beside a text that the model did not write
  };
  const More& more() const;
  void SetMore(More more);
  bool is_system() const { return role == "system" || role == "developer"; }

  SessionMessage() = default;
  SessionMessage(SessionMessage&&) = default;
  SessionMessage& operator=(SessionMessage&&) = delete;  // the old text would not be zeroed
  ~SessionMessage();
  uint64_t HeldBytes() const;
  static uint64_t NewNumber();

 private:
  std::unique_ptr<const More> more_;
};

// What a session is created with and keeps. Texts are JSON objects, or "". Zeroed when it
// ends.
struct SessionSetup {
  std::string model;     // the name that answers have
  std::string fields;    // tools, chat_template_kwargs, cache, as chat completions take them
  std::string sampling;  // defaults of generate, as chat completions take them
  std::string metadata;
  std::string origin = "api";  // who made it: "page", "chat", or what a program says
  uint32_t max_context = 0;    // tokens of prompt and answer
  bool drops_oldest = false;   // a full context drops the oldest turns; else generate is refused
  bool prepare = false;   // after an answer, what the next turn shows of the history is computed
  bool exact_ids = true;  // answers stand in prompts with the ids that were generated
  bool on_disk = true;    // it outlives the process where the store has a file

  SessionSetup() = default;
  SessionSetup(SessionSetup&&) = default;
  ~SessionSetup();
  uint64_t HeldBytes() const;
};

// The namespace of a cache in which a path was read. It stays what it was when the tenant joins or
// leaves a share group.
struct PathSpace {
  // GenerateRequest::cache_owner, else its tenant. Absent: an older version did not note it.
  std::optional<std::string> owner;
  std::optional<std::string> salt;  // GenerateRequest::cache_salt
  std::string adapters = {};        // Receipt::adapter_digest; "": it was read without adapters
  bool operator==(const PathSpace&) const = default;
};

// The ids of a prompt and its answer that a session has read: where its KV is, so that it can be
// forgotten. Zeroed when it ends.
struct SessionPath {
  // The first `shared` ids are those of the path `parent` of the session; then come `ids`.
  uint32_t parent = 0, shared = 0;
  std::vector<TokenId> ids;
  // The messages that begin in `ids`, and where: an index in the whole. In the shared ids those
  // that are not the parent's (BeginsOf).
  struct Begin {
    uint64_t number = 0, version = 0;  // of the SessionMessage
    uint32_t at = 0;
    bool is_system = false;  // SessionMessage::is_system
  };
  std::vector<Begin> begins;
  // Where the last message begins, if a forget took the rest of it: others go on from what is left.
  std::optional<uint32_t> cut_at;
  PathSpace space;

  SessionPath() = default;
  SessionPath(SessionPath&&) = default;
  ~SessionPath();
  uint64_t HeldBytes() const;
};
using SessionPaths = std::vector<std::shared_ptr<const SessionPath>>;

// Returns the ids of a whole path. O(their number).
std::vector<TokenId> IdsOf(const SessionPaths& paths, size_t index);
// Returns the messages that begin in a whole path, in the order of their places. O(all * paths).
std::vector<SessionPath::Begin> BeginsOf(const SessionPaths& paths, size_t index);
// Adds what a session has read once more, in `space`: `ids`, in which `begins` says where messages
// begin. Returns the paths with it, which share what they begin with. O(ids + paths).
// kJoins: a path that the added one goes on from goes, since that has all of it. kLongStays: one
// that is longer than what is added stays, so that states which have it share its memory: of n
// paths that go on from each other about log n are left.
enum class LastPath : uint8_t { kJoins, kLongStays };
Result<SessionPaths> AddPath(SessionStore& store, const SessionPaths& paths,
                             std::vector<TokenId> ids, std::vector<SessionPath::Begin> begins,
                             PathSpace space, LastPath last = LastPath::kJoins);

// The answer of a stored response, as the client got it. Zeroed when it ends.
struct ResponseBody {
  std::string json;

  ResponseBody() = default;
  explicit ResponseBody(std::string given) : json(std::move(given)) {}
  ResponseBody(ResponseBody&&) = default;
  ~ResponseBody();
  uint64_t HeldBytes() const;
};

// Everything that a session says. Never changes once a store keeps it: each change makes another
// one, so that forks share it, and a reader never sees half a change.
struct SessionState {
  std::shared_ptr<const SessionSetup> setup;
  std::vector<std::shared_ptr<const SessionMessage>> messages;
  std::shared_ptr<const ResponseBody> response;  // of a stored response
  SessionPaths paths;              // what it has read; edits leave it, since the KV is still there
  uint32_t dropped = 0;            // messages after the system message that prompts leave out
  std::optional<uint32_t> tokens;  // of its prompt; absent: not counted since the last change
  // Another model or KV format read it last, so its KV is not there; until the next answer.
  bool identity_changed = false;
  uint64_t HeldBytes() const;

  bool has_system() const { return !messages.empty() && messages.front()->is_system(); }
  // Returns the first message that prompts have after the system message.
  size_t first_shown() const { return (has_system() ? 1 : 0) + dropped; }
};

// Returns the first words of the user's first message, 60 characters at most; "": it has none.
std::string TitleOf(const SessionState& state);

struct SessionLimits {
  uint32_t max_sessions = 1024;
  uint32_t max_responses = 0;                      // they take half of memory_bytes at most
  uint64_t memory_bytes = uint64_t{64} << 20;      // of everything that sessions hold
  uint64_t ttl_ns = uint64_t{86'400'000'000'000};  // without a call; 0: sessions stay
};
inline constexpr size_t kMaxSessionQueue = 8;  // calls of a session that wait

class SessionFile;  // kvasir/session_file.h

// The owner of a session: a digest of the tenant's name.
using SessionOwner = std::array<uint8_t, 32>;
SessionOwner SessionOwnerOf(std::string_view tenant);

struct SessionCounts {
  uint64_t sessions = 0, responses = 0;
  uint64_t bytes = 0, response_bytes = 0;  // of all; of responses alone
  uint64_t expired = 0;                    // since the start
  uint64_t unreadable = 0;                 // sessions of the file that its secret does not unseal
};

// What is kept: a session, or a response, whose id is "resp_" and 32 random hex digits. A response
// is a session that never changes and that no list shows.
enum class SessionKind : uint8_t { kSession, kResponse };
SessionKind KindOfId(std::string_view id);

// The sessions of all tenants. A session belongs to the tenant that made it; others cannot tell it
// from one that does not exist. It holds text and ids only, no KV: what it says can always be
// computed. Sessions leave only when they are removed or expire: a full store refuses new ones.
// Where several tenants are named (SetTenants), half of its places and bytes, and of the file's, is
// divided among them by weight and kept for them; one has at most half of what is left.
//
// Responses have places apart, and half of the memory at most, divided in the same way. Where one
// does not fit, those of its tenant that were used longest ago go.
//
// With a file (UseFile) its sessions are the store's too, and those that setups want there are
// written at each change: a call that returned is durable, one that failed has changed nothing.
// Such a session leaves memory at SessionLimits::ttl_ns and is read again when it is used. Calls
// marked "disk" wait for the file then, and have its errors (kvasir/session_file.h) too.
// Thread-safe; calls without that mark wait for a mutex alone, which is held briefly.
class SessionStore {
 public:
  struct Entry {
    std::string id;         // "sess_" and 32 random hex digits
    int64_t created_s = 0;  // since 1970
    std::shared_ptr<const SessionState> state;
    bool on_disk = false;       // it outlives the process
    uint64_t num_messages = 0;  // of the state; a Page's state may lack them
    std::string title = {};     // of a state without its messages; else TitleOf has it
  };
  struct Page {
    std::vector<Entry> entries;
    std::string first_id, last_id;  // also of those that are left out: the next page goes on there
    bool has_more = false;
    uint64_t damaged = 0, newer = 0;  // sessions that are left out; newer: of a newer version
  };
  class Turn;
  struct Impl;

  explicit SessionStore(const SessionLimits& limits);
  ~SessionStore();
  SessionStore(const SessionStore&) = delete;
  SessionStore& operator=(const SessionStore&) = delete;

  // kMayExceed: for what replaces other parts, so that a full store can be made smaller. Turn::
  // Replace takes memory for what is more than the parts that it ends.
  enum class Room { kWithinLimit, kMayExceed };
  // Returns the same store, whose Keep takes memory of this tenant's share.
  SessionStore Of(std::string_view tenant) const;
  // Returns the same store, whose Find, FindLoaded, Queue and Keep are about responses.
  SessionStore Responses() const;
  // Takes memory for a part of a state, of the share of the tenant that the store is Of, for which
  // its idle sessions leave memory. kExhausted: it does not fit, and the part is destroyed.
  template <typename Part>
  Result<std::shared_ptr<const Part>> Keep(Part part, Room room = Room::kWithinLimit);
  // Does the same for a part that others have too. kExhausted: it stays as it is.
  template <typename Part>
  Result<std::shared_ptr<const Part>> KeepShared(std::shared_ptr<const Part> part);
  Status CheckRoom(uint64_t bytes) const;  // kExhausted: no room, whichever sessions leave

  // Sets the tenants among whom it is divided from now on; what they have stays.
  void SetTenants(const TenantTable& tenants);
  // Takes the sessions of an open file, and writes to it from now on. Sessions that this one
  // does not have are written to it at their next change or sweep. Disk.
  Status UseFile(std::shared_ptr<SessionFile> file);
  // Gives the file up, so that another process can open it: the sessions that it has leave this
  // store, and calls for them get `why` (kUnavailable) until UseFile. A call that is under way
  // closes the file at its end.
  void LeaveFile(Error why);
  // Says why sessions are not written to a file, until UseFile. With kUnavailable the file may be
  // opened later, so calls for an unknown session get this error instead of kNotFound.
  void set_no_file(Error why);
  std::optional<Error> no_file() const;
  std::shared_ptr<SessionFile> file() const;

  // kExhausted when the tenant has as many sessions as it may, or no memory for one. `removals`, of
  // a state that another session has: Removals(tenant) before that was read; kNotFound: RemoveAll
  // came since. Disk.
  Result<Entry> Create(std::string_view tenant, SessionState state,
                       std::optional<uint64_t> removals = {});
  // Stores a response of the tenant under an id that no other one has. `make` returns its state,
  // whose new parts `own` keeps; it is called again after others had to go. kExhausted: it does
  // not fit even so. kCancelled: RemoveAll came since Removals(tenant) was `removals`, or the
  // response `previous`, which it goes on from, was removed lately; then the file has nothing of
  // it either, whenever the process ends. Disk.
  using MakeState = std::function<Result<SessionState>(SessionStore& own)>;
  Status Store(std::string_view tenant, std::string id, uint64_t removals, const MakeState& make,
               std::string_view previous = "");
  // Says that a response is being answered, which may be stored. Queue finds it from now on: its
  // turns come when the turn that this returns ends.
  std::shared_ptr<Turn> Announce(std::string_view tenant, std::string id);
  // Returns how often RemoveAll was called for the tenant.
  uint64_t Removals(std::string_view tenant) const;
  // kNotFound where this tenant has no session of this id, as for all calls that take one. Counts
  // as a use of the session, and does not wait for its turn. Disk.
  Result<Entry> Find(std::string_view tenant, std::string_view id);
  // Returns the same of a session that is in memory; absent: it is not.
  std::optional<Entry> FindLoaded(std::string_view tenant, std::string_view id);
  // Returns the tenant's sessions, the newest first; those after the session `after`, if one is
  // given. A session that cannot be read is left out. O(sessions). Disk.
  Result<Page> List(std::string_view tenant, std::optional<std::string_view> after, size_t limit);
  // Returns the tenant's sessions that are in memory, the newest first. O(sessions).
  std::vector<Entry> Loaded(std::string_view tenant, size_t limit);
  // Takes the next turn of a session: turns of a session come one at a time, in the order of these
  // calls. If the turn has not come yet, `on_turn` is called once when it comes, by any thread; it
  // must not block. kExhausted when kMaxSessionQueue turns wait already.
  Result<std::shared_ptr<Turn>> Queue(std::string_view tenant, std::string_view id,
                                      std::function<void()> on_turn);
  // Removes the tenant's sessions and responses, at once. Returns how many sessions. After an error
  // they are in the file alone. Disk.
  Result<size_t> RemoveAll(std::string_view tenant);
  // Returns the states of the tenant's sessions and responses that are in memory, except that of
  // `id`.
  std::vector<std::shared_ptr<const SessionState>> OthersOf(std::string_view tenant,
                                                            std::string_view id) const;
  // Returns the bytes of a tenant's sessions and responses; absent: some left memory. O(sessions).
  std::optional<uint64_t> BytesOf(std::string_view tenant) const;
  // Removes sessions whose time is over. Every call above does it too. O(1) without such sessions.
  void Sweep();
  // Returns the same for those in the file, and tells it which are in use. O(sessions). Disk.
  Status SweepFile();
  SessionCounts counts() const;
  // Returns responses and response_bytes of a tenant; the others are 0.
  SessionCounts ResponsesOf(std::string_view tenant) const;
  const SessionLimits& limits() const;

 private:
  enum class Counts : uint8_t { kAsUse, kNot };  // of a turn
  Result<std::shared_ptr<Turn>> Queue(std::string_view tenant, std::string_view id,
                                      std::function<void()> on_turn, Counts counts);
  Status WriteUnwritten();
  // The share that Keep takes of; an owner of zeros: no tenant's.
  struct Share {
    SessionOwner owner{};
    SessionKind kind = SessionKind::kSession;
  };
  SessionStore(std::shared_ptr<Impl> impl, const Share& share);
  Status TakeBytes(uint64_t bytes, Room room = Room::kWithinLimit);
  std::shared_ptr<void> Memory() const;
  static void GiveBytes(void* memory, const Share& share, uint64_t bytes);
  Error NoMemory() const;
  Status Settle(uint64_t freed_bytes);
  void EndBrief();

  const std::shared_ptr<Impl> impl_;
  const Share share_;
  uint64_t brief_bytes_ = 0;  // kept with kMayExceed; with the mutex of the memory
};

// A place in the queue of a session, then its turn, until its end. Its holder alone changes the
// session. May outlive the store. One thread at a time, except has_come.
class SessionStore::Turn {
 public:
  ~Turn();  // gives the turn to the next one
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

  bool has_come() const;
  const std::string& id() const;
  bool on_disk() const;   // changes wait for the file
  SessionStore& store();  // Of the session's tenant; until the turn ends
  // Returns the session as it is now. kNotFound: it was removed while this waited. Disk.
  // REQUIRES, as for the others: has_come().
  Result<Entry> Read() const;
  // When a change is in the file: when Replace returns, or with the next one that is; kNowIfKept:
  // as kNow, but what has no row yet stays in memory alone where the file cannot take it.
  enum class Durable { kNow, kLater, kNowIfKept };
  // Replaces the state. kNotFound as Read; kExhausted: no memory, and nothing has changed. Disk; of
  // messages that the new state lacks nothing is left in the file when it returns. Where parts that
  // were kept with Room::kMayExceed are more than what leaves memory, because forks share that,
  // idle sessions of the tenant that are in the file leave memory, and then this one.
  // REQUIRES, with kLater: it has the same messages.
  Status Replace(SessionState state, Durable durable = Durable::kNow);
  // Removes it. After an error the session's text is in the file alone. Disk.
  Status Remove();
  // Does the same: what it says leaves memory, and is read again when it is used. False: the file
  // has nothing of it.
  bool LeaveMemory();
  // Ends the turn before this object ends.
  void End();

 private:
  friend class SessionStore;
  struct Place;
  explicit Turn(std::shared_ptr<Place> place) : place_(std::move(place)) {}
  std::shared_ptr<Place> place_;  // null: it has ended
};

template <typename Part>
Result<std::shared_ptr<const Part>> SessionStore::Keep(Part part, Room room) {
  const uint64_t bytes = part.HeldBytes();
  if (Status taken = TakeBytes(bytes, room); !taken) return tl::unexpected(taken.error());
  return std::shared_ptr<const Part>(new Part(std::move(part)),
                                     [memory = Memory(), share = share_, bytes](const Part* kept) {
                                       delete kept;
                                       GiveBytes(memory.get(), share, bytes);
                                     });
}

template <typename Part>
Result<std::shared_ptr<const Part>> SessionStore::KeepShared(std::shared_ptr<const Part> part) {
  const uint64_t bytes = part->HeldBytes();
  if (Status taken = TakeBytes(bytes); !taken) return tl::unexpected(taken.error());
  const Part* const at = part.get();
  return std::shared_ptr<const Part>(
      at, [memory = Memory(), share = share_, bytes, part = std::move(part)](const Part*) mutable {
        part = nullptr;
        GiveBytes(memory.get(), share, bytes);
      });
}

// Token `first` of a path and all after it are forgotten.
struct ForgottenPath {
  size_t path = 0;
  uint32_t first = 0;
  std::optional<uint32_t> cut_at = {};  // where the forgotten message begins; absent: at `first`
};
// Returns the paths without what is forgotten of them; one that shares forgotten ids keeps them,
// unless they are forgotten of it too. With Room::kMayExceed it does not fail.
Result<SessionPaths> WithoutForgotten(SessionStore& store, const SessionPaths& paths,
                                      std::span<const ForgottenPath> forgotten,
                                      SessionStore::Room room);
// Returns where each path comes to a message that the state has not, or has with another text.
std::vector<ForgottenPath> NotContained(const SessionState& state);
// Returns how many ids of each path are before that.
std::vector<uint32_t> ContainedTokens(const SessionState& state);

// Changes of a state. Each returns another state and takes the memory of new messages from the
// store: kExhausted when it has none left. kInvalidArgument names the field: a place outside the
// session or its message, or a segment that is named as another one of the session. O(messages).

Result<SessionState> Append(SessionStore& store, const SessionState& state,
                            std::vector<SessionMessage> messages);
enum class LaterMessages { kGo, kStay };
// Gives message `index` another content; it keeps its role.
Result<SessionState> Edit(SessionStore& store, const SessionState& state, size_t index,
                          SessionMessage message, LaterMessages later);
// Replaces the system message, or puts it before all others.
Result<SessionState> SetSystem(SessionStore& store, const SessionState& state,
                               SessionMessage message);
Result<SessionState> Truncate(const SessionState& state, uint64_t num_messages);
// Returns the first messages, for another session: with no ids of what they do not say.
Result<SessionState> ForkOf(SessionStore& store, const SessionState& state, uint64_t num_messages);

// Messages [begin, end) of a session.
struct MessageRange {
  size_t begin = 0, end = 0;
};
// Takes messages out. REQUIRES: the session has them.
SessionState RemoveMessages(const SessionState& state, const MessageRange& range);
// Returns the messages of the last turns: each begins with a message of the user. kInvalidArgument,
// of the field "last": the session has fewer turns.
Result<MessageRange> LastTurns(const SessionState& state, uint64_t turns);

// A part of a message, in code points; absent `end`: all of the message.
struct SessionPart {
  size_t index = 0;
  uint32_t begin = 0;
  std::optional<uint32_t> end;
};
// kNotFound: the session has no segment of this name.
Result<SessionPart> FindSegment(const SessionState& state, std::string_view name);
// Takes a part out: a message, or code points of its content, with what is named there. What it
// keeps may exceed the store's memory until Turn::Replace.
Result<SessionState> Remove(SessionStore& store, const SessionState& state,
                            const SessionPart& part);

// Returns the segments of a content that has all of them, in ascending order. kInvalidArgument: one
// is empty, ends outside the content or before it begins, or overlaps another one.
Result<std::vector<MessageSegment>> OrderSegments(std::vector<MessageSegment> segments,
                                                  std::string_view content);
// Returns the byte at which code point `index` of well-formed text begins; absent: it has fewer.
std::optional<size_t> ByteOfCodePoint(std::string_view text, uint64_t index);

}  // namespace kvasir
