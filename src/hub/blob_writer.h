// BlobWriter: a blob of the cache while it is fetched.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "base/descriptor.h"
#include "hub/repo_listing.h"
#include "kvasir/status.h"

namespace kvasir::hub {

// Takes the bytes of one URL, over as many responses as it takes.
class Receiver {
 public:
  virtual ~Receiver() = default;
  virtual uint64_t offset() const = 0;  // the number of bytes that it has: the next one to ask for
  virtual Status Restart() = 0;         // forgets them
  virtual Status Take(std::span<const std::byte> bytes) = 0;
};

// Computes what a HubFile's blob is called by its bytes. One thread.
class BlobHash {
 public:
  explicit BlobHash(const HubFile& file);
  ~BlobHash();
  BlobHash(const BlobHash&) = delete;
  BlobHash& operator=(const BlobHash&) = delete;
  void Update(std::span<const std::byte> bytes);
  std::string Finish();  // once

 private:
  void* context_;  // an EVP_MD_CTX
};

// Appends to the draft PATH.incomplete, which it keeps when it is destroyed, so that a later
// process can go on. Publish gives the draft the name PATH only if its size and hash are those of
// the file; where the hash differs it removes the draft. REQUIRES: the caller holds the lock of the
// blob, and `file` outlives it. One thread.
class BlobWriter : public Receiver {
 public:
  // Reads what an earlier process left. Errors as in CodeOfErrno.
  static Result<std::unique_ptr<BlobWriter>> Open(
      const HubFile& file, std::filesystem::path path,
      std::function<void(uint64_t done_bytes)> on_progress);

  static std::filesystem::path DraftOf(const std::filesystem::path& blob);

  uint64_t offset() const override { return offset_; }
  Status Restart() override;
  Status Take(std::span<const std::byte> bytes) override;
  bool is_whole() const { return offset_ == file_.size_bytes; }
  Status Publish();  // REQUIRES: is_whole()

 private:
  BlobWriter(const HubFile& file, std::filesystem::path path, int fd,
             std::function<void(uint64_t)> on_progress);
  Status ReadDraft();

  const HubFile& file_;
  const std::filesystem::path path_, draft_;
  const Descriptor descriptor_;
  const std::function<void(uint64_t)> on_progress_;
  std::unique_ptr<BlobHash> hash_;
  uint64_t offset_ = 0;
};

}  // namespace kvasir::hub
