// RemoteTier: records in a store that the machines of a fleet share, and that none has to trust.
#pragma once

#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "remote/remote_looker.h"
#include "remote/remote_reader.h"
#include "remote/remote_store.h"
#include "remote/remote_writer.h"
#include "tier/tier.h"

namespace kvasir {

// A front of its parts and their three threads, each with a client of the store: the *looker*,
// which connects, looks for records and keeps owners' epochs; the *reader*; and the *writer*, which
// also erases. The class's thread rules are Tier's. States: connecting, until the store has
// answered or failed the first time; on; off, until the breaker has it asked again. While it is not
// on, nothing is found, read or stored.
class RemoteTier : public Tier {
 public:
  // Starts to connect, and waits half a second for the store. kInvalidArgument (remote_memory):
  // buffers of fewer than 8 values. kExhausted: the system refuses memory or threads. A store that
  // is down is not an error.
  static Result<std::unique_ptr<RemoteTier>> Open(const RemoteTierOptions& options);
  // Ends the threads, without waiting for what is queued (Flush does).
  ~RemoteTier() override;

  static uint64_t IndexBytes(const RemoteTierOptions& options) {
    return RemoteStore::IndexBytes(options);
  }
  static uint64_t BufferBytes(const RemoteTierOptions& options) {
    return RemoteStore::BufferBytes(options) +
           RemoteStore::kClients * StoreClient::BytesFor(options) +
           RemoteWriter::kMostKeys * sizeof(BlockKey);
  }
  static Status CheckMemory(const RemoteTierOptions& options);

  bool Has(const RecordName& name) const override;
  TierKind KindOf(const RecordName&) const override { return TierKind::kRemote; }
  TierKind KindOfStore(uint32_t) const override { return TierKind::kRemote; }
  bool Look(LookFor what, std::function<void()> done) override {
    return looker_.Begin(std::move(what), std::move(done));
  }
  uint64_t LookNs() const override;
  double LoadBytesPerS(TierKind) const override;
  void Touch(const RecordName&) override {}  // a read begins the record's lifetime anew
  bool ReadyOwner(const Digest& owner) override;
  tl::expected<WriteId, WriteRefusal> BeginWrite(const RecordFacts& facts) override {
    return writer_.Begin(facts);
  }
  void Seal(WriteId write, std::span<const std::byte> payload) override {
    writer_.Seal(write, payload);
  }
  void EndWrite(WriteId write) override { writer_.End(write); }
  void CountDropped(WriteRefusal why, uint32_t store) override;
  std::optional<ReadId> BeginRead(const RecordName& name) override { return reader_.Begin(name); }
  bool HasReadRoom() const override { return reader_.HasRoom(); }
  ReadState StateOf(ReadId read) const override { return reader_.StateOf(read); }
  bool Unseal(ReadId read, const RecordFacts& facts, std::span<std::byte> payload) const override {
    return reader_.Unseal(read, facts, payload);
  }
  void EndRead(ReadId read, ReadEnd end) override { reader_.End(read, end); }
  void set_on_progress(std::function<void()> on_progress) override {
    store_->progress.Set(std::move(on_progress));
  }
  void Flush(std::function<void(Result<TierFlushed>)> done) override {
    writer_.Flush(std::move(done));
  }
  void Erase(const Digest& owner, std::function<void(Result<TierErased>)> done) override {
    writer_.Erase(owner, std::move(done));
  }
  // Lets blocks of the owner be written again: the cache has forgotten those of before. The store
  // has none of them that can be unsealed.
  void EraseHere(const Digest& owner, std::function<void(Result<TierErased>)> done) override;
  void Forget(ForgetFacts facts, std::function<void(Result<TierErased>)> done) override {
    writer_.Forget(std::move(facts), std::move(done));
  }
  TierStats Stats() const override;
  RemoteStats Remote() const;
  // Returns the owner's epoch. Absent: it is not known yet. Thread-safe.
  std::optional<uint64_t> EpochOf(const Digest& owner) const;
  // Returns the owners whose blocks are to be erased here since the last call: EraseHere is to be
  // called for each. Thread-safe.
  std::vector<ErasedOwner> TakeErased();
  // Notes that nothing of before is left here of such an owner: the next start does not erase it
  // again. Thread-safe.
  void NoteErased(const ErasedOwner& erased);
  // Has TakeErased return such an owner once more in a minute, for its blocks alone: they could not
  // be erased. Thread-safe.
  void EraseAgain(const ErasedOwner& erased);

 private:
  // Returns whether the store was asked for all owners that are known, or does not answer.
  bool IsSettled() const;
  explicit RemoteTier(std::unique_ptr<RemoteStore> store);

  const std::unique_ptr<RemoteStore> store_;
  RemoteLooker looker_;
  RemoteReader reader_;
  RemoteWriter writer_;
  std::thread looker_thread_, reader_thread_, writer_thread_;
};

}  // namespace kvasir
