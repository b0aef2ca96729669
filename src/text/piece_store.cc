#include "text/piece_store.h"

#include <algorithm>
#include <cstring>

#include "base/wipe.h"

namespace kvasir {
namespace {

// Writes a piece as bytes: its flags, how many runs of literal flags it has, where each ends, its
// text.
std::string KeyOf(const Piece& piece) {
  std::string key;
  key.reserve(32 + piece.text.size());
  const bool begins_literal = !piece.literal.empty() && piece.literal.front() != 0;
  key += static_cast<char>(static_cast<int>(piece.start) | (piece.parses_special ? 4 : 0) |
                           (begins_literal ? 8 : 0));
  const auto put = [&key](size_t at, uint32_t number) {
    std::memcpy(key.data() + at, &number, sizeof(number));
  };
  uint32_t runs = 0;
  key.append(sizeof(runs), '\0');
  for (size_t begin = 0; begin < piece.literal.size(); ++runs) {
    const char other = piece.literal[begin] != 0 ? '\0' : '\1';
    begin = std::min(piece.literal.find(other, begin), piece.literal.size());
    key.append(sizeof(uint32_t), '\0');
    put(key.size() - sizeof(uint32_t), static_cast<uint32_t>(begin));
  }
  put(1, runs);
  key += piece.text;
  return key;
}

}  // namespace

struct PieceStore::Entry : ByUse, OfTenant {
  uint64_t hash = 0;
  Tenant* tenant = nullptr;
  std::string key;
  std::vector<TokenId> ids;
  ReadsBack reads_back = ReadsBack::kUnknown;

  ~Entry() {
    Wipe(&key);
    Wipe(&ids);
  }
  uint64_t HeldBytes() const {
    constexpr uint64_t kPlaces = 120;  // in the table, and what the heap adds
    return sizeof(Entry) + kPlaces + key.capacity() + ids.capacity() * sizeof(TokenId);
  }
};

struct PieceStore::Tenant {
  uint64_t number = 0;  // from 1; no other has it
  bool is_erased = false;
  LruList<Entry, OfTenant> entries;
};

PieceStore::PieceStore(uint64_t max_bytes, uint64_t hash_key)
    : max_bytes_(max_bytes), hash_(hash_key) {}
PieceStore::~PieceStore() { EraseAll(); }

PieceSpace PieceStore::SpaceOf(std::string_view tenant) {
  const MutexLock lock(mutex_);
  const std::shared_ptr<Tenant> part = tenants_.Of(tenant);
  if (part->number == 0) part->number = ++last_number_;
  return {this, part};
}

std::optional<ReadsBack> PieceStore::Find(const Tenant& tenant, std::string_view key,
                                          std::vector<TokenId>* ids) {
  const uint64_t hash = hash_.Of(key, tenant.number);
  const MutexLock lock(mutex_);
  const auto found = by_hash_.find(hash);
  if (found == by_hash_.end() || found->second->tenant != &tenant || found->second->key != key) {
    ++counts_.not_found;
    return std::nullopt;
  }
  Entry& entry = *found->second;
  ids->insert(ids->end(), entry.ids.begin(), entry.ids.end());
  by_use_.Use(entry);
  ++counts_.found;
  return entry.reads_back;
}

void PieceStore::Keep(Tenant& tenant, std::string key, std::span<const TokenId> ids,
                      ReadsBack reads_back) {
  auto made = std::make_unique<Entry>();
  Entry& entry = *made;
  entry.hash = hash_.Of(key, tenant.number);
  entry.tenant = &tenant;
  entry.key = std::move(key);
  entry.ids.assign(ids.begin(), ids.end());
  entry.reads_back = reads_back;
  const uint64_t bytes = entry.HeldBytes();
  if (bytes > max_bytes_ / 8) return;
  const MutexLock lock(mutex_);
  if (tenant.is_erased) return;
  if (const auto other = by_hash_.find(entry.hash); other != by_hash_.end()) Remove(*other->second);
  while (counts_.bytes > max_bytes_ - bytes) Remove(by_use_.front());
  by_hash_.emplace(entry.hash, std::move(made));
  tenant.entries.Use(entry);
  by_use_.Use(entry);
  counts_.bytes += bytes;
  ++counts_.pieces;
}

void PieceStore::Remove(Entry& entry) {
  counts_.bytes -= entry.HeldBytes();
  --counts_.pieces;
  entry.tenant->entries.Remove(entry);
  by_use_.Remove(entry);
  by_hash_.erase(by_hash_.find(entry.hash));
}

void PieceStore::Clear(Tenant& tenant) {
  while (!tenant.entries.empty()) Remove(tenant.entries.front());
}

void PieceStore::Erase(std::string_view tenant) {
  const MutexLock lock(mutex_);
  if (const auto part = tenants_.Take(tenant)) Clear(*part);
}

void PieceStore::EraseAll() {
  const MutexLock lock(mutex_);
  while (const auto part = tenants_.TakeAny()) Clear(*part);
}

PieceCounts PieceStore::counts() const {
  const MutexLock lock(mutex_);
  return counts_;
}

std::optional<ReadsBack> PieceSpace::Find(const Piece& piece, std::vector<TokenId>* ids) const {
  return store_ != nullptr ? store_->Find(*tenant_, KeyOf(piece), ids) : std::nullopt;
}

void PieceSpace::Keep(const Piece& piece, std::span<const TokenId> ids,
                      ReadsBack reads_back) const {
  if (store_ != nullptr) store_->Keep(*tenant_, KeyOf(piece), ids, reads_back);
}

}  // namespace kvasir
