// Npy: float32 arrays in NumPy's .npy format, version 1.0 (numpy.lib.format).
#pragma once

#include <cstdint>
#include <cstdio>
#include <memory>
#include <span>
#include <string>

#include "kvasir/status.h"

namespace kvasir::cli {

// Writes [rows][columns], rows in any order. The file appears under its name only when it is whole.
// One thread at a time.
class NpyWriter {
 public:
  NpyWriter(NpyWriter&&) = default;
  ~NpyWriter();  // of a file that was not closed: removes what there is
  // What stands at `path` is replaced if it is a regular file (behind a link: there); anything else
  // is kInvalidArgument.
  static Result<NpyWriter> Open(const std::string& path, uint64_t rows, uint64_t columns);
  // REQUIRES: row < rows, values.size() == columns. A failed write is told by Close.
  void WriteRow(uint64_t row, std::span<const float> values);
  Status Close();

 private:
  struct Closer {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  NpyWriter(std::string path, std::FILE* file) : path_(std::move(path)), file_(file) {}
  std::string partial_path() const { return path_ + ".partial"; }

  std::string path_;
  std::unique_ptr<std::FILE, Closer> file_;
  uint64_t header_bytes_ = 0;
  int error_ = 0;  // errno of the first write that failed
};

}  // namespace kvasir::cli
