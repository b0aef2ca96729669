// PieceStore: the ids of pieces of text that were encoded before.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/lru_list.h"
#include "base/mutex.h"
#include "base/polynomial_hash.h"
#include "base/tenant_parts.h"
#include "kvasir/types.h"
#include "text/normalizer.h"
#include "text/tokenizer.h"

namespace kvasir {

// All that the ids of a piece depend on, for one Tokenizer.
struct Piece {
  std::string_view text;
  // A flag (0 or 1) for each byte: users wrote it. Empty: the whole text has no flags.
  std::string_view literal;
  TextStart start = TextStart::kBegin;
  bool parses_special = true;
};

struct PieceCounts {
  uint64_t pieces = 0, bytes = 0;     // kept now
  uint64_t found = 0, not_found = 0;  // since the start
};

class PieceSpace;

// Pieces of text between special tokens, of all tenants, with their ids. Together they take at most
// max_bytes: those that were not used for the longest time leave. What leaves is zeroed. A tenant
// finds its own pieces only: no time that it measures says what others have sent. Thread-safe.
class PieceStore {
 public:
  // hash_key: random, so that no tenant can make pieces with equal hashes.
  PieceStore(uint64_t max_bytes, uint64_t hash_key);
  ~PieceStore();
  PieceStore(const PieceStore&) = delete;
  PieceStore& operator=(const PieceStore&) = delete;

  // Returns the pieces of a tenant, for one request. REQUIRES: the store outlives it.
  PieceSpace SpaceOf(std::string_view tenant);
  // Zeroes the pieces of a tenant. What requests that have its space by now would still keep is not
  // kept: they may have read what is being forgotten. O(pieces of the tenant).
  void Erase(std::string_view tenant);
  void EraseAll();
  PieceCounts counts() const;

 private:
  friend class PieceSpace;
  struct ByUse : LruLink {};
  struct OfTenant : LruLink {};
  struct Entry;
  struct Tenant;

  std::optional<ReadsBack> Find(const Tenant& tenant, std::string_view key,
                                std::vector<TokenId>* ids);
  void Keep(Tenant& tenant, std::string key, std::span<const TokenId> ids, ReadsBack reads_back);
  void Remove(Entry& entry) KV_REQUIRES(mutex_);
  void Clear(Tenant& tenant) KV_REQUIRES(mutex_);

  const uint64_t max_bytes_;
  const PolynomialHash hash_;
  mutable Mutex mutex_;
  std::unordered_map<uint64_t, std::unique_ptr<Entry>> by_hash_ KV_GUARDED_BY(mutex_);
  LruList<Entry, ByUse> by_use_ KV_GUARDED_BY(mutex_);
  TenantParts<Tenant> tenants_ KV_GUARDED_BY(mutex_);
  uint64_t last_number_ KV_GUARDED_BY(mutex_) = 0;  // of tenants
  PieceCounts counts_ KV_GUARDED_BY(mutex_);
};

// The pieces of one tenant, for one request. Without a store it finds and keeps nothing.
// Thread-safe.
class PieceSpace {
 public:
  PieceSpace() = default;
  explicit operator bool() const { return store_ != nullptr; }

  // Appends the ids of a piece and returns what was kept with them; absent: it is not kept.
  // O(bytes).
  std::optional<ReadsBack> Find(const Piece& piece, std::vector<TokenId>* ids) const;
  // Keeps the ids of a piece, or more about one that is kept; unless it alone takes more than an
  // eighth of the store, or the tenant's pieces were erased since this space was made. O(bytes +
  // pieces that leave).
  void Keep(const Piece& piece, std::span<const TokenId> ids,
            ReadsBack reads_back = ReadsBack::kUnknown) const;

 private:
  friend class PieceStore;
  PieceSpace(PieceStore* store, std::shared_ptr<PieceStore::Tenant> tenant)
      : store_(store), tenant_(std::move(tenant)) {}
  PieceStore* store_ = nullptr;
  std::shared_ptr<PieceStore::Tenant> tenant_;
};

}  // namespace kvasir
