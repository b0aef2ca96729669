// MatrixPacker: numbers of a model's files as matrices and vectors in an arena.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "backend/packed_weights.h"
#include "base/arena.h"
#include "base/thread_pool.h"
#include "import/importer.h"
#include "kvasir/status.h"

namespace kvasir {

// The threads that fill panels, and how far they are.
struct Filling {
  ThreadPool& pool;
  const std::function<void(double share)>& progress;
  uint64_t done_bytes = 0, total_bytes = 0;
};

// Lays out matrices and vectors in an arena, and fills them from the files if there is a Filling:
// the layout is the same either way. Drops pages of the files as soon as they are packed. One
// thread; it computes on those of the Filling.
class MatrixPacker {
 public:
  // Sums over all that was laid out.
  struct Totals {
    uint64_t source_bytes = 0;   // of the files, panel by panel
    uint64_t load_bytes = 0;     // limit of the files' pages that are needed at once
    uint32_t quant_columns = 0;  // of the widest quantised matrix; 0 without one
  };

  // `filling`: nullptr if the arena only counts. All must outlive it.
  MatrixPacker(const ImportedModel& model, Arena& arena, Filling* filling)
      : model_(model), arena_(arena), filling_(filling) {}

  // Returns the numbers of the parts one after another, widened: f32 [sum of sizes], padded to 16
  // with zeros. kCorruption names a part with a number that is not finite. O(numbers).
  Result<const float*> Vector(const std::vector<MatrixSource>& parts);
  // Takes memory for a run and fills it from its sources, in batches of about 32 MiB.
  // kCorruption names a source with a number that is not finite, kInvalidArgument one with a number
  // too large for the format. O(numbers).
  Status PackRun(std::span<const MatrixSource* const> sources, uint32_t k, PackedRun& run);
  // Checks a matrix that is used in place, if there is a Filling. kCorruption as above.
  Status CheckInPlace(const MatrixSource& source) const;

  bool fills() const { return filling_ != nullptr; }
  const Totals& totals() const { return totals_; }

 private:
  void Fill(std::span<const MatrixSource* const> sources, uint32_t k, const PackedRun& run,
            uint32_t panel, std::byte* to, std::atomic<uint32_t>& bad) const;
  void DropTransposed(const MatrixSource& source) const;
  void Drop(std::span<const MatrixSource* const> sources, uint64_t begin, uint64_t end) const;

  const ImportedModel& model_;
  Arena& arena_;
  Filling* const filling_;
  Totals totals_;
};

}  // namespace kvasir
