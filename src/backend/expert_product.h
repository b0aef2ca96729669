// ExpertProduct: the FFN of layers with experts. Rows are gathered by the expert that they go to,
// so that a step reads the panels of each chosen expert once and those of others never.
#pragma once

#include "backend/packed_weights.h"
#include "backend/product_items.h"
#include "base/arena.h"
#include "base/thread_pool.h"
#include "tensor/router.h"

namespace kvasir {

// All chosen experts share two phases of work, one for gate and up and one for down, whatever their
// number. A row's result does not depend on the other rows nor on the threads. One call at a time;
// nothing allocates after construction.
class ExpertProduct {
 public:
  struct Options {
    Target target;
    uint32_t max_rows;
    uint32_t experts, chosen;  // 0: a model without experts, which needs no scratch memory
    uint32_t hidden, ffn;
    uint32_t threads;
    bool quantised;  // some weights are
  };
  // An expert with rows in this step.
  struct Member {
    uint32_t expert;
    uint32_t first_slot, rows;
    uint32_t first_item;  // of the phase
  };
  // Scratch memory; the same code counts it and allocates it. A slot is a row at one of its
  // experts: [max_rows * chosen], ordered by expert, then by row.
  struct Scratch {
    Scratch(const Options& options, Arena& arena);
    size_t logits_stride, hidden_stride, ffn_stride;
    float* logits;         // [max_rows]
    uint32_t* chosen;      // [max_rows][chosen]
    float* weights;        // [max_rows][chosen]
    uint32_t* slots;       // [max_rows][chosen]: where the row is gathered
    Member* members;       // [experts]
    float* gathered;       // [slot]: x, later what down gives
    float* ffn;            // [slot]
    std::byte* quantised;  // [slot] of ActivationLayout, of x and later of ffn
    float* gated;          // [threads][kGatedFloats]
  };
  // `pool` must outlive this.
  ExpertProduct(const Options& options, Arena& arena, ThreadPool& pool);

  // Returns where the router's logits go before Run: [rows][experts].
  float* logits() const { return scratch_.logits; }
  size_t logits_stride() const { return scratch_.logits_stride; }

  struct Call {
    const float* x;  // [rows][hidden], `stride` floats apart, as is y
    size_t stride;
    uint32_t rows;
    float* y;      // may be x
    bool* finite;  // [rows]: false where a logit is not finite; y is 0 there
  };
  // Computes Backend::Experts. REQUIRES: call.rows <= max_rows.
  void Run(std::span<const PackedExpert> experts, Routing routing, Activation act,
           const Call& call);
  uint64_t read_bytes() const { return read_bytes_; }  // of weights, since the start

 private:
  static constexpr uint32_t kNoExpert = UINT32_MAX;

  void Choose(Routing routing, const Call& call);
  void Gather(const Call& call);
  void GateAndUp(std::span<const PackedExpert> experts, Activation act);
  void Down(std::span<const PackedExpert> experts);
  void Join(const Call& call);

  // Quantises the rows of all members as the matrix of(expert) needs them.
  template <typename Of>
  void Quantise(std::span<const PackedExpert> experts, Of of, const float* x, size_t stride);
  // Calls fn(member, item, thread) for all items of the products of all members with of(expert),
  // and with `matrices` - 1 others of its shape and format.
  template <typename Of, typename Fn>
  void ForItems(std::span<const PackedExpert> experts, Of of, uint32_t matrices, Fn&& fn);
  // Calls fn(index) for each index in [0, count), on this thread where `work` in all is little.
  template <typename Fn>
  void ForEach(uint32_t count, uint64_t work, Fn&& fn);
  ProductRows RowsOf(const Member& member, const float* x, size_t stride, uint32_t k) const;
  std::span<Member> members() const { return {scratch_.members, num_members_}; }

  const Options o_;
  const ProductKernels kernels_;
  ThreadPool& pool_;
  const Scratch scratch_;
  uint32_t num_members_ = 0, num_slots_ = 0;
  uint64_t read_bytes_ = 0;
};

}  // namespace kvasir
