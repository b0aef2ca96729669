#include "cli/npy.h"

#include <bit>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "base/bytes.h"
#include "base/system_error.h"

namespace kvasir::cli {

static_assert(std::endian::native == std::endian::little, "the header says '<f4'");

Result<NpyWriter> NpyWriter::Open(const std::string& given, uint64_t rows, uint64_t columns) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  std::string path = given;
  if (fs::exists(given, ignored)) {
    if (!fs::is_regular_file(given, ignored)) {
      return Fail(Code::kInvalidArgument, "--out: '{}' is no regular file; give another name",
                  given);
    }
    const fs::path target = fs::canonical(given, ignored);
    if (!target.empty()) path = target.string();
  }
  std::FILE* file = std::fopen((path + ".partial").c_str(), "wb");
  if (file == nullptr) {
    return Fail(Code::kInvalidArgument,
                "--out: cannot write '{}': {}; give a file in a folder that "
                "can be written",
                path, std::strerror(errno));
  }
  NpyWriter writer(path, file);
  // magic, version 1.0, u16 length of the header text, which ends with '\n' at a multiple of 64.
  std::string text =
      fmt::format("{{'descr': '<f4', 'fortran_order': False, 'shape': ({}, {}), }}", rows, columns);
  constexpr size_t kPrefix = 10;
  text.resize(RoundUp(kPrefix + text.size() + 1, 64) - kPrefix - 1, ' ');
  text += '\n';
  std::string header("\x93NUMPY\x01\x00", 8);
  header += static_cast<char>(text.size() & 0xff);
  header += static_cast<char>(text.size() >> 8);
  header += text;
  writer.header_bytes_ = header.size();
  if (std::fwrite(header.data(), 1, header.size(), file) != header.size()) writer.error_ = errno;
  return writer;
}

NpyWriter::~NpyWriter() {
  if (file_ == nullptr) return;
  file_.reset();
  std::remove(partial_path().c_str());
}

void NpyWriter::WriteRow(uint64_t row, std::span<const float> values) {
  const uint64_t offset = header_bytes_ + row * values.size_bytes();
  if (error_ != 0) return;
  if (std::fseek(file_.get(), static_cast<long>(offset), SEEK_SET) != 0 ||
      std::fwrite(values.data(), 4, values.size(), file_.get()) != values.size()) {
    error_ = errno;
  }
}

Status NpyWriter::Close() {
  if (std::fclose(file_.release()) != 0 && error_ == 0) error_ = errno;
  if (error_ == 0) {
    if (std::rename(partial_path().c_str(), path_.c_str()) == 0) return {};
    error_ = errno;
  }
  std::remove(partial_path().c_str());
  return FailErrno(error_, "--out: writing '{}' failed", path_);
}

}  // namespace kvasir::cli
