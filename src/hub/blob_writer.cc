#include "hub/blob_writer.h"

#include <fcntl.h>
#include <openssl/evp.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <vector>

#include "base/atomic_file.h"
#include "base/check.h"
#include "base/digest.h"
#include "base/hex.h"
#include "base/result.h"
#include "base/system_error.h"

namespace kvasir::hub {
namespace {

namespace fs = std::filesystem;

constexpr size_t kReadBytes = size_t{1} << 20;
constexpr size_t kSha256Digits = 64;

EVP_MD_CTX* Context(void* context) { return static_cast<EVP_MD_CTX*>(context); }

}  // namespace

BlobHash::BlobHash(const HubFile& file) : context_(EVP_MD_CTX_new()) {
  const bool is_sha256 = file.blob.size() == kSha256Digits;
  const EVP_MD* kind = is_sha256 ? EVP_sha256() : EVP_sha1();
  KV_CHECK(context_ != nullptr && EVP_DigestInit_ex(Context(context_), kind, nullptr) == 1);
  if (is_sha256) return;
  const std::string header = fmt::format("blob {}", file.size_bytes);  // and a NUL: git's objects
  Update(std::as_bytes(std::span(header.c_str(), header.size() + 1)));
}

BlobHash::~BlobHash() { EVP_MD_CTX_free(Context(context_)); }

void BlobHash::Update(std::span<const std::byte> bytes) {
  KV_CHECK(EVP_DigestUpdate(Context(context_), bytes.data(), bytes.size()) == 1);
}

std::string BlobHash::Finish() {
  std::array<uint8_t, EVP_MAX_MD_SIZE> digest;
  unsigned int bytes = 0;
  KV_CHECK(EVP_DigestFinal_ex(Context(context_), digest.data(), &bytes) == 1);
  return ToHex(std::span(digest).first(bytes));
}

fs::path BlobWriter::DraftOf(const fs::path& blob) { return blob.string() + ".incomplete"; }

BlobWriter::BlobWriter(const HubFile& file, fs::path path, int fd,
                       std::function<void(uint64_t)> on_progress)
    : file_(file),
      path_(std::move(path)),
      draft_(DraftOf(path_)),
      descriptor_(fd),
      on_progress_(std::move(on_progress)),
      hash_(std::make_unique<BlobHash>(file)) {}

Result<std::unique_ptr<BlobWriter>> BlobWriter::Open(const HubFile& file, fs::path path,
                                                     std::function<void(uint64_t)> on_progress) {
  const fs::path draft = DraftOf(path);
  const int fd = open(draft.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
  if (fd < 0) return FailErrno(errno, "cannot write {}", draft.string());
  std::unique_ptr<BlobWriter> writer(
      new BlobWriter(file, std::move(path), fd, std::move(on_progress)));
  KV_TRY(writer->ReadDraft());
  return writer;
}

Status BlobWriter::ReadDraft() {
  std::vector<std::byte> buffer(kReadBytes);
  while (true) {
    const ssize_t got =
        pread(descriptor_.fd(), buffer.data(), buffer.size(), static_cast<off_t>(offset_));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return FailErrno(errno, "cannot read {}", draft_.string());
    if (got == 0) break;
    hash_->Update(std::span(buffer).first(static_cast<size_t>(got)));
    offset_ += static_cast<uint64_t>(got);
    if (offset_ > file_.size_bytes) return Restart();  // of another file, or damaged
  }
  on_progress_(offset_);
  return {};
}

Status BlobWriter::Restart() {
  if (ftruncate(descriptor_.fd(), 0) != 0) {
    return FailErrno(errno, "cannot write {}", draft_.string());
  }
  hash_ = std::make_unique<BlobHash>(file_);
  offset_ = 0;
  on_progress_(0);
  return {};
}

Status BlobWriter::Take(std::span<const std::byte> bytes) {
  if (bytes.size() > file_.size_bytes - offset_) {
    KV_TRY(Restart());
    return Fail(Code::kIoError,
                "{}: the hub sends more than the {} bytes that it lists: the file was changed, or "
                "something on the way changes it; pull again",
                file_.name, file_.size_bytes);
  }
  if (!WriteAllAt(descriptor_.fd(), bytes, offset_)) {
    return FailErrno(errno, "cannot write {}", draft_.string());
  }
  hash_->Update(bytes);
  offset_ += bytes.size();
  on_progress_(offset_);
  return {};
}

Status BlobWriter::Publish() {
  KV_CHECK(is_whole());
  const std::string found = hash_->Finish();
  if (found == file_.blob) return PublishDraft(descriptor_.fd(), draft_, path_);
  unlink(draft_.c_str());
  return Fail(Code::kIoError,
              "{}: checksum mismatch: the hub lists {}, and the bytes that came have {}; nothing "
              "of them is kept: pull again",
              file_.name, file_.blob, found);
}

}  // namespace kvasir::hub
