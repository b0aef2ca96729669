// Builds model files, good and hostile, for the tests of this folder.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/bytes_for_test.h"
#include "kvasir/status.h"

namespace kvasir {

template <typename T>
std::string Le(T value) {  // little endian
  std::string bytes(sizeof(T), '\0');
  std::memcpy(bytes.data(), &value, sizeof(T));
  return bytes;
}

inline std::string Safetensors(const std::string& header, const std::string& data = "") {
  return Le<uint64_t>(header.size()) + header + data;
}

// Writes a GGUF file: pairs and rows in the order of the calls.
class GgufBuilder {
 public:
  explicit GgufBuilder(uint32_t version = 3, uint64_t alignment = 32)
      : version_(version), alignment_(alignment) {}

  std::string Count(uint64_t n) const {
    return version_ == 1 ? Le(static_cast<uint32_t>(n)) : Le(n);
  }
  std::string Str(const std::string& text) const { return Count(text.size()) + text; }
  GgufBuilder& Raw(const std::string& key, uint32_t type, const std::string& value) {
    pairs_ += Str(key) + Le(type) + value;
    ++num_pairs_;
    return *this;
  }
  GgufBuilder& U32(const std::string& key, uint32_t v) { return Raw(key, 4, Le(v)); }
  GgufBuilder& F32(const std::string& key, float v) { return Raw(key, 6, Le(v)); }
  GgufBuilder& Text(const std::string& key, const std::string& v) { return Raw(key, 8, Str(v)); }
  // dims: innermost first, as the file has them. The offset follows the data so far.
  GgufBuilder& Tensor(const std::string& name, const std::vector<uint64_t>& dims, uint32_t type,
                      const std::string& bytes) {
    const uint64_t offset = data_.size();
    data_ += bytes;
    data_.resize((data_.size() + alignment_ - 1) / alignment_ * alignment_, '\0');
    return Row(name, dims, type, offset);
  }
  GgufBuilder& Row(const std::string& name, const std::vector<uint64_t>& dims, uint32_t type,
                   uint64_t offset) {
    rows_ += Str(name) + Le(static_cast<uint32_t>(dims.size()));
    for (uint64_t dim : dims) rows_ += Count(dim);
    rows_ += Le(type) + Le(offset);
    ++num_rows_;
    return *this;
  }
  std::string Build() const {
    std::string file =
        "GGUF" + Le(version_) + Count(num_rows_) + Count(num_pairs_) + pairs_ + rows_;
    file.resize((file.size() + alignment_ - 1) / alignment_ * alignment_, '\0');
    return file + data_;
  }

 private:
  uint32_t version_;
  uint64_t alignment_;
  std::string pairs_, rows_, data_;
  uint64_t num_pairs_ = 0, num_rows_ = 0;
};

// A folder that is removed when the test ends.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    static int serial = 0;
    path_ = std::filesystem::path(testing::TempDir()) /
            ("kvasir_model." + std::to_string(getpid()) + "." + std::to_string(++serial));
    std::filesystem::create_directories(path_);
  }
  ~TemporaryFolder() { std::filesystem::remove_all(path_); }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  std::filesystem::path Write(const std::string& name, const std::string& content) const {
    std::filesystem::create_directories((path_ / name).parent_path());
    std::ofstream(path_ / name, std::ios::binary) << content;
    return path_ / name;
  }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

// Expects an error of a code whose text holds all of `parts`.
template <typename T>
void ExpectError(const Result<T>& result, Code code, const std::vector<std::string>& parts) {
  ASSERT_FALSE(result.has_value()) << "expected an error with '" << parts.at(0) << "'";
  EXPECT_EQ(static_cast<int>(result.error().code), static_cast<int>(code)) << result.error().text();
  for (const std::string& part : parts) {
    EXPECT_NE(result.error().text().find(part), std::string::npos)
        << "'" << part << "' is not in: " << result.error().text();
  }
}

}  // namespace kvasir
