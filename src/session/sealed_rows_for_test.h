// SealedRowsTest: a file of sealed rows in a temporary folder of the real disk.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "session/sealed_rows.h"
#include "tier/tier_folder_for_test.h"

namespace kvasir {

inline constexpr Digest kMira{1}, kOther{2};

inline std::span<const std::byte> Bytes(std::string_view text) {
  return std::as_bytes(std::span(text));
}

class SealedRowsTest : public TierFolderTest {
 protected:
  SealedRowsTest() {
    rows_ = {.folder = options_.folder, .cap_bytes = uint64_t{64} << 20, .secret = options_.secret};
  }

  std::unique_ptr<SealedRows> Open() {
    auto opened = SealedRows::Open(rows_, storage_);
    EXPECT_TRUE(opened) << opened.error().message;
    return opened ? std::move(*opened) : nullptr;
  }
  Error OpenError() {
    auto opened = SealedRows::Open(rows_, storage_);
    return opened ? Error{Code::kNotFound, "it opened"} : opened.error();
  }
  static std::string TextOf(const Result<std::vector<std::byte>>& got) {
    if (!got) return std::string("error: ") + got.error().message;
    return {reinterpret_cast<const char*>(got->data()), got->size()};
  }
  // Returns all bytes of all files of the folder.
  std::string FolderBytes() const {
    std::string all;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(rows_.folder)) {
      if (!entry.is_regular_file()) continue;
      std::ifstream file(entry.path(), std::ios::binary);
      all.append(std::istreambuf_iterator<char>(file), {});
    }
    return all;
  }
  static std::string BytesOf(const std::filesystem::path& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  std::string PathOf(std::string_view name) const { return rows_.folder + "/" + std::string(name); }

  RealStorage storage_;
  SealedRowsOptions rows_;
};

}  // namespace kvasir
