// SessionStore: the memory of what it keeps, and which sessions leave it for others.
#include <fmt/format.h>

#include <utility>
#include <vector>

#include "base/result.h"
#include "session/session_store_impl.h"

namespace kvasir {
namespace {

// Returns the most that is given back when a state leaves memory: others may share its parts.
uint64_t PartBytes(const SessionState& state) {
  uint64_t bytes = state.HeldBytes();
  if (state.setup) bytes += state.setup->HeldBytes();
  if (state.response) bytes += state.response->HeldBytes();
  for (const auto& message : state.messages) bytes += message->HeldBytes();
  for (const auto& path : state.paths) bytes += path->HeldBytes();
  return bytes;
}

}  // namespace

std::string MayHave(const Shares& shares, const SessionOwner& owner) {
  const uint64_t most = shares.kept_for(owner);
  return shares.are_divided() ? fmt::format("{} are kept for you, with no room for more now", most)
                              : fmt::format("at most {} are allowed", most);
}

bool SessionStore::Impl::CanMakeRoom(const Share& share, TextMemory::Need need) {
  uint64_t given = 0, of_responses = 0;
  const MutexLock lock(mutex);
  for (const StoredSession* session : by_use) {
    if (session->owner != share.owner || !IsIdle(*session)) continue;
    const uint64_t bytes = PartBytes(*session->state);
    given += bytes;
    if (session->kind == SessionKind::kResponse) of_responses += bytes;
    const MutexLock memory_lock(memory->mutex);
    if (memory->Fits(share.owner, share.kind, need, given, of_responses)) return true;
  }
  return false;
}

bool SessionStore::Impl::UnloadIdle(const Share& share, TextMemory::Need need, size_t most) {
  std::vector<std::shared_ptr<const void>> dead;  // ends without the mutex
  const MutexLock lock(mutex);
  bool responses_alone = false;  // are in the way
  {
    const MutexLock memory_lock(memory->mutex);
    responses_alone = !memory->ResponsesFit(share.owner, share.kind, need, 0);
  }
  for (auto next = by_use.begin(); next != by_use.end() && dead.size() < most;) {
    StoredSession& session = **next++;
    if (session.owner != share.owner || !IsIdle(session)) continue;
    if (responses_alone && session.kind != SessionKind::kResponse) continue;
    Unload(session, &dead);
  }
  return !dead.empty();
}

Status SessionStore::TakeBytes(uint64_t bytes, Room room) {
  TextMemory& memory = *impl_->memory;
  if (room == Room::kMayExceed) {
    const MutexLock lock(memory.mutex);
    memory.AddBriefly(share_.owner, share_.kind, bytes);
    brief_bytes_ += bytes;
    return {};
  }
  return impl_->MakingRoom(share_, {.bytes = bytes}, [&]() -> Status {
    {
      const MutexLock lock(memory.mutex);
      if (memory.Take(share_.owner, share_.kind, bytes)) return {};
    }
    return tl::unexpected(NoMemory());
  });
}

Status SessionStore::CheckRoom(uint64_t bytes) const {
  {
    TextMemory& memory = *impl_->memory;
    const MutexLock lock(memory.mutex);
    if (memory.Fits(share_.owner, share_.kind, {.bytes = bytes}, 0, 0)) return {};
  }
  if (impl_->CanMakeRoom(share_, {.bytes = bytes})) return {};
  return tl::unexpected(NoMemory());
}

std::shared_ptr<void> SessionStore::Memory() const { return impl_->memory; }

void SessionStore::GiveBytes(void* memory, const Share& share, uint64_t bytes) {
  static_cast<TextMemory*>(memory)->Give(share.owner, share.kind, bytes);
}

// Takes memory for what was kept with kMayExceed beyond the bytes that are freed for it.
Status SessionStore::Settle(uint64_t freed_bytes) {
  TextMemory& memory = *impl_->memory;
  uint64_t brief = 0;
  {
    const MutexLock lock(memory.mutex);
    brief = brief_bytes_;
  }
  if (brief <= freed_bytes) return {};
  const uint64_t more = brief - freed_bytes;
  return impl_->MakingRoom(share_, {.bytes = more, .given = brief}, [&]() -> Status {
    {
      const MutexLock lock(memory.mutex);
      // Others than these are there while `more` is taken: what they replace still has its memory.
      memory.EndBrief(share_.kind, brief_bytes_);
      memory.GiveLocked(share_.owner, share_.kind, brief_bytes_);
      const bool fits = memory.Take(share_.owner, share_.kind, more);
      if (fits) brief_bytes_ -= more;
      memory.AddBriefly(share_.owner, share_.kind, brief_bytes_);
      if (fits) return {};
    }
    return Fail(Code::kExhausted,
                "what stays needs {} bytes more, since other sessions or calls have what it "
                "replaces: {}",
                more, NoMemory().message);
  });
}

void SessionStore::EndBrief() {
  const MutexLock lock(impl_->memory->mutex);
  impl_->memory->EndBrief(share_.kind, std::exchange(brief_bytes_, 0));
}

Error SessionStore::NoMemory() const {
  const TextMemory& memory = *impl_->memory;
  const MutexLock lock(memory.mutex);
  return {Code::kExhausted,
          fmt::format("your sessions in memory and this call hold {} bytes of text and ids, and {} "
                      "(--session-memory); delete sessions, or make them shorter",
                      memory.shares.used_by(share_.owner), MayHave(memory.shares, share_.owner))};
}

}  // namespace kvasir
