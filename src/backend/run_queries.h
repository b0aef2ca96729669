// RunQueries: the queries of runs that are asked from another place than the row's.
#pragma once

#include <cstdint>
#include <optional>

#include "backend/backend.h"
#include "base/arena.h"

namespace kvasir {

// Writes [cos][sin] of a position's angles, half of the rotated dimensions each.
void FillRopeAngles(const BackendOptions::Rope& rope, bool is_long, uint32_t position, float* cos);

// Scales the queries of some heads for a layer, and rotates them where its keys are (Hadamard).
void PrepareHeads(const BackendOptions& options, KvLayout::Place place, uint32_t heads, float* q);

// Has a place for each thread, in memory of the arena. A query comes without rotation and scale:
// each distance that it is asked from takes one rotation of it. One call a thread at a time.
class RunQueries {
 public:
  // `max_queries`: rows times heads of an item.
  RunQueries(const BackendOptions& options, uint32_t max_queries, Arena& arena);

  struct Heads {
    uint32_t begin, end;  // of the query
  };
  // What the queries of an item have in common. rope: absent where the layer has none.
  struct Layer {
    KvLayout::Place place;
    std::optional<uint32_t> rope;
    bool is_long;
  };
  // Writes these heads of query `q` [head][head_dim], asked from `position`, into the thread's
  // place `index`. Returns where head 0 would stand; only the named heads may be read.
  const float* Write(const Layer& layer, const float* q, Heads heads, uint32_t position,
                     uint32_t index, uint32_t thread);

 private:
  const BackendOptions& o_;
  uint64_t thread_floats_;
  float* places_;  // [thread][heads of a query, unused; queries][head_dim]
};

}  // namespace kvasir
