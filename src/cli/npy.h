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

// Writes [rows][columns], rows in any order. The file gets its name only when it is complete
// and closed. One thread at a time.
class NpyWriter {
 public:
  // Replaces a regular file at `path`; if `path` is a link, replaces its target. kInvalidArgument
  // when something else is there.
  static Result<NpyWriter> Open(const std::string& path, uint64_t rows, uint64_t columns);
  // REQUIRES: row < rows, values.size() == columns. Close reports a failed write.
  void WriteRow(uint64_t row, std::span<const float> values);
  Status Close();

 private:
  explicit NpyWriter(std::unique_ptr<AtomicFile> file) : file_(std::move(file)) {}

  std::unique_ptr<AtomicFile> file_;
  uint64_t header_bytes_ = 0;
  Status written_;  // the first failed write
};

}  // namespace kvasir::cli
