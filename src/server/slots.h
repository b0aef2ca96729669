// Slots of llama.cpp's server: which tokens the last request of each one has, and files of them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "api/answer_keeper.h"
#include "base/digest.h"
#include "base/mutex.h"
#include "kvasir/generate_request.h"
#include "kvasir/session.h"
#include "kvasir/types.h"

namespace kvasir {

// Tokens whose KV the cache may have.
struct SlotPath {
  std::string tenant;
  PathSpace space;
  std::vector<TokenId> ids;
};

// Thread-safe.
class Slots {
 public:
  explicit Slots(uint32_t num_slots) : size_(num_slots), paths_(num_slots) {}

  size_t size() const { return size_; }
  // Null: the tenant has had no request there since the last Forget. REQUIRES: slot < size().
  std::shared_ptr<const SlotPath> Get(uint32_t slot, std::string_view tenant) const;
  // Sets the path, unless Forget or ForgetAll of the slot came after `epoch`.
  void Set(uint32_t slot, SlotPath path, uint64_t epoch);
  void Forget(uint32_t slot);
  void ForgetAll();
  uint64_t epoch() const;

 private:
  struct Entry {
    std::shared_ptr<const SlotPath> path;
    uint64_t forgotten = 0;  // the epoch that its last Forget began
  };
  const size_t size_;
  mutable Mutex mutex_;
  std::vector<Entry> paths_ KV_GUARDED_BY(mutex_);
  uint64_t epoch_ KV_GUARDED_BY(mutex_) = 0;
};

// Puts prompt and first answer of a request into its slot, also where the client hung up. `slots`
// must outlive it.
class SlotKeeper : public AnswerKeeper {
 public:
  SlotKeeper(Slots& slots, uint32_t slot, const GenerateRequest& request);
  ~SlotKeeper() override { Keep(); }

  void Take(const Event& event) override;
  Status Finish() override {
    Keep();
    return {};
  }
  uint64_t held_bytes() const override {
    return sizeof(*this) + path_.ids.capacity() * sizeof(TokenId);
  }

 private:
  void Keep();

  Slots& slots_;
  const uint32_t slot_;
  const uint64_t epoch_;
  const size_t prompt_tokens_;
  SlotPath path_;
  bool kept_ = false;
};

// Returns the digest of what a slot's file is written for: the model (ModelCard::content) and the
// tenant.
Digest SlotIdentity(std::string_view model_content, std::string_view tenant);

// Returns the bytes of a file of a slot:
//   file    = magic identity salt ids sha256
//   magic   = "kvslot1\n"
//   identity: SlotIdentity, 32 bytes
//   salt    = u32 bytes, then so many; 0: none
//   ids     = u32 count, then so many u32
//   sha256: of all before, 32 bytes; numbers are little endian
std::string EncodeSlot(const SlotPath& path, const Digest& identity);
// kInvalidArgument: it is not such a file, of another version, or was written for another model or
// tenant; kCorruption: it is damaged. Errors begin with what the file is called.
Result<SlotPath> DecodeSlot(std::string_view bytes, const Digest& identity, std::string tenant,
                            std::string_view name);

// kInvalidArgument unless `name` is the name of a file in a folder: no slash, not hidden.
Status CheckSlotFile(std::string_view name);
// kNotFound: the folder has no such file; kInvalidArgument: it is a link, not a regular file, or
// larger than `max_bytes`. REQUIRES: CheckSlotFile.
Result<std::string> ReadSlotFile(const std::filesystem::path& folder, const std::string& name,
                                 uint64_t max_bytes);

}  // namespace kvasir
