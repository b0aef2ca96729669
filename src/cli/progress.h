// Progress: one line on stderr that shows the progress of long work.
#pragma once

#include <cstdint>
#include <string>

namespace kvasir::cli {

// Shows nothing in the first second, nothing when stderr is not a terminal, and at most ten lines a
// second. The destructor wipes the line. One thread at a time.
class Progress {
 public:
  Progress();
  ~Progress() { Clear(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void Show(const std::string& line);
  void Clear();

 private:
  const bool terminal_;
  const uint64_t start_ns_;
  uint64_t shown_ns_ = 0;
  bool visible_ = false;
};

}  // namespace kvasir::cli
