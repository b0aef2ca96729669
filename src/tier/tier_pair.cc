#include "tier/tier_pair.h"

#include <algorithm>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "base/mutex.h"

namespace kvasir {
namespace {

// Returns the answer of two tiers of which one has failed.
Result<TierFlushed> WithError(TierFlushed, Error error) { return tl::unexpected(std::move(error)); }
Result<TierErased> WithError(TierErased erased, Error error) {
  erased.error = std::move(error);
  return erased;
}

// Joins the answers of two tiers. Thread-safe.
template <typename T>
class JoinedAnswer {
 public:
  using Join = void (*)(T& sum, const T& other);
  JoinedAnswer(std::function<void(Result<T>)> done, Join join)
      : done_(std::move(done)), join_(join) {}

  void Add(Result<T> answer) {
    {
      MutexLock lock(mutex_);
      if (!first_) {
        first_ = std::move(answer);
        return;
      }
    }
    if (*first_ && answer) {
      join_(**first_, *answer);
    } else if (*first_) {
      first_ = WithError(std::move(**first_), std::move(answer).error());
    } else if (answer) {
      first_ = WithError(std::move(*answer), std::move(*first_).error());
    } else {
      Error& both = first_->error();
      both.message += "; " + answer.error().message;
      if (both.cause != answer.error().cause) both.cause.reset();
    }
    done_(std::move(*first_));
  }

 private:
  Mutex mutex_;
  const std::function<void(Result<T>)> done_;
  const Join join_;
  std::optional<Result<T>> first_;
};

template <typename T>
std::function<void(Result<T>)> JoinedCall(std::function<void(Result<T>)> done,
                                          typename JoinedAnswer<T>::Join join) {
  const auto joined = std::make_shared<JoinedAnswer<T>>(std::move(done), join);
  return [joined](Result<T> answer) { joined->Add(std::move(answer)); };
}

// Returns a call that several threads share: the first one makes it, and the others get the same.
std::function<std::vector<BlockKey>()> CalledOnce(std::function<std::vector<BlockKey>()> call) {
  struct Shared {  // (Where a call throws, std::call_once hangs under ThreadSanitizer.)
    Mutex mutex;
    std::function<std::vector<BlockKey>()> call KV_GUARDED_BY(mutex);  // null: it was made
    std::vector<BlockKey> keys KV_GUARDED_BY(mutex);
  };
  const auto shared = std::make_shared<Shared>();
  {
    const MutexLock lock(shared->mutex);
    shared->call = std::move(call);
  }
  return [shared] {
    const MutexLock lock(shared->mutex);
    if (shared->call) {
      shared->keys = shared->call();  // the next one makes it where it throws
      shared->call = nullptr;
    }
    return shared->keys;
  };
}

// Adds what the two erased: blocks and bytes are the disk's, for the store has its own figures.
void JoinErased(TierErased& sum, const TierErased& other) {
  if (sum.remote && !other.remote) {
    const auto remote = sum.remote;
    sum = other;
    sum.remote = remote;
  } else {
    sum.remote = other.remote;
  }
}

}  // namespace

bool TierPair::ReadyOwner(const Digest& owner) {
  const bool has_disk = disk_.ReadyOwner(owner);
  return remote_.ReadyOwner(owner) || has_disk;
}

bool TierPair::Look(LookFor what, std::function<void()> done) {
  std::erase_if(what.names, [&](const RecordName& name) { return disk_.Has(name); });
  return !what.names.empty() && remote_.Look(std::move(what), std::move(done));
}

tl::expected<WriteId, WriteRefusal> TierPair::BeginWrite(const RecordFacts& facts) {
  const auto write = (facts.store == 0 ? disk_ : remote_).BeginWrite(facts);
  if (!write) return write;
  return Outer(*write, facts.store);
}

std::optional<ReadId> TierPair::BeginRead(const RecordName& name) {
  const uint32_t store = disk_.Has(name) ? 0 : 1;
  const auto read = (store == 0 ? disk_ : remote_).BeginRead(name);
  if (!read) return read;
  return Outer(*read, store);
}

void TierPair::Flush(std::function<void(Result<TierFlushed>)> done) {
  const auto both =
      JoinedCall<TierFlushed>(std::move(done), [](TierFlushed& sum, const TierFlushed& other) {
        sum.durable = sum.durable && other.durable;
        sum.blocks = std::max(sum.blocks, other.blocks);
        sum.bytes = std::max(sum.bytes, other.bytes);
      });
  disk_.Flush(both);
  remote_.Flush(both);
}

void TierPair::Erase(const Digest& owner, std::function<void(Result<TierErased>)> done) {
  const auto both = JoinedCall<TierErased>(std::move(done), &JoinErased);
  disk_.Erase(owner, both);
  remote_.Erase(owner, both);
}

void TierPair::Forget(ForgetFacts facts, std::function<void(Result<TierErased>)> done) {
  const auto both = JoinedCall<TierErased>(std::move(done), &JoinErased);
  if (facts.kept) facts.kept = CalledOnce(std::move(facts.kept));  // it hashes prompts
  disk_.Forget(facts, both);
  remote_.Forget(std::move(facts), both);
}

}  // namespace kvasir
