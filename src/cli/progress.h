// Progress: one line on stderr that shows the progress of long work, with a bar.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace kvasir::cli {

// Returns "[######------------------] " for a quarter.
std::string BarOf(double share);
// Returns the share that a line says is done: "int8: 3 of 40 probes", "weights: 7%". Absent: it
// says none.
std::optional<double> ShareIn(std::string_view line);

// Shows nothing in the first second, nothing when stderr is not a terminal, and at most ten lines a
// second. The destructor wipes the line. One thread at a time.
class Progress {
 public:
  Progress();
  ~Progress() { Clear(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // Shows a line, and a bar before it where the share is given or the line says it.
  void Show(const std::string& line, std::optional<double> share = std::nullopt);
  void Clear();

 private:
  const bool terminal_;
  const uint64_t start_ns_;
  uint64_t shown_ns_ = 0;
  bool visible_ = false;
};

}  // namespace kvasir::cli
