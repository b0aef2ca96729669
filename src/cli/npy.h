// Npy: float32 arrays in NumPy's .npy format, version 1.0 (numpy.lib.format).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "base/atomic_file.h"
#include "kvasir/status.h"

namespace kvasir::cli {

// Writes [rows][columns], rows in any order. The file appears under its name only when it is whole
// and closed. One thread at a time.
class NpyWriter {
 public:
  // What stands at `path` is replaced if it is a regular file (behind a link: there); anything else
  // is kInvalidArgument.
  static Result<NpyWriter> Open(const std::string& path, uint64_t rows, uint64_t columns);
  // REQUIRES: row < rows, values.size() == columns. A failed write is told by Close.
  void WriteRow(uint64_t row, std::span<const float> values);
  Status Close();

 private:
  explicit NpyWriter(std::unique_ptr<AtomicFile> file) : file_(std::move(file)) {}

  std::unique_ptr<AtomicFile> file_;
  uint64_t header_bytes_ = 0;
  Status written_;  // or the first write that failed
};

}  // namespace kvasir::cli
