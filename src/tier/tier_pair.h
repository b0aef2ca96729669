// TierPair: a disk and a fleet's store as one tier.
#pragma once

#include <functional>

#include "tier/tier.h"

namespace kvasir {

// Reads from the disk what it has, and else from the store. A record is sealed for each (stores 0
// and 1). Erase, Forget and Flush wait for both; where one of them fails to erase, the answer says
// why, and what the other one did. Both must outlive it; their thread rules are its.
class TierPair : public Tier {
 public:
  TierPair(Tier& disk, Tier& remote) : disk_(disk), remote_(remote) {}

  bool Has(const RecordName& name) const override { return disk_.Has(name) || remote_.Has(name); }
  TierKind KindOf(const RecordName& name) const override {
    return disk_.Has(name) ? TierKind::kDisk : TierKind::kRemote;
  }
  uint32_t num_stores() const override { return 2; }
  TierKind KindOfStore(uint32_t store) const override {
    return store == 0 ? TierKind::kDisk : TierKind::kRemote;
  }
  bool Look(LookFor what, std::function<void()> done) override;
  uint64_t LookNs() const override { return remote_.LookNs(); }
  double LoadBytesPerS(TierKind kind) const override {
    return (kind == TierKind::kDisk ? disk_ : remote_).LoadBytesPerS(kind);
  }
  void Touch(const RecordName& name) override {
    disk_.Touch(name);
    remote_.Touch(name);
  }
  bool ReadyOwner(const Digest& owner) override;
  tl::expected<WriteId, WriteRefusal> BeginWrite(const RecordFacts& facts) override;
  void Seal(WriteId write, std::span<const std::byte> payload) override {
    Of(write).Seal(Inner(write), payload);
  }
  void EndWrite(WriteId write) override { Of(write).EndWrite(Inner(write)); }
  void CountDropped(WriteRefusal why, uint32_t store) override {
    (store == 0 ? disk_ : remote_).CountDropped(why, 0);
  }
  std::optional<ReadId> BeginRead(const RecordName& name) override;
  bool HasReadRoom() const override { return disk_.HasReadRoom() && remote_.HasReadRoom(); }
  ReadState StateOf(ReadId read) const override { return Of(read).StateOf(Inner(read)); }
  bool Unseal(ReadId read, const RecordFacts& facts, std::span<std::byte> payload) const override {
    return Of(read).Unseal(Inner(read), facts, payload);
  }
  void EndRead(ReadId read, ReadEnd end) override { Of(read).EndRead(Inner(read), end); }
  void set_on_progress(std::function<void()> on_progress) override {
    disk_.set_on_progress(on_progress);
    remote_.set_on_progress(std::move(on_progress));
  }
  void Flush(std::function<void(Result<TierFlushed>)> done) override;
  void Erase(const Digest& owner, std::function<void(Result<TierErased>)> done) override;
  void EraseHere(const Digest& owner, std::function<void(Result<TierErased>)> done) override {
    remote_.EraseHere(owner, [](const Result<TierErased>&) {});
    disk_.Erase(owner, std::move(done));
  }
  void Forget(ForgetFacts facts, std::function<void(Result<TierErased>)> done) override;
  TierStats Stats() const override { return disk_.Stats(); }

 private:
  // Says by the last bit of an id whose it is.
  template <typename Id>
  Tier& Of(Id id) const {
    return (static_cast<uint32_t>(id) & 1) == 0 ? disk_ : remote_;
  }
  template <typename Id>
  static Id Inner(Id id) {
    return Id{static_cast<uint32_t>(id) >> 1};
  }
  template <typename Id>
  static Id Outer(Id id, uint32_t store) {
    return Id{static_cast<uint32_t>(id) << 1 | store};
  }

  Tier& disk_;
  Tier& remote_;
};

}  // namespace kvasir
