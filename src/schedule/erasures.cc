#include "schedule/erasures.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/hex.h"
#include "base/result.h"

namespace kvasir {
namespace {

// When the system refuses memory, the engine waits this long before it tries again.
constexpr auto kRetryPause = std::chrono::milliseconds(1);

constexpr uint64_t kZeroingShare = 8;
constexpr uint64_t kLeastZeroingNs = 1'000'000;
constexpr uint64_t kZeroedAtOnce = 1 << 20;  // bytes between two looks at the clock

template <typename T>
bool IsReady(const std::future<T>& answer) {
  return answer.valid() && answer.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
}

// Returns a callback whose answer comes into the queue's new last future.
std::function<void(Result<TierErased>)> PromiseIn(
    std::deque<std::future<Result<TierErased>>>& answers) {
  const auto told = std::make_shared<std::promise<Result<TierErased>>>();
  answers.push_back(told->get_future());
  return [told](Result<TierErased> erased) { told->set_value(std::move(erased)); };
}

}  // namespace

Erasures::Erasures(KvCache& cache, Tier* tier, uint64_t tier_answer_ns, IdentitiesOf identities_of,
                   const DraftModelParts& draft)
    : cache_(cache),
      tier_(tier),
      tier_answer_ns_(tier_answer_ns),
      identities_of_(std::move(identities_of)),
      draft_cache_(draft.cache),
      draft_identity_(draft.identity) {}

bool Erasures::IsZeroed(const Erasing& erasing) const {
  return cache_.IsZeroed(erasing.point) &&
         (draft_cache_ == nullptr || draft_cache_->IsZeroed(erasing.draft_point));
}

void Erasures::Add(Erasing erasing, ErasureSink&& done) {
  erasures_.push_back(std::move(erasing));
  erasures_.back().done = std::move(done);
}

void Erasures::Erase(std::string_view owner, ErasureSink&& done) {
  Begin(KvCache::OwnerOf(owner), &Tier::Erase, std::move(done));
}

void Erasures::EraseHere(const Digest& owner, ErasureSink&& done) {
  Begin(owner, &Tier::EraseHere, std::move(done));
}

void Erasures::Begin(const Digest& owner, TierErase erase, ErasureSink&& done) {
  const CacheUsage before = cache_.usage();
  Erasing erasing;
  erasing.point = cache_.Forget(owner);
  if (draft_cache_ != nullptr) erasing.draft_point = draft_cache_->Forget(owner);
  erasing.deadline_ns = MonotonicNs() + tier_answer_ns_;
  if (tier_ != nullptr) (tier_->*erase)(owner, PromiseIn(erasing.tier));
  const CacheUsage after = cache_.usage();
  erasing.erasure.blocks = before.cached_blocks - after.cached_blocks;
  erasing.erasure.tokens = before.cached_tokens - after.cached_tokens;
  erasing.erasure.cursors = before.num_cursors - after.num_cursors;
  Add(std::move(erasing), std::move(done));
}

void Erasures::Forget(const ForgetRequest& request, const std::shared_ptr<const KeptPrompts>& kept,
                      ErasureSink&& done) {
  const uint64_t cursors_before = cache_.usage().num_cursors;
  Erasing erasing;
  erasing.deadline_ns = MonotonicNs() + tier_answer_ns_;
  const auto adapters = FromHex<sizeof(Digest)>(request.adapters, HexCase::kLower);
  for (const Identity& identity : identities_of_(adapters.value_or(Digest{}))) {
    if (tier_ != nullptr) {
      tier_->Forget(cache_.FactsToForget(request.owner, identity, request.cache_salt, request.ids,
                                         request.first, request.last, kept),
                    PromiseIn(erasing.tier));
    }
    const std::optional<NamespaceId> ns =
        cache_.FindNamespace(request.owner, identity, request.cache_salt);
    if (!ns) continue;
    const KvCache::Forgotten one =
        cache_.Forget(*ns, request.ids, request.first, request.last, *kept);
    erasing.point = std::max(erasing.point, one.point);
    erasing.erasure.blocks += one.erased_blocks;
    erasing.erasure.tokens += one.erased_tokens;
    erasing.erasure.kept_shared += one.kept_shared;
  }
  if (draft_cache_ != nullptr) {
    const std::optional<NamespaceId> ns =
        draft_cache_->FindNamespace(request.owner, draft_identity_, request.cache_salt);
    if (ns) {
      erasing.draft_point =
          draft_cache_->Forget(*ns, request.ids, request.first, request.last, *kept).point;
    }
  }
  erasing.erasure.cursors = cursors_before - cache_.usage().num_cursors;
  Add(std::move(erasing), std::move(done));
}

void Erasures::Flush(FlushSink&& done) {
  Flushing& flush = flushes_.emplace_back();
  flush.point = cache_.seal_point();
  flush.deadline_ns = MonotonicNs() + tier_answer_ns_;
  flush.done = std::move(done);
}

bool Erasures::AreZeroed() const {
  return std::ranges::all_of(erasures_, [&](const Erasing& erasing) { return IsZeroed(erasing); });
}

void Erasures::Zero(uint64_t step_ns) {
  if (erasures_.empty()) return;
  const uint64_t end_ns = MonotonicNs() + std::max(step_ns / kZeroingShare, kLeastZeroingNs);
  do {
    cache_.ZeroForgotten(kZeroedAtOnce);
    if (draft_cache_ != nullptr) draft_cache_->ZeroForgotten(kZeroedAtOnce);
  } while (!IsZeroed(erasures_.back()) && MonotonicNs() < end_ns);
}

void Erasures::FlushSealed() {
  for (Flushing& flush : flushes_) {
    if (flush.tier.valid() || flush.answer || !cache_.IsSealed(flush.point)) continue;
    const auto told = std::make_shared<std::promise<Result<TierFlushed>>>();
    std::future<Result<TierFlushed>> answer = told->get_future();
    tier_->Flush([told](Result<TierFlushed> flushed) { told->set_value(std::move(flushed)); });
    flush.tier = std::move(answer);
  }
}

void Erasures::EndTierWaits(uint64_t at_ns) {
  for (Flushing& flush : flushes_) flush.deadline_ns = std::min(flush.deadline_ns, at_ns);
  for (Erasing& erasing : erasures_) erasing.deadline_ns = std::min(erasing.deadline_ns, at_ns);
}

// Returns whether all answers are there, or the tier takes too long.
bool Erasures::TakeTierAnswers(Erasing& erasing) {
  for (; !erasing.tier.empty(); erasing.tier.pop_front()) {
    if (!IsReady(erasing.tier.front())) {
      if (MonotonicNs() < erasing.deadline_ns) return false;
      erasing.erasure.error = {Code::kUnavailable,
                               "what is on the disk, or in a store that machines share, does not "
                               "answer in time; the erase goes on when it does"};
      erasing.tier.clear();
      return true;
    }
    const Result<TierErased> erased = erasing.tier.front().get();
    if (erased) {
      erasing.erasure.disk_blocks += erased->blocks;
      erasing.erasure.disk_bytes += erased->bytes;
      erasing.erasure.locked_stores += erased->locked_stores;
      if (erased->remote) {
        RemoteErased& remote =
            erasing.erasure.remote ? *erasing.erasure.remote : erasing.erasure.remote.emplace();
        remote.epoch = std::max(remote.epoch, erased->remote->epoch);
        remote.records += erased->remote->records;
        remote.complete = remote.complete && erased->remote->complete;
      }
      if (erased->error) erasing.erasure.error = erased->error;
    } else {
      erasing.erasure.error = erased.error();
    }
  }
  return true;
}

// Returns whether the next erase is done.
bool Erasures::IsDue() {
  try {
    return !erasures_.empty() && IsZeroed(erasures_.front()) && TakeTierAnswers(erasures_.front());
  } catch (...) {  // no memory: tries again after the next step
    std::this_thread::sleep_for(kRetryPause);
    return false;
  }
}

uint32_t Erasures::ReportErased(const std::function<void()>& before) {
  uint32_t num_told = 0;
  for (; IsDue(); ++num_told) {
    if (num_told == 0) before();
    try {
      erasures_.front().done(erasures_.front().erasure);
    } catch (...) {  // no memory: tries again after the next step
      std::this_thread::sleep_for(kRetryPause);
      break;
    }
    erasures_.pop_front();
  }
  return num_told;
}

void Erasures::ReportFlushed() {
  try {
    for (auto flush = flushes_.begin(); flush != flushes_.end();) {
      if (!flush->answer && IsReady(flush->tier)) {
        flush->answer = flush->tier.get();
      } else if (!flush->answer && MonotonicNs() >= flush->deadline_ns) {
        flush->answer = Fail(Code::kUnavailable, "not all was written in time; it is still queued");
      }
      if (!flush->answer) {
        ++flush;
        continue;
      }
      flush->done(*flush->answer);
      flush = flushes_.erase(flush);
    }
  } catch (...) {  // no memory: tries again after the next step
    std::this_thread::sleep_for(kRetryPause);
  }
}

}  // namespace kvasir
