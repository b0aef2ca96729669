// SessionFile: sessions that outlive their process, in sessions.db of a disk tier's folder.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kvasir/secret_place.h"
#include "kvasir/session.h"
#include "kvasir/status.h"

namespace kvasir {

class Engine;
struct SessionFileListing;

bool IsSessionId(std::string_view id);  // "sess_" and 32 hex digits

// What must be the same for ids and KV of a session to mean what they meant.
struct SessionIdentity {
  std::string content;    // ModelCard::content
  std::string kv_format;  // MemoryPlan::kv_format
  bool operator==(const SessionIdentity&) const = default;
};

// A session as it lies in the file, and as `kvasir sessions export` writes it.
struct SessionRecord {
  std::string id, tenant;
  int64_t created_s = 0;  // since 1970
  SessionIdentity identity;
  SessionState state;
};
// What a list shows of a session.
struct SessionHead {
  std::string id, tenant;
  int64_t created_s = 0;  // since 1970
  SessionIdentity identity;
  SessionSetup setup;
  std::optional<uint32_t> tokens;
  uint64_t num_messages = 0;
  std::string title;  // TitleOf; "": an older version did not write it
};
// Returns one JSON object with all of it: docs/formats/sessions.md. The caller wipes it. O(text and
// ids).
std::string ToJson(const SessionRecord& record);
// Returns the same back; its messages get other numbers. Takes its memory from the store.
// kInvalidArgument names what is wrong, kExhausted: the store has no room. O(bytes).
Result<SessionRecord> ParseSessionRecord(SessionStore& store, std::string_view json);
// Reads the head of what ToJson wrote, and nothing of its messages and paths. kInvalidArgument
// names what is wrong. O(bytes before the messages; all bytes of what an older version wrote).
Result<SessionHead> ParseSessionHead(std::string_view json);

struct SessionFileOptions {
  std::string folder;  // DiskOptions::folder
  // The limit of everything in the folder; the file takes an eighth of it at most.
  uint64_t cap_bytes = uint64_t{20} << 30;
  uint64_t ttl_hours = 0;            // sessions unused for so long leave the file; 0: none leaves
  SecretPlace secret;                // under which they are sealed
  SessionIdentity identity;          // of the model that reads them now
  uint32_t vocab_size = UINT32_MAX;  // a session with other ids is damaged
  // Called with the bytes of the folder's cap that the file needs, before it grows. May be empty.
  std::function<void(uint64_t bytes)> on_need;
};
// Returns the options for the folder, the model and the limits of an engine with a disk tier, which
// gives the file its room there. REQUIRES: Engine::DiskStats; the engine outlives the file.
SessionFileOptions SessionFileOptionsOf(Engine& engine);

// The sessions of all tenants in the file. One process has it open at a time. Each call is durable
// when it returns, and all or nothing if the process or the machine ends in it. Errors of all
// calls: kExhausted: the file, the folder or the disk is full; kUnavailable: the disk fails, or the
// folder is gone (the log says why); kCorruption: the file or the session is damaged. After an
// error nothing has changed, except that Scrub::kYes may have failed after the change. Thread-safe;
// calls wait for each other and for the disk.
class SessionFile {
 public:
  // A session's row, as far as it is known without unsealing it.
  struct Row {
    std::string id;
    SessionOwner owner{};  // zero: another secret made it, or its key cannot be unsealed
    uint64_t number = 0;   // of its last change
    int64_t used_s = 0;    // since 1970
    uint64_t bytes = 0;
    bool is_readable() const { return owner != SessionOwner{}; }
  };

  // Makes the file where it is missing, and removes readable rows whose time is over. kNotFound:
  // the secret is missing; kUnavailable: another process has the file (the message says which);
  // kUnsupported: it is of a newer version; kIoError, kPermissionDenied: the disk.
  static Result<std::unique_ptr<SessionFile>> Open(const SessionFileOptions& options);
  ~SessionFile();

  Result<std::vector<Row>> List();  // in the order in which they were made. O(rows)
  // Adds change `number` of a session, under the options' identity: 1 makes the row, others replace
  // that of the number before. kNotFound: that row is not there. `scrub`: what the row had leaves
  // the disk before it returns. `may`: called before anything is written; a RemoveAll that begins
  // after it takes the row too. kCancelled: it says no.
  enum class Scrub : uint8_t { kNo, kYes };
  Status Write(const SessionRecord& record, uint64_t number, Scrub scrub,
               const std::function<bool()>& may = {});
  // Reads a session. Of another identity, it has its text alone, and identity_changed is set.
  Result<SessionRecord> Read(SessionStore& store, const SessionOwner& owner, std::string_view id);
  // Returns the row of Read with nothing changed, for export.
  Result<SessionRecord> ReadAsItIs(SessionStore& store, const SessionOwner& owner,
                                   std::string_view id);
  // Reads what a list shows of it. O(bytes), but a small part of what Read takes.
  Result<SessionHead> ReadHead(const SessionOwner& owner, std::string_view id);
  Status Touch(std::string_view id);  // it is used now
  Status Remove(const SessionOwner& owner, std::string_view id);
  // Returns all sessions of a tenant, and its key.
  Status RemoveAll(const SessionOwner& owner);
  // Removes all that the secret does not unseal, and files that were set aside, which nothing else
  // removes. Returns how many sessions of this file.
  Result<uint64_t> RemoveUnreadable();
  // Removes readable sessions whose time is over. Returns their ids.
  Result<std::vector<std::string>> RemoveOld();

  // Sets how its room is divided from now on, as Shares does (base/shares.h); what lies there
  // stays.
  void SetWeights(const std::map<SessionOwner, double>& weights);
  bool IsThere();  // its folder and it are where they were
  uint64_t bytes() const;
  uint64_t max_bytes() const;

 private:
  friend std::optional<SessionFileListing> ListSessionFile(const SessionFileOptions&);
  struct Impl;
  explicit SessionFile(std::unique_ptr<Impl> impl);
  const std::unique_ptr<Impl> impl_;
};

// Removes a tenant's key from a folder whose file cannot be opened, so that no row of it can be
// read any more. kUnavailable: another process has the file.
Status EraseUnopened(const SessionFileOptions& options, const SessionOwner& owner);

struct SessionFileCheck {
  uint64_t sessions = 0, responses = 0;  // that open
  uint64_t bytes = 0;                    // of both
  uint64_t unreadable = 0;               // that the secret does not unseal
  std::vector<std::string> damaged;      // "sess_...: why"
  std::optional<std::string> skipped;    // why nothing was opened
};
// Opens every session of the folder. Absent: it has no file of sessions.
Result<std::optional<SessionFileCheck>> CheckSessionFile(const SessionFileOptions& options);

struct SessionFileListing {
  struct Session {
    std::string id;
    uint64_t messages = 0;
    std::optional<uint32_t> tokens;  // of what it read last
    uint64_t bytes = 0;
    int64_t used_s = 0;  // since 1970
  };
  uint64_t sessions = 0, bytes = 0;    // of all
  std::vector<Session> readable;       // those that the secret unseals, the newest first
  std::optional<std::string> skipped;  // why nothing was opened
};
// Returns what the folder's file has; changes nothing, and needs no secret to count. Absent: it has
// no file of sessions. O(their bytes).
std::optional<SessionFileListing> ListSessionFile(const SessionFileOptions& options);

}  // namespace kvasir
