#include "cli/npy.h"

#include <bit>
#include <filesystem>
#include <system_error>

#include "base/bytes.h"
#include "base/result.h"

namespace kvasir::cli {

static_assert(std::endian::native == std::endian::little, "the header says '<f4'");

Result<NpyWriter> NpyWriter::Open(const std::string& given, uint64_t rows, uint64_t columns) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  std::string path = given;
  if (fs::exists(given, ignored)) {
    if (!fs::is_regular_file(given, ignored)) {
      return Fail(Code::kInvalidArgument, "--out: '{}' is not a regular file; give another name",
                  given);
    }
    const fs::path target = fs::canonical(given, ignored);
    if (!target.empty()) path = target.string();
  }
  auto file = AtomicFile::Create(path, {.readers = Readers::kByUmask});
  if (!file) {
    return Fail(Code::kInvalidArgument, "--out: {}; give a file in a folder that can be written",
                file.error().message);
  }
  NpyWriter writer(std::move(*file));
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
  writer.written_ = writer.file_->WriteAt(std::as_bytes(std::span(header)), 0);
  return writer;
}

void NpyWriter::WriteRow(uint64_t row, std::span<const float> values) {
  if (!written_) return;
  written_ = file_->WriteAt(std::as_bytes(values), header_bytes_ + row * values.size_bytes());
}

Status NpyWriter::Close() {
  if (written_) written_ = file_->Publish();
  if (written_) return {};
  return Fail(written_.error().code, "--out: {}", written_.error().message);
}

}  // namespace kvasir::cli
