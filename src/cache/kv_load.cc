#include "cache/kv_load.h"

#include <algorithm>
#include <limits>

#include "cache/record_names.h"

namespace kvasir {

KvLoad::KvLoad(Tier* tier, const KvLayout& layout, TierOffer offer, bool counts)
    : tier_(tier), layout_(&layout), offer_(std::move(offer)), counts_(counts) {
  reads_.resize(offer_.records.size());
  // From the last one on: those before are then never colder than those after.
  for (size_t i = offer_.records.size(); i-- > 0;) tier_->Touch(NameOf(i));
}

RecordName KvLoad::NameOf(size_t record) const {
  const TierOffer::Record& one = offer_.records[record];
  return RecordNameOf(*layout_, offer_.keys[one.block - offer_.first_block + 1], one.group);
}

void KvLoad::End(uint32_t record, ReadEnd how) {
  Read& read = reads_[record];
  if (read.state == Read::State::kAsked) tier_->EndRead(read.id, how);
  read.state = Read::State::kGone;
}

void KvLoad::Drop() {
  if (tier_ == nullptr) return;
  for (uint32_t i = 0; i < reads_.size(); ++i) End(i, ReadEnd::kNotUsed);
  tier_ = nullptr;
}

void KvLoad::AskAhead(uint32_t block) {
  if (!active()) return;
  for (uint32_t i = front_; i < offer_.records.size() && offer_.records[i].block < block; ++i) {
    const Read& read = reads_[i];
    const bool has_come =
        read.state == Read::State::kAsked && tier_->StateOf(read.id) != ReadState::kReading;
    if (!has_come) End(i, ReadEnd::kNotUsed);
    next_ = std::max(next_, i + 1);
  }
  for (; next_ < offer_.records.size() && tier_->HasReadRoom(); ++next_) {
    const auto id = tier_->BeginRead(NameOf(next_));
    if (!id && !tier_->HasReadRoom()) return;
    Read& read = reads_[next_];
    if (id) read.id = *id;
    read.state = id ? Read::State::kAsked : Read::State::kGone;
  }
}

// Says what has become of the records of one block, the load's next one.
KvLoad::Front KvLoad::FrontOf(uint32_t block) {
  bool reading = false;
  for (uint32_t i = front_; i < reads_.size(); ++i) {
    if (offer_.records[i].block != block) break;
    const Read& read = reads_[i];
    using enum Read::State;
    if (read.state == kGone) return Front::kMissing;
    const ReadState state = read.state == kNotAsked ? ReadState::kReading : tier_->StateOf(read.id);
    if (state != ReadState::kReading && state != ReadState::kArrived) {
      is_broken_ |= state == ReadState::kFailed;
      is_down_ |= state == ReadState::kDown;
      End(i, ReadEnd::kNotUsed);
      return Front::kMissing;
    }
    reading |= state == ReadState::kReading;
  }
  return reading ? Front::kReading : Front::kArrived;
}

uint32_t KvLoad::NumArrived(uint32_t block, uint32_t most, Front* front) {
  *front = Front::kArrived;
  const uint32_t first_record = front_;
  uint32_t num = 0;
  for (; num < most && block + num < offer_.end_block; ++num) {
    *front = FrontOf(block + num);
    if (*front != Front::kArrived) break;
    while (front_ < reads_.size() && offer_.records[front_].block == block + num) ++front_;
  }
  front_ = first_record;
  return num;
}

bool KvLoad::MayCome(const Read& read) const {
  if (read.state != Read::State::kAsked) return false;
  const ReadState state = tier_->StateOf(read.id);
  return state == ReadState::kReading || state == ReadState::kArrived;
}

uint32_t KvLoad::TokensBeforeRead(uint32_t committed) const {
  if (reads_.empty()) return std::numeric_limits<uint32_t>::max();
  const uint32_t block_tokens = layout_->block_tokens();
  const std::vector<TierOffer::Record>& records = offer_.records;
  for (uint32_t i = front_; i < records.size();) {
    const uint32_t block = records[i].block;
    bool all = uint64_t{block} * block_tokens >= committed;
    for (; i < records.size() && records[i].block == block; ++i) {
      all = all && MayCome(reads_[i]);
    }
    if (all) return block * block_tokens - committed;
  }
  return std::numeric_limits<uint32_t>::max();
}

void KvLoad::PassBefore(uint64_t committed) {
  for (; front_ < reads_.size(); ++front_) {
    const uint64_t begin = uint64_t{offer_.records[front_].block} * layout_->block_tokens();
    if (begin >= committed) break;
    End(front_, ReadEnd::kNotUsed);
  }
  next_ = std::max(next_, front_);
}

uint32_t KvLoad::num_left(TierKind kind) const {
  return static_cast<uint32_t>(
      std::count_if(offer_.records.begin() + front_, offer_.records.end(),
                    [&](const TierOffer::Record& record) { return record.from == kind; }));
}

void KvLoad::CountIn(CacheCounters& counters) {
  if (!counts_) return;
  const uint32_t remote = remote_tokens_ - counted_remote_;
  const uint32_t taken = taken_tokens_ - counted_taken_;
  const uint32_t loaded = loaded_tokens_ - counted_loaded_;
  counters.reused_remote += remote;
  counters.reused_disk += loaded - remote;
  counters.reused_pool += taken - loaded;
  counted_taken_ = taken_tokens_;
  counted_loaded_ = loaded_tokens_;
  counted_remote_ = remote_tokens_;
}

}  // namespace kvasir
