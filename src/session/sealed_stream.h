// SealedWriter and SealedReader: a file of lines that is sealed under a passphrase.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/atomic_file.h"
#include "kvasir/status.h"
#include "tier/aes_gcm.h"

namespace kvasir {

// The head of the file (docs/formats/backup.md), as it is stored: little endian.
struct SealedHead {
  std::array<char, 8> magic;
  uint32_t version;
  uint8_t log2_n, r, p, zero;  // of scrypt
  std::array<uint8_t, 16> salt;
  std::array<uint8_t, 16> check;  // of all above, under the passphrase
};
static_assert(sizeof(SealedHead) == 48);

// Writes a new file, which has its name when it is finished. Thread-compatible.
class SealedWriter {
 public:
  // kInvalidArgument: there is a file of that name; kExhausted: no memory for the key; other errors
  // are those of AtomicFile.
  static Result<SealedWriter> Create(const std::string& path, std::string_view passphrase);
  SealedWriter(SealedWriter&&) = default;
  ~SealedWriter();

  // Adds a line. REQUIRES: it has no line end.
  Status Add(std::string_view line);
  Status Finish();

 private:
  SealedWriter() = default;
  Status SealChunk(bool is_last);

  std::unique_ptr<AtomicFile> file_;
  SealedHead head_{};
  WipedKey key_;
  std::string plain_;  // of the next chunk
  uint64_t num_chunks_ = 0, offset_ = 0;
};

// Reads what SealedWriter wrote. Errors: kInvalidArgument: not such a file, or another passphrase;
// kUnsupported: of a newer version; kCorruption: damaged, cut or changed; kIoError.
class SealedReader {
 public:
  static Result<SealedReader> Open(const std::string& path, std::string_view passphrase);
  SealedReader(SealedReader&&) = default;
  ~SealedReader();

  // Returns the next line, which the caller wipes; nullopt: the end of what was written.
  Result<std::optional<std::string>> Next();
  // Goes back to the first line.
  void Rewind();

 private:
  SealedReader() = default;
  Status UnsealChunk();
  tl::unexpected<Error> Damaged() const;

  std::string path_;
  std::ifstream file_;
  uint64_t size_ = 0, offset_ = 0;  // of the file
  SealedHead head_{};
  WipedKey key_;
  std::string plain_;  // what was unsealed and not returned
  size_t begin_ = 0;   // of what was not returned, in plain_
  uint64_t num_chunks_ = 0;
  bool is_over_ = false;  // the last chunk was unsealed
};

}  // namespace kvasir
