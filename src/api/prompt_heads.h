// PromptHeads: digests of the lines that chats began with. They tell which line changed.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "api/head_comparison.h"
#include "api/line_changes.h"
#include "base/lru_list.h"
#include "base/mutex.h"
#include "base/polynomial_hash.h"
#include "base/tenant_parts.h"

namespace kvasir {

class HeadSpace;

// What a chat's prompt begins with.
struct PromptHead {
  // Digests of what a prompt depends on. 0: the request does not have it.
  struct Parts {
    uint64_t model = 0;  // with its adapters
    uint64_t tools = 0, system = 0;
    uint64_t others = 0;  // fields that change what the template writes
    uint64_t salt = 0;
  };
  std::vector<uint64_t> lines;  // digests (HeadSpace::LinesOf)
  uint32_t said_lines = 0;      // those that end with the last message, or before
  uint32_t tokens = 0;          // of the prompt
  Parts parts;
};

// Returns where the lines of a text begin, the first PromptHeads::kMostLines, and where the last of
// them ends. A line ends with its line end, and before each byte of `cuts` (ascending). O(bytes).
std::vector<size_t> LineBegins(std::string_view text, std::span<const size_t> cuts = {});

// Keyed digests of the first kMostLines lines of the last chats, of all tenants. Together they take
// at most max_bytes: those noted longest ago leave. A tenant's chats are compared with its own
// alone. A chat is found by the ids of its last answers. Thread-safe.
class PromptHeads {
 public:
  static constexpr size_t kMostLines = 2048;

  // hash_key: random, so that no digest says what its line is.
  PromptHeads(uint64_t max_bytes, uint64_t hash_key);
  ~PromptHeads();
  PromptHeads(const PromptHeads&) = delete;
  PromptHeads& operator=(const PromptHeads&) = delete;

  // Returns the heads of a tenant, for one request. REQUIRES: this outlives it.
  HeadSpace SpaceOf(std::string_view tenant);
  // Forgets the heads of a tenant. Requests that have its space by now note nothing any more.
  void Erase(std::string_view tenant);
  void EraseAll();
  uint64_t bytes() const;  // of what is kept now

 private:
  friend class HeadSpace;
  struct ByTime : LruLink {};
  struct Head;
  struct Tenant;

  uint64_t Note(Tenant& tenant, PromptHead made, std::string_view id);
  void Compare(const Tenant& tenant, const PromptHead& here, HeadComparison* to);
  std::vector<LineChange> Explain(const Tenant& tenant, std::span<const uint64_t> lines,
                                  uint64_t before);
  void Remove(Head& head) KV_REQUIRES(mutex_);
  void Clear(Tenant& tenant) KV_REQUIRES(mutex_);

  const uint64_t max_bytes_;
  const PolynomialHash hash_;
  mutable Mutex mutex_;
  std::map<uint64_t, std::unique_ptr<Head>> heads_ KV_GUARDED_BY(mutex_);  // by number
  LruList<Head, ByTime> by_time_ KV_GUARDED_BY(mutex_);
  TenantParts<Tenant> tenants_ KV_GUARDED_BY(mutex_);
  uint64_t next_number_ KV_GUARDED_BY(mutex_) = 1;
  uint64_t bytes_ KV_GUARDED_BY(mutex_) = 0;
};

// The heads of one tenant, for one request. Without a store it keeps nothing, and tells IsErased
// alone. Thread-safe.
class HeadSpace {
 public:
  HeadSpace() = default;
  explicit operator bool() const { return store_ != nullptr; }
  // Tells whether the heads of the tenant were forgotten since the request came: what it reads is
  // erased then, and must not be kept.
  bool IsErased() const;

  // Returns the digests of a text's lines, which begin and end at `begins`. O(bytes).
  std::vector<uint64_t> LinesOf(std::string_view text, std::span<const size_t> begins) const;
  // Returns a digest of another text than a line; 0 of "".
  uint64_t DigestOf(std::string_view text) const;
  // Makes a head differ from those that another salt was given. O(lines).
  void AddSalt(std::string_view salt, PromptHead* head) const;
  // Keeps the head of a chat, in the place of a chat that it goes on with. `id`: its answer's.
  // Returns its number. O(the tenant's heads + lines).
  uint64_t Note(PromptHead head, std::string_view id) const;
  // Compares a head that is not noted yet with that of the chat that was answered as `to->with`.
  // O(the tenant's heads + lines).
  void Compare(const PromptHead& head, HeadComparison* to) const;
  // Returns what changed since the chat, noted before this number, that has most of these lines
  // after a change. Empty: there was no such chat. O(lines of the tenant's heads).
  std::vector<LineChange> Explain(std::span<const uint64_t> lines, uint64_t before) const;

 private:
  friend class PromptHeads;
  HeadSpace(PromptHeads* store, std::shared_ptr<PromptHeads::Tenant> tenant)
      : store_(store), tenant_(std::move(tenant)) {}
  PromptHeads* store_ = nullptr;
  std::shared_ptr<PromptHeads::Tenant> tenant_;
};

}  // namespace kvasir
