#include "api/prompt_heads.h"

#include <algorithm>
#include <utility>

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
  uint64_t number = 0;
  Tenant* tenant = nullptr;
  std::vector<uint64_t> lines;

  ~Head() { Wipe(&lines); }
  uint64_t HeldBytes() const {
    constexpr uint64_t kPlaces = 96;  // in the table, and what the heap adds
    return sizeof(Head) + kPlaces + lines.capacity() * sizeof(lines[0]);
  }
};

struct PromptHeads::Tenant {
  bool is_erased = false;
  std::vector<Head*> heads;  // in the order of their numbers
};

PromptHeads::PromptHeads(uint64_t max_bytes, uint64_t hash_key)
    : max_bytes_(max_bytes), hash_(hash_key) {}
PromptHeads::~PromptHeads() { EraseAll(); }

HeadSpace PromptHeads::SpaceOf(std::string_view tenant) {
  if (max_bytes_ == 0) return {};
  const MutexLock lock(mutex_);
  auto found = tenants_.find(tenant);
  if (found == tenants_.end()) {
    found = tenants_.emplace(tenant, std::make_shared<Tenant>()).first;
  }
  return {this, found->second};
}

uint64_t PromptHeads::Note(Tenant& tenant, std::vector<uint64_t> lines) {
  auto made = std::make_unique<Head>();
  Head& head = *made;
  head.tenant = &tenant;
  lines.shrink_to_fit();
  head.lines = std::move(lines);
  const uint64_t bytes = head.HeldBytes();
  const MutexLock lock(mutex_);
  head.number = next_number_++;
  if (tenant.is_erased || head.lines.empty() || bytes > max_bytes_) return head.number;
  constexpr ptrdiff_t kEnd = 2;  // lines where the answer begins, which the next prompt lacks
  const auto goes_on = std::ranges::find_if(tenant.heads, [&](const Head* other) {
    const auto equal = std::ranges::mismatch(other->lines, head.lines).in1 - other->lines.begin();
    return equal > kEnd && equal + kEnd >= std::ssize(other->lines);
  });
  if (goes_on != tenant.heads.end()) Remove(**goes_on);
  while (bytes_ > max_bytes_ - bytes) Remove(by_time_.front());
  bytes_ += bytes;
  by_time_.Use(head);
  tenant.heads.push_back(&head);
  heads_.emplace(head.number, std::move(made));
  return head.number;
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

void PromptHeads::EraseOf(Tenant& tenant) {
  tenant.is_erased = true;
  while (!tenant.heads.empty()) Remove(*tenant.heads.back());
}

void PromptHeads::Erase(std::string_view tenant) {
  const MutexLock lock(mutex_);
  const auto found = tenants_.find(tenant);
  if (found == tenants_.end()) return;
  EraseOf(*found->second);
  tenants_.erase(found);
}

void PromptHeads::EraseAll() {
  const MutexLock lock(mutex_);
  for (auto& [name, tenant] : tenants_) EraseOf(*tenant);
  tenants_.clear();
}

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

void HeadSpace::AddSalt(std::string_view salt, std::vector<uint64_t>* lines) const {
  if (store_ == nullptr) return;
  const uint64_t mask = store_->hash_.Of(salt, 1);
  for (uint64_t& line : *lines) line ^= mask;
}

uint64_t HeadSpace::Note(std::vector<uint64_t> lines) const {
  return store_ != nullptr ? store_->Note(*tenant_, std::move(lines)) : 0;
}

std::vector<LineChange> HeadSpace::Explain(std::span<const uint64_t> lines, uint64_t before) const {
  return store_ != nullptr ? store_->Explain(*tenant_, lines, before) : std::vector<LineChange>();
}

}  // namespace kvasir
