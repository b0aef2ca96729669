#include "api/prompt_heads.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "api/equal_lines.h"
#include "base/fault.h"
#include "base/random.h"
#include "base/wipe.h"

namespace kvasir {

std::vector<size_t> LineBegins(std::string_view text, std::span<const size_t> cuts) {
  std::vector<size_t> begins = {0};
  while (begins.size() <= PromptHeads::kMostLines && begins.back() < text.size()) {
    size_t end = std::min(text.find('\n', begins.back()), text.size() - 1) + 1;
    while (!cuts.empty() && cuts.front() <= begins.back()) cuts = cuts.subspan(1);
    if (!cuts.empty()) end = std::min(end, cuts.front());
    begins.push_back(end);
  }
  return begins;
}

struct PromptHeads::Head : ByTime {
  // An answer, whose prompt began with the first lines.
  struct Asked {
    uint64_t id;  // a digest
    uint32_t said_lines, tokens;
    PromptHead::Parts parts;
  };

  uint64_t number = 0;
  Tenant* tenant = nullptr;
  std::vector<uint64_t> lines;
  std::vector<Asked> asked;  // the last ones of this chat, the newest last
  uint64_t said_digest = 0;  // of the lines that the newest one's prompt said

  ~Head() { Wipe(&lines); }
  uint64_t HeldBytes() const {
    constexpr uint64_t kPlaces = 96;  // in the table, and what the heap adds
    return sizeof(Head) + kPlaces + lines.capacity() * sizeof(lines[0]) +
           asked.capacity() * sizeof(asked[0]);
  }
};

struct PromptHeads::Tenant {
  std::atomic<bool> is_erased = false;
  std::vector<Head*> heads;  // in the order of their numbers
};

PromptHeads::PromptHeads(uint64_t max_bytes, uint64_t hash_key)
    : max_bytes_(max_bytes), hash_(hash_key) {}
PromptHeads::~PromptHeads() { EraseAll(); }

HeadSpace PromptHeads::SpaceOf(std::string_view tenant) {
  if (FaultActive(Fault::kHeadsOfAllTenants)) tenant = "";
  const MutexLock lock(mutex_);
  return {max_bytes_ > 0 ? this : nullptr, tenants_.Of(tenant)};
}

namespace {

// Seeds of digests: lines have 0.
constexpr uint64_t kSaltSeed = 1, kIdSeed = 2, kPartSeed = 3;

bool BeginsWithLines(std::span<const uint64_t> text, std::span<const uint64_t> lines) {
  return NumEqualLines(text, lines) == lines.size();
}

// Returns a digest of each beginning of a text: [n] of its first n lines.
std::vector<uint64_t> DigestBeginnings(std::span<const uint64_t> lines) {
  std::vector<uint64_t> digests = {0};
  digests.reserve(lines.size() + 1);
  for (const uint64_t line : lines) digests.push_back(Mix64(digests.back() ^ line));
  return digests;
}

}  // namespace

uint64_t PromptHeads::Note(Tenant& tenant, PromptHead made, std::string_view id) {
  auto owned = std::make_unique<Head>();
  Head& head = *owned;
  head.tenant = &tenant;
  made.lines.shrink_to_fit();
  head.lines = std::move(made.lines);
  const uint64_t id_digest = hash_.Of(id, kIdSeed);
  const std::vector<uint64_t> beginnings = DigestBeginnings(head.lines);
  head.said_digest = beginnings[std::min<size_t>(made.said_lines, head.lines.size())];
  const MutexLock lock(mutex_);
  head.number = next_number_++;
  if (tenant.is_erased || head.lines.empty()) return head.number;
  const auto goes_on = std::ranges::find_if(tenant.heads, [&](const Head* other) {
    // Without the lines where its answer begins, which the next prompt may lack.
    const size_t said = other->asked.back().said_lines;
    return said > 0 && said < beginnings.size() && beginnings[said] == other->said_digest &&
           BeginsWithLines(head.lines, std::span(other->lines).first(said));
  });
  Head* const before = goes_on != tenant.heads.end() ? *goes_on : nullptr;
  constexpr size_t kMostAsked = 16;
  if (before != nullptr) head.asked = before->asked;
  if (head.asked.size() == kMostAsked) head.asked.erase(head.asked.begin());
  head.asked.push_back({id_digest, made.said_lines, made.tokens, made.parts});
  head.asked.shrink_to_fit();
  const uint64_t bytes = head.HeldBytes();
  if (bytes > max_bytes_) return head.number;
  if (before != nullptr) Remove(*before);
  while (bytes_ > max_bytes_ - bytes) Remove(by_time_.front());
  bytes_ += bytes;
  by_time_.Use(head);
  tenant.heads.push_back(&head);
  const uint64_t number = head.number;
  heads_.emplace(number, std::move(owned));
  return number;
}

void PromptHeads::Compare(const Tenant& tenant, const PromptHead& here, HeadComparison* to) {
  const uint64_t id = hash_.Of(to->with, kIdSeed);
  const MutexLock lock(mutex_);
  to->change = HeadChange::kUnknown;
  for (const Head* head : tenant.heads) {
    const auto asked = std::ranges::find(head->asked, id, &Head::Asked::id);
    if (asked == head->asked.end() || asked->parts.salt != here.parts.salt) continue;
    const std::span<const uint64_t> said = std::span(head->lines).first(asked->said_lines);
    to->tokens = asked->tokens;
    to->is_whole = asked->said_lines < kMostLines;
    if (asked->parts.model != here.parts.model) {
      to->change = HeadChange::kModel;
    } else if (BeginsWithLines(here.lines, said)) {
      to->change = HeadChange::kNone;
    } else if (asked->parts.tools != here.parts.tools) {
      to->change = HeadChange::kTools;
    } else if (asked->parts.system != here.parts.system) {
      to->change = HeadChange::kSystem;
    } else {
      const bool only_messages = asked->parts.others == here.parts.others;
      to->change = only_messages ? HeadChange::kMessages : HeadChange::kUnavailable;
    }
    return;
  }
}

std::vector<LineChange> PromptHeads::Explain(const Tenant& tenant, std::span<const uint64_t> lines,
                                             uint64_t before) {
  std::vector<LineChange> best;
  uint32_t most = 0;
  const MutexLock lock(mutex_);
  for (const Head* head : tenant.heads) {
    if (head->number >= before) break;
    std::vector<LineChange> changes = ChangesBetween(lines, head->lines);
    uint32_t equal = 0;
    for (const LineChange& change : changes) equal += change.equal_end - change.equal_begin;
    if (equal < std::max(most, 1u)) continue;
    most = equal;
    best = std::move(changes);
  }
  return best;
}

void PromptHeads::Remove(Head& head) {
  bytes_ -= head.HeldBytes();
  std::erase(head.tenant->heads, &head);
  by_time_.Remove(head);
  heads_.erase(heads_.find(head.number));
}

void PromptHeads::Clear(Tenant& tenant) {
  while (!tenant.heads.empty()) Remove(*tenant.heads.back());
}

void PromptHeads::Erase(std::string_view tenant) {
  const MutexLock lock(mutex_);
  if (const auto part = tenants_.Take(tenant)) Clear(*part);
}

void PromptHeads::EraseAll() {
  const MutexLock lock(mutex_);
  while (const auto part = tenants_.TakeAny()) Clear(*part);
}

bool HeadSpace::IsErased() const { return tenant_ && tenant_->is_erased; }

uint64_t PromptHeads::bytes() const {
  const MutexLock lock(mutex_);
  return bytes_;
}

std::vector<uint64_t> HeadSpace::LinesOf(std::string_view text,
                                         std::span<const size_t> begins) const {
  std::vector<uint64_t> lines;
  if (store_ == nullptr) return lines;
  lines.reserve(begins.size() - 1);
  for (size_t i = 0; i + 1 < begins.size(); ++i) {
    lines.push_back(store_->hash_.Of(text.substr(begins[i], begins[i + 1] - begins[i])));
  }
  return lines;
}

uint64_t HeadSpace::DigestOf(std::string_view text) const {
  return store_ != nullptr && !text.empty() ? store_->hash_.Of(text, kPartSeed) : 0;
}

void HeadSpace::AddSalt(std::string_view salt, PromptHead* head) const {
  if (store_ == nullptr) return;
  const uint64_t mask = store_->hash_.Of(salt, kSaltSeed);
  for (uint64_t& line : head->lines) line ^= mask;
  head->parts.salt = mask;
}

uint64_t HeadSpace::Note(PromptHead head, std::string_view id) const {
  return store_ != nullptr ? store_->Note(*tenant_, std::move(head), id) : 0;
}

void HeadSpace::Compare(const PromptHead& head, HeadComparison* to) const {
  if (store_ != nullptr) store_->Compare(*tenant_, head, to);
}

std::vector<LineChange> HeadSpace::Explain(std::span<const uint64_t> lines, uint64_t before) const {
  return store_ != nullptr ? store_->Explain(*tenant_, lines, before) : std::vector<LineChange>();
}

}  // namespace kvasir
