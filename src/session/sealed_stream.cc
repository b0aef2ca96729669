// The bytes (also in docs/formats/backup.md), integers little endian:
//   file  := head chunk+
//   head  := "kvbackup"  version u32  log2_n u8  r u8  p u8  0 u8  salt[16]  check[16]
//   chunk := size u32  AES-256-GCM(bytes[size])  tag[16]
// scrypt(passphrase, salt) gives 64 bytes: the key of the chunks, then that of `check`, the
// beginning of HMAC-SHA-256(key, the head before it). The nonce of a chunk is its number from 0;
// authenticated with it are the head and a byte that is 1 for the last chunk.
#include "session/sealed_stream.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <span>
#include <utility>

#include "base/digest.h"
#include "base/random_bytes.h"
#include "base/result.h"
#include "base/secret.h"
#include "base/wipe.h"

namespace kvasir {
namespace {

constexpr std::array<char, 8> kSealedMagic = {'k', 'v', 'b', 'a', 'c', 'k', 'u', 'p'};
constexpr uint32_t kSealedVersion = 1;  // never renumber
constexpr size_t kChunkBytes = 256 << 10, kMaxChunkBytes = 1 << 20;
// 128 MiB and a third of a second for each try of a passphrase.
constexpr uint8_t kLog2N = 17, kR = 8, kP = 1;
constexpr uint8_t kMaxLog2N = 18, kMaxP = 4;  // of a file that somebody else made
constexpr size_t kHeadBeforeCheck = offsetof(SealedHead, check);

// The two keys that a passphrase gives.
struct PassphraseKeys {
  ~PassphraseKeys() { OPENSSL_cleanse(this, sizeof(*this)); }
  AesKey chunks{};
  Secret check{};
};

Status DeriveKeys(const SealedHead& head, std::string_view passphrase, PassphraseKeys* keys) {
  const uint64_t n = uint64_t{1} << head.log2_n;
  const uint64_t most_bytes = 128 * head.r * (n + head.p) + (1 << 20);
  static_assert(sizeof(PassphraseKeys) == 64);
  const int made = EVP_PBE_scrypt(passphrase.data(), passphrase.size(), head.salt.data(),
                                  head.salt.size(), n, head.r, head.p, most_bytes,
                                  reinterpret_cast<unsigned char*>(keys), sizeof(*keys));
  if (made == 1) return {};
  return Fail(Code::kExhausted, "no memory to derive a key from the passphrase: it takes {} bytes",
              most_bytes);
}

std::array<uint8_t, 16> CheckOf(const SealedHead& head, const PassphraseKeys& keys) {
  const auto bytes = std::as_bytes(std::span(&head, 1)).first(kHeadBeforeCheck);
  const Digest digest = HmacKey(keys.check).Of(bytes);
  std::array<uint8_t, 16> check;
  std::memcpy(check.data(), digest.data(), check.size());
  return check;
}

std::array<std::byte, sizeof(SealedHead) + 1> BindingOf(const SealedHead& head, bool is_last) {
  std::array<std::byte, sizeof(SealedHead) + 1> bytes{};
  std::memcpy(bytes.data(), &head, sizeof(head));
  bytes.back() = std::byte{is_last};
  return bytes;
}

}  // namespace

Result<SealedWriter> SealedWriter::Create(const std::string& path, std::string_view passphrase) {
  std::error_code error;
  if (std::filesystem::exists(std::filesystem::symlink_status(path, error))) {
    return Fail(Code::kInvalidArgument, "{} is there already; give another name", path);
  }
  SealedWriter writer;
  writer.head_ = {.magic = kSealedMagic,
                  .version = kSealedVersion,
                  .log2_n = kLog2N,
                  .r = kR,
                  .p = kP,
                  .zero = 0,
                  .salt = {},
                  .check = {}};
  KV_TRY(FillRandom(writer.head_.salt));
  PassphraseKeys keys;
  KV_TRY(DeriveKeys(writer.head_, passphrase, &keys));
  writer.head_.check = CheckOf(writer.head_, keys);
  static_cast<AesKey&>(writer.key_) = keys.chunks;
  KV_ASSIGN(writer.file_, AtomicFile::Create(path, {}));
  KV_TRY(writer.file_->WriteAt(std::as_bytes(std::span(&writer.head_, 1)), 0));
  writer.offset_ = sizeof(SealedHead);
  writer.plain_.reserve(kChunkBytes);
  return writer;
}

SealedWriter::~SealedWriter() { Wipe(&plain_); }

Status SealedWriter::Add(std::string_view line) {
  const auto add = [&](std::string_view text) -> Status {
    while (!text.empty()) {
      const size_t size = std::min(text.size(), kChunkBytes - plain_.size());
      plain_ += text.substr(0, size);
      text.remove_prefix(size);
      if (plain_.size() == kChunkBytes) KV_TRY(SealChunk(/*is_last=*/false));
    }
    return {};
  };
  KV_TRY(add(line));
  return add("\n");
}

Status SealedWriter::SealChunk(bool is_last) {
  std::vector<std::byte> sealed(sizeof(uint32_t) + plain_.size() + sizeof(AesTag));
  const auto size = static_cast<uint32_t>(plain_.size());
  std::memcpy(sealed.data(), &size, sizeof(size));
  AesTag tag;
  const auto bytes = std::span(sealed).subspan(sizeof(size), plain_.size());
  if (!AesGcmSeal(key_, num_chunks_++, BindingOf(head_, is_last), std::as_bytes(std::span(plain_)),
                  bytes, &tag)) {
    return Fail(Code::kExhausted, "no memory to seal the backup");
  }
  std::memcpy(sealed.data() + sizeof(size) + plain_.size(), tag.data(), tag.size());
  KV_TRY(file_->WriteAt(sealed, offset_));
  offset_ += sealed.size();
  OPENSSL_cleanse(plain_.data(), plain_.size());
  plain_.clear();
  return {};
}

Status SealedWriter::Finish() {
  KV_TRY(SealChunk(/*is_last=*/true));
  return file_->Publish();
}

Result<SealedReader> SealedReader::Open(const std::string& path, std::string_view passphrase) {
  const auto fail = [&path](Code code, std::string_view what) {
    return Fail(code, "{} {}", path, what);
  };
  SealedReader reader;
  reader.path_ = path;
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) {
    if (!error) return fail(Code::kInvalidArgument, "is not a file");
    return Fail(Code::kInvalidArgument, "{}: {}", path, error.message());
  }
  reader.size_ = std::filesystem::file_size(path, error);
  reader.file_.open(path, std::ios::binary);
  SealedHead& head = reader.head_;
  if (!reader.file_.is_open()) {
    return fail(Code::kInvalidArgument, std::string("cannot be read: ") + std::strerror(errno));
  }
  reader.file_.read(reinterpret_cast<char*>(&head), sizeof(head));
  if (!reader.file_ || head.magic != kSealedMagic) {
    return fail(Code::kInvalidArgument, "is not a backup of 'kvasir backup'");
  }
  if (head.version != kSealedVersion) {
    return Fail(Code::kUnsupported, "{} has version {}; this Kvasir reads version {}", path,
                head.version, kSealedVersion);
  }
  if (head.log2_n > kMaxLog2N || head.log2_n == 0 || head.r != kR || head.p == 0 ||
      head.p > kMaxP || head.zero != 0) {
    return fail(Code::kCorruption, "is damaged: its head asks for a key that no backup has");
  }
  PassphraseKeys keys;
  KV_TRY(DeriveKeys(head, passphrase, &keys));
  if (const auto check = CheckOf(head, keys);
      CRYPTO_memcmp(check.data(), head.check.data(), check.size()) != 0) {
    return fail(
        Code::kInvalidArgument,
        "cannot be unsealed: the passphrase is another one, or the head of the file was changed");
  }
  static_cast<AesKey&>(reader.key_) = keys.chunks;
  reader.offset_ = sizeof(SealedHead);
  return reader;
}

SealedReader::~SealedReader() { Wipe(&plain_); }

tl::unexpected<Error> SealedReader::Damaged() const {
  return Fail(Code::kCorruption,
              "{} is damaged, cut or was changed: what begins at byte {} of {} "
              "cannot be unsealed",
              path_, offset_, size_);
}

Status SealedReader::UnsealChunk() {
  uint32_t size = 0;
  file_.read(reinterpret_cast<char*>(&size), sizeof(size));
  const uint64_t left = size_ - offset_;
  const uint64_t chunk_bytes = sizeof(size) + size + sizeof(AesTag);
  if (!file_ || size > kMaxChunkBytes || chunk_bytes > left) return Damaged();
  std::vector<std::byte> sealed(size + sizeof(AesTag));
  file_.read(reinterpret_cast<char*>(sealed.data()), static_cast<std::streamsize>(sealed.size()));
  if (!file_) return Damaged();
  AesTag tag;
  std::memcpy(tag.data(), sealed.data() + size, tag.size());
  const bool is_last = chunk_bytes == left;
  // What was returned makes room for what comes.
  plain_.erase(0, std::exchange(begin_, 0));
  const size_t before = plain_.size();
  plain_.resize(before + size);
  if (!AesGcmUnseal(key_, num_chunks_, BindingOf(head_, is_last), std::span(sealed).first(size),
                    std::as_writable_bytes(std::span(plain_)).subspan(before), tag)) {
    plain_.resize(before);
    return Damaged();
  }
  ++num_chunks_;
  offset_ += chunk_bytes;
  is_over_ = is_last;
  return {};
}

void SealedReader::Rewind() {
  file_.clear();
  file_.seekg(sizeof(SealedHead));
  offset_ = sizeof(SealedHead);
  num_chunks_ = 0;
  is_over_ = false;
  begin_ = 0;
  Wipe(&plain_);
}

Result<std::optional<std::string>> SealedReader::Next() {
  size_t searched = begin_;
  for (;;) {
    const size_t end = plain_.find('\n', searched);
    if (end != plain_.npos) {
      std::string line = plain_.substr(begin_, end - begin_);
      begin_ = end + 1;
      return line;
    }
    searched = plain_.size() - begin_;  // after UnsealChunk, which moves it to the beginning
    if (is_over_) {
      if (begin_ == plain_.size()) return std::nullopt;
      return Fail(Code::kCorruption, "{} ends inside a line", path_);
    }
    KV_TRY(UnsealChunk());
  }
}

}  // namespace kvasir
