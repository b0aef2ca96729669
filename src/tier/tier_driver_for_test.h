// TierDriver: lets a test use a Tier as the engine does, one call for each thing.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "base/mutex.h"
#include "base/random.h"
#include "tier/tier.h"

namespace kvasir {

inline constexpr uint32_t kSmallTokens = 16;    // of a small record
inline constexpr uint64_t kSmallPayload = 600;  // bytes of it

// A record whose bytes follow from its number; record n of a chain depends on record n - 1.
struct TestRecord {
  uint32_t number = 0;
  uint32_t chain = 0;
  std::vector<TokenId> tokens;
  std::vector<std::byte> payload;
  RecordFacts facts;  // its tokens are these, so a copy must not outlive them

  static Digest Filled(uint64_t seed) {
    Random random(seed);
    Digest digest;
    for (auto& byte : digest) byte = static_cast<uint8_t>(random.Bits());
    return digest;
  }
  static RecordName Name(uint32_t chain, uint32_t number) {
    return {.key = Filled(uint64_t{chain} << 32 | number), .layer_group = 0, .part = 0};
  }
  static Digest Owner(uint32_t owner) { return Filled(0xABCDEF00ull + owner); }

  TestRecord(uint32_t of_chain, uint32_t of_number, uint32_t owner, uint32_t block_tokens,
             uint64_t payload_bytes)
      : number(of_number), chain(of_chain) {
    Random random(uint64_t{chain} << 40 | number);
    for (uint32_t i = 0; i < block_tokens; ++i) {
      tokens.push_back(static_cast<TokenId>(random.Below(32000)));
    }
    payload.resize(payload_bytes);
    for (size_t i = 0; i < payload.size(); i += 8) {
      const uint64_t bits = random.Bits();
      for (size_t k = i; k < std::min(payload.size(), i + 8); ++k) {
        payload[k] = std::byte(bits >> (8 * (k - i)));
      }
    }
    facts.name = Name(chain, number);
    facts.parent = number > 0 ? Name(chain, number - 1).key : Filled(chain);
    facts.owner = Owner(owner);
    if (number > 0) facts.after = Name(chain, number - 1);
  }
  RecordFacts Facts() const {
    RecordFacts all = facts;
    all.tokens = tokens;
    return all;
  }
};

class TierDriver {
 public:
  // `run`: what makes a tier without threads work; empty for one with threads.
  explicit TierDriver(Tier& tier, std::function<void()> run = {}, bool sets_progress = true)
      : tier_(tier), run_(std::move(run)) {
    if (!sets_progress) return;
    // The tier may report to it after this object.
    tier_.set_on_progress([progress = progress_] {
      MutexLock lock(progress->mutex);
      progress->changed.notify_all();
    });
  }

  // Waits until `is_done`, which is asked at each progress and each 10 ms. False: 20 s went by.
  bool WaitUntil(const std::function<bool()>& is_done) {
    for (int i = 0; i < 2000; ++i) {
      if (run_) run_();
      if (is_done()) return true;
      if (run_) return false;
      MutexLock lock(progress_->mutex);
      lock.WaitFor(progress_->changed, std::chrono::milliseconds(10));
    }
    return false;
  }

  tl::expected<void, WriteRefusal> Write(const TestRecord& record, bool used_again = false) {
    RecordFacts facts = record.Facts();
    facts.used_again = used_again;
    if (!tier_.ReadyOwner(facts.owner)) return tl::unexpected(WriteRefusal::kOff);
    // An error only where no store takes it.
    tl::expected<void, WriteRefusal> written;
    bool any = false;
    for (uint32_t store = 0; store < tier_.num_stores(); ++store) {
      facts.store = static_cast<uint8_t>(store);
      const auto write = tier_.BeginWrite(facts);
      any |= write.has_value();
      if (!write) written = tl::unexpected(write.error());
      if (!write) continue;
      tier_.Seal(*write, record.payload);
      tier_.EndWrite(*write);
    }
    if (!any) return written;
    return {};
  }
  // Asks a store that is far away for a record, and waits for the answer.
  void Look(const TestRecord& record) {
    const auto told = std::make_shared<std::atomic<bool>>(false);
    LookFor what{.owner = record.facts.owner, .names = {record.facts.name}};
    if (!tier_.Look(std::move(what), [told] { told->store(true); })) return;
    EXPECT_TRUE(WaitUntil([&] { return told->load(); }));
  }

  Result<TierFlushed> Flush() {
    return Answer<TierFlushed>([&](auto done) { tier_.Flush(std::move(done)); });
  }
  // Returns an error too where one of two tiers has failed.
  Result<TierErased> Erase(const Digest& owner) {
    return OfBoth(Answer<TierErased>([&](auto done) { tier_.Erase(owner, std::move(done)); }));
  }

  // Returns a forget of the record's first `num_tokens` tokens and all that follows. The forgotten
  // text begins `num_before` records before it.
  static ForgetFacts ForgetOf(const TestRecord& record, size_t num_tokens,
                              uint32_t num_before = 0) {
    ForgetFacts facts{
        .owner = record.facts.owner,
        .parent = record.facts.parent,
        .is_first = !record.facts.after,
        .tokens = std::vector<TokenId>(record.tokens.begin(),
                                       record.tokens.begin() + static_cast<ptrdiff_t>(num_tokens)),
        .parts = {RecordName{}}};
    for (uint32_t i = num_before; i > 0; --i) {
      facts.path.push_back(TestRecord::Name(record.chain, record.number - i).key);
    }
    return facts;
  }
  static auto Keys(std::vector<BlockKey> keys) {
    return [keys = std::move(keys)] { return keys; };
  }
  Result<TierErased> Forget(const ForgetFacts& facts) {
    return OfBoth(Answer<TierErased>([&](auto done) { tier_.Forget(facts, std::move(done)); }));
  }

  enum class Read { kRight, kNotThere, kFailed, kDamaged, kWrong };
  // kWrong: it was unsealed, with other bytes than were written.
  Read ReadBack(const TestRecord& record) {
    Look(record);
    const auto read = tier_.BeginRead(record.facts.name);
    if (!read) return Read::kNotThere;
    if (!WaitUntil([&] { return tier_.StateOf(*read) != ReadState::kReading; })) {
      tier_.EndRead(*read, ReadEnd::kNotUsed);
      return Read::kFailed;
    }
    if (tier_.StateOf(*read) != ReadState::kArrived) {
      tier_.EndRead(*read, ReadEnd::kNotUsed);
      return Read::kFailed;
    }
    std::vector<std::byte> payload(record.payload.size());
    const bool is_unsealed = tier_.Unseal(*read, record.Facts(), payload);
    tier_.EndRead(*read, is_unsealed ? ReadEnd::kUsed : ReadEnd::kDamaged);
    if (!is_unsealed) return Read::kDamaged;
    return payload == record.payload ? Read::kRight : Read::kWrong;
  }

 private:
  static Result<TierErased> OfBoth(Result<TierErased> erased) {
    if (erased && erased->error) return tl::unexpected(*erased->error);
    return erased;
  }
  template <typename T, typename Ask>
  Result<T> Answer(Ask&& ask) {
    std::optional<Result<T>> answer;
    ask([&](Result<T> result) {
      MutexLock lock(progress_->mutex);
      answer = std::move(result);
      progress_->changed.notify_all();
    });
    const bool came = WaitUntil([&] {
      MutexLock lock(progress_->mutex);
      return answer.has_value();
    });
    if (!came) return tl::unexpected(Error{Code::kDeadlineExceeded, "no answer came"});
    MutexLock lock(progress_->mutex);
    return *answer;
  }

  Tier& tier_;
  std::function<void()> run_;
  struct Progress {
    Mutex mutex;
    std::condition_variable changed;
  };
  const std::shared_ptr<Progress> progress_ = std::make_shared<Progress>();
};

}  // namespace kvasir
