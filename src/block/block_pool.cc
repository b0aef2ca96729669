#include "block/block_pool.h"

#include <cstring>

#include "base/bytes.h"
#include "base/check.h"
#include "base/result.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(address, size) ((void)(address), (void)(size))
#define ASAN_UNPOISON_MEMORY_REGION(address, size) ((void)(address), (void)(size))
#endif

namespace kvasir {

Result<std::unique_ptr<BlockPool>> BlockPool::Create(uint64_t block_bytes, uint32_t num_blocks) {
  KV_CHECK(block_bytes % 64 == 0);
  const auto bytes = CheckedMul(block_bytes, num_blocks);
  if (!bytes || *bytes == 0) {
    return Fail(Code::kInvalidArgument, "block pool: {} blocks of {} bytes", num_blocks,
                block_bytes);
  }
  auto arena = Arena::Create(*bytes);
  if (!arena) {
    return Fail(arena.error().code, "block pool: {}; lower --kv-memory", arena.error().message);
  }
  return std::unique_ptr<BlockPool>(new BlockPool(block_bytes, num_blocks, std::move(*arena)));
}

BlockPool::BlockPool(uint64_t block_bytes, uint32_t num_blocks, Arena arena)
    : block_bytes_(block_bytes),
      num_blocks_(num_blocks),
      arena_(std::move(arena)),
      base_(arena_.Take(arena_.size())),
      num_free_(num_blocks),
      states_(num_blocks),
      free_stack_(num_blocks) {
  ASAN_POISON_MEMORY_REGION(base_, arena_bytes());
  // Allocate takes the lowest addresses first, in order.
  for (uint32_t i = 0; i < num_blocks; ++i) free_stack_[i] = num_blocks - 1 - i;
}

BlockPool::~BlockPool() {
  KV_CHECK(num_pinned() == 0);
  ASAN_UNPOISON_MEMORY_REGION(base_, arena_bytes());
}

uint64_t BlockPool::MetadataBytes(uint32_t num_blocks) {
  return uint64_t{num_blocks} * (sizeof(State) + sizeof(uint32_t));
}

BlockRef BlockPool::Allocate(PinKind kind) {
  if (num_free_ == 0) return {};
  const uint32_t index = free_stack_[--num_free_];
  states_[index] = {.pins = 1, .unshareable = kind == PinKind::kUnshareable};
  ASAN_UNPOISON_MEMORY_REGION(base_ + index * block_bytes_, block_bytes_);
  return BlockRef(this, BlockId{index});
}

BlockRef BlockPool::Pin(BlockId id) {
  State& state = states_[Index(id)];
  KV_CHECK(state.pins > 0 || state.retained);
  if (state.pins++ == 0) {
    --num_idle_;
    if (observer_ != nullptr) observer_->OnPinned(id);
  } else if (state.unshareable) {
    ++num_extra_pins_;
    if (observer_ != nullptr) observer_->OnExtraPin(id, 1);
  }
  return BlockRef(this, id);
}

void BlockPool::Retain(BlockId id) {
  KV_CHECK(states_[Index(id)].pins > 0);
  states_[Index(id)].retained = 1;
}

void BlockPool::Unretain(BlockId id) {
  KV_CHECK(states_[Index(id)].pins > 0);
  states_[Index(id)].retained = 0;
}

void BlockPool::Reclaim(BlockId id) {
  State& state = states_[Index(id)];
  KV_CHECK(state.pins == 0 && state.retained);
  --num_idle_;
  if (state.scrub) Zero(id);
  state = {};
  PushFree(id);
}

void BlockPool::Scrub(BlockId id) {
  State& state = states_[Index(id)];
  if (state.pins > 0) {
    state.scrub = 1;
    return;
  }
  KV_CHECK(!state.retained);
  Zero(id);
}

void BlockPool::Zero(BlockId id) {
  std::byte* bytes = mutable_data(id);
  ASAN_UNPOISON_MEMORY_REGION(bytes, block_bytes_);
  std::memset(bytes, 0, block_bytes_);
  ASAN_POISON_MEMORY_REGION(bytes, block_bytes_);
}

void BlockPool::ZeroAll() {
  KV_CHECK(num_free_ == num_blocks_);
  arena_.Zero();
}

void BlockPool::Release(BlockId id) {
  State& state = states_[Index(id)];
  KV_CHECK(state.pins > 0);
  if (--state.pins > 0) {
    if (!state.unshareable) return;
    --num_extra_pins_;
    if (observer_ != nullptr) observer_->OnExtraPin(id, -1);
    return;
  }
  if (state.retained) {
    ++num_idle_;
    if (observer_ != nullptr) observer_->OnIdle(id);
    return;
  }
  if (state.scrub) Zero(id);
  state = {};
  PushFree(id);
  if (observer_ != nullptr) observer_->OnFreed(id);
}

void BlockPool::PushFree(BlockId id) {
  ASAN_POISON_MEMORY_REGION(mutable_data(id), block_bytes_);
  free_stack_[num_free_++] = static_cast<uint32_t>(id);
}

void BlockPool::CheckInvariants() const {
  std::vector<bool> is_on_stack(num_blocks_);
  for (uint32_t i = 0; i < num_free_; ++i) {
    KV_CHECK(free_stack_[i] < num_blocks_ && !is_on_stack[free_stack_[i]]);
    is_on_stack[free_stack_[i]] = true;
  }
  uint32_t idle = 0;
  uint64_t extra_pins = 0;
  for (uint32_t i = 0; i < num_blocks_; ++i) {
    KV_CHECK(is_on_stack[i] == is_free(BlockId{i}));
    KV_CHECK(!is_on_stack[i] || !states_[i].scrub);
    idle += states_[i].pins == 0 && states_[i].retained;
    if (states_[i].unshareable && states_[i].pins > 1) extra_pins += states_[i].pins - 1;
  }
  KV_CHECK(idle == num_idle_ && extra_pins == num_extra_pins_);
}

}  // namespace kvasir
